/* args_int - options and operands of `k2rl data`, and the sub-commands behind it. */
#ifndef K2_DATA_ARGS_INT_H
#define K2_DATA_ARGS_INT_H

#include "common/base/base.h"

/* One option; exactly one of the three places is set. */
typedef struct k2i_option {
    const char *name; /* "--seed" */
    bool *flag;       /* takes no value */
    uint32_t *u32;
    uint64_t *u64;
    const char **text;
} k2i_option;

/* Options may stand anywhere, as "--name value" or "--name=value"; "--" ends them. Operands are moved to the front of args.
 *
 * errors   BAD_INPUT: an unknown option (with the nearest known one), a value missing or not a number
 */
k2_code k2i_args_parse(char **args, int count, const k2i_option *options, size_t option_count, int *operands, k2_error *err);

/* Sub-commands: args are what stands behind the sub-command's name. */
k2_code k2i_data_text2idx(char **args, int count, k2_error *err);
k2_code k2i_data_jsonl2idx(char **args, int count, k2_error *err);
k2_code k2i_data_show(char **args, int count, k2_error *err);
k2_code k2i_data_task(char **args, int count, k2_error *err);

#endif
