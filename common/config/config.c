/* The table of keys as data, defaults, and look-ups by path. */
#include "common/config/config_int.h"

#include <stdio.h>
#include <string.h>

#define SAME                                  true
#define FREE                                  false
#define ROW(m, p, t, cls, text)               .path = p, .type = t, .same = cls, .offset = offsetof(k2_config, m), .doc = text
#define ROW_U64(m, p, def, lo, hi, cls, text) {ROW(m, p, K2I_U64, cls, text), .u_default = def, .u_min = lo, .u_max = hi},
#define ROW_F64(m, p, def, lo, hi, cls, text) {ROW(m, p, K2I_F64, cls, text), .f_default = def, .f_min = lo, .f_max = hi},
#define ROW_BOOL(m, p, def, cls, text)        {ROW(m, p, K2I_BOOL, cls, text), .u_default = def},
#define ROW_STR(m, p, def, cls, text)         {ROW(m, p, K2I_STR, cls, text), .s_default = def},
#define ROW_ENUM(m, p, def, words, cls, text) {ROW(m, p, K2I_ENUM, cls, text), .s_default = def, .choices = words},
#define ROW_LIST(m, p, cls, text)             {ROW(m, p, K2I_LIST, cls, text)},

const k2i_key k2i_keys[] = {K2_CONFIG_KEYS(ROW_U64, ROW_F64, ROW_BOOL, ROW_STR, ROW_ENUM, ROW_LIST)};
const size_t k2i_key_count = K2_COUNT(k2i_keys);

void k2_config_defaults(k2_config *c)
{
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < k2i_key_count; i++) {
        const k2i_key *k = &k2i_keys[i];
        void *slot = k2i_key_slot(k, c);
        switch (k->type) {
        case K2I_U64: *(uint64_t *)slot = k->u_default; break;
        case K2I_F64: *(double *)slot = k->f_default; break;
        case K2I_BOOL: *(bool *)slot = k->u_default != 0; break;
        case K2I_STR: snprintf(slot, K2_CONFIG_STR_MAX, "%s", k->s_default); break;
        case K2I_ENUM: snprintf(slot, K2_CONFIG_ENUM_MAX, "%s", k->s_default); break;
        case K2I_LIST: break;
        }
    }
}

const k2i_key *k2i_key_find(const char *path)
{
    for (size_t i = 0; i < k2i_key_count; i++)
        if (strcmp(k2i_keys[i].path, path) == 0) return &k2i_keys[i];
    return NULL;
}

const char *k2i_key_nearest(const char *path)
{
    const char *paths[K2_COUNT(k2i_keys)];
    for (size_t i = 0; i < k2i_key_count; i++) paths[i] = k2i_keys[i].path;
    return k2_str_nearest(path, paths, k2i_key_count);
}

bool k2i_choice_known(const char *choices, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = choices;; at++) {
        const char *end = strchrnul(at, '|');
        if ((size_t)(end - at) == n && memcmp(at, word, n) == 0) return true;
        if (*end == 0) return false;
        at = end;
    }
}

const char *k2_config_tokenizer_path(const k2_config *c, const char *model_dir)
{
    return c->tokenizer_path[0] || strcmp(c->tokenizer_kind, "byte") == 0 ? c->tokenizer_path : model_dir;
}
