/* jsonl_int - strict lines of JSON: what prompts and `k2rl data jsonl2idx` have in common. */
#ifndef K2_DATA_JSONL_INT_H
#define K2_DATA_JSONL_INT_H

#include <cjson/cJSON.h>

#include "common/base/base.h"

/* Where an error is: every text begins "name:line: ". */
typedef struct k2i_place {
    const char *name;
    uint32_t line;
} k2i_place;

/* The lines of a file in memory. Zero `at` and `line`, then call k2i_jsonl_next until it answers NOT_FOUND. */
typedef struct k2i_jsonl {
    const char *name;
    const char *bytes;
    size_t n, at;
    uint32_t line;
    uint32_t line_bytes_max;
} k2i_jsonl;

/* The next line that is not blank, without its end and the blanks before it. LIMIT: longer than allowed. NOT_FOUND (no text):
 * no more. */
k2_code k2i_jsonl_next(k2i_jsonl *j, const char **line, size_t *n, k2_error *err);

/* One line as an object. What cJSON would let pass is refused first: bytes that are not UTF-8, control characters in strings,
 * U+0000 (cJSON would cut the string there), deep nesting, text behind the object. The result is cJSON_Delete'd by the
 * caller. */
k2_code k2i_jsonl_object(k2i_place at, const char *line, size_t n, cJSON **out, k2_error *err);

/* A field that may be there once. *out is NULL where it is not there. BAD_INPUT: there twice. */
k2_code k2i_jsonl_field(k2i_place at, const cJSON *object, const char *key, const cJSON **out, k2_error *err);
/* "a string", "a number", ... for errors */
const char *k2i_jsonl_type(const cJSON *item);

#endif
