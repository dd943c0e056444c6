/* openai_int - what the files that read and write OpenAI bodies share. */
#ifndef K2_COMMON_HTTP_OPENAI_INT_H
#define K2_COMMON_HTTP_OPENAI_INT_H

#include <cjson/cJSON.h>

#include "common/http/openai.h"

#define K2I_JSON_EXACT_MAX 9007199254740992.0 /* 2^53: up to here a double holds every integer */

/* A whole body as JSON, strictly (k2_json_fault, nothing behind it). NULL with why, the rest of a sentence. */
cJSON *k2i_openai_json(const char *body, size_t n, const char **why);
/* A JSON integer from 0 to 2^53, or a decimal string. */
bool k2i_openai_read_u64(const cJSON *v, uint64_t *out);
/* A JSON integer of a range. */
bool k2i_openai_read_int(const cJSON *v, int64_t lo, int64_t hi, int64_t *out);
/* Decimal digits without the cost of printf: token ids are most of what is written. */
void k2i_openai_put_u64(k2_buf *out, uint64_t v);
/* [1,2,3] */
void k2i_openai_put_ids(k2_buf *out, const uint32_t *ids, size_t count);

#endif
