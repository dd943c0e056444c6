/* json_int - strict access to parsed JSON: a field is there once, has its type and its range, and every error says where. */
#ifndef K2_WEIGHTS_JSON_INT_H
#define K2_WEIGHTS_JSON_INT_H

#include <cjson/cJSON.h>

#include "common/base/base.h"

#define K2I_JSON_EXACT_MAX (1ull << 53) /* whole numbers that the parser's double still tells apart */

/* Bytes as one object. `name` is the file; the result is cJSON_Delete'd by the caller. BAD_INPUT: not JSON or no object. */
k2_code k2i_json_parse(const char *name, const char *text, size_t n, cJSON **out, k2_error *err);
/* "a string", "a number", ... for errors */
const char *k2i_json_type(const cJSON *item);
/* No key twice, and none but those listed. */
k2_code k2i_json_keys(const char *name, const cJSON *object, const char *const *known, size_t count, k2_error *err);
/* Fields that must be there; `name` is the file, or the file and what stands around the field. */
k2_code k2i_json_string(const char *name, const cJSON *object, const char *key, const char **out, k2_error *err);
k2_code k2i_json_list(const char *name, const cJSON *object, const char *key, const cJSON **out, k2_error *err);
k2_code k2i_json_u64(const char *name, const cJSON *object, const char *key, uint64_t max, uint64_t *out, k2_error *err);
/* A whole number from 0 to K2I_JSON_EXACT_MAX. */
bool k2i_json_whole(const cJSON *item, uint64_t *out);

#endif
