/* The table of keys as data, for parser, printer and page. */
#ifndef K2_COMMON_CONFIG_INT_H
#define K2_COMMON_CONFIG_INT_H

#include "common/config/config.h"

typedef enum k2i_key_type { K2I_U64, K2I_F64, K2I_BOOL, K2I_STR, K2I_ENUM, K2I_LIST } k2i_key_type;

typedef struct k2i_key {
    const char *path;
    k2i_key_type type;
    bool same; /* part of the identity of a run */
    size_t offset;
    uint64_t u_default, u_min, u_max;
    double f_default, f_min, f_max;
    const char *s_default, *choices; /* choices are separated by '|' */
    const char *doc;
} k2i_key;

extern const k2i_key k2i_keys[];
extern const size_t k2i_key_count;

const k2i_key *k2i_key_find(const char *path);
/* The known path nearest to this one, or NULL. */
const char *k2i_key_nearest(const char *path);
bool k2i_choice_known(const char *choices, const char *word);
static inline void *k2i_key_slot(const k2i_key *k, k2_config *c) { return (char *)c + k->offset; }
static inline const void *k2i_key_value(const k2i_key *k, const k2_config *c) { return (const char *)c + k->offset; }

#endif
