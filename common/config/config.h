/* config - the strict JSON configuration of a run.
 *
 * One flat struct with one member per key (`trainer.optimizer.lr` is `trainer_lr`; the table in keys_int.h says which); it owns no
 * memory and may be copied. Every error names the file, the JSON path, what was found and what is expected.
 */
#ifndef K2_COMMON_CONFIG_H
#define K2_COMMON_CONFIG_H

#include "common/base/base.h"
#include "common/config/keys_int.h"

#define K2_CONFIG_STR_MAX   512u     /* bytes of one string with its terminator: a path */
#define K2_CONFIG_ENUM_MAX  16u      /* bytes of one choice with its terminator */
#define K2_CONFIG_LIST_MAX  32u      /* items of a list: a command line */
#define K2_CONFIG_ITEM_MAX  256u     /* bytes of one item with its terminator */
#define K2_CONFIG_BYTES_MAX 1048576u /* a larger file is not a configuration */

typedef struct k2_config_list {
    uint32_t count;
    char item[K2_CONFIG_LIST_MAX][K2_CONFIG_ITEM_MAX];
} k2_config_list;

typedef struct k2_config {
#define K2_U64(member, ...)  uint64_t member;
#define K2_F64(member, ...)  double member;
#define K2_BOOL(member, ...) bool member;
#define K2_STR(member, ...)  char member[K2_CONFIG_STR_MAX];
#define K2_ENUM(member, ...) char member[K2_CONFIG_ENUM_MAX];
#define K2_LIST(member, ...) k2_config_list member;
    K2_CONFIG_KEYS(K2_U64, K2_F64, K2_BOOL, K2_STR, K2_ENUM, K2_LIST)
#undef K2_U64
#undef K2_F64
#undef K2_BOOL
#undef K2_STR
#undef K2_ENUM
#undef K2_LIST
} k2_config;

/* Every key at its default. */
void k2_config_defaults(k2_config *c);

/* k2_config_parse - overlay the keys of a JSON text on *c.
 *
 * memory   *c must hold a whole configuration (defaults or a loaded one); it is unchanged on error
 * errors   BAD_INPUT: syntax (line and column), unknown key (with the nearest known one), key given twice, wrong type, out of range
 * threads  pure
 */
k2_code k2_config_parse(k2_config *c, const char *text, size_t n, const char *name, k2_error *err);

/* Read a file and overlay it. Relative paths in it stay as they are: they are relative to the working directory. */
k2_code k2_config_load(k2_config *c, const char *path, k2_error *err);

/* Overlay one `path=value` of the command line. Strings need no quotes; a list is a JSON array. */
k2_code k2_config_set(k2_config *c, const char *assignment, k2_error *err);

/* What must hold between keys (ranks and lanes, budget and longest answer, files that a mode needs). Touches no file. */
k2_code k2_config_check(const k2_config *c, k2_error *err);

/* Where the tokenizer is: tokenizer.path, else for kinds that read files the model's directory. Lives as long as what it is of. */
const char *k2_config_tokenizer_path(const k2_config *c, const char *model_dir);

/* The whole configuration as JSON, every key written out, in the order of the table. k2_free the text. */
char *k2_config_json(const k2_config *c);

/* Digest over the keys of class SAME: two starts with equal identity compute the same run. */
k2_digest k2_config_identity(const k2_config *c);

/* The reference page (Markdown) that configs/README.md holds; k2_free the text. */
char *k2_config_markdown(void);

#endif
