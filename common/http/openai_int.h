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

/* ---- reading members of a request: false with the error that names the place ---- */

typedef struct k2i_reader {
    k2_openai_request *r;
    k2_openai_error *err;
    const char *name; /* of the parameter that is read */
    const char *body; /* all of it, as it stands */
    size_t body_bytes;
} k2i_reader;

bool k2i_reader_bad(k2i_reader *x, const char *at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool k2i_reader_expected(k2i_reader *x, const char *at, const char *what, const cJSON *v);
bool k2i_reader_bool(k2i_reader *x, const cJSON *v, bool *out);
bool k2i_reader_int(k2i_reader *x, const cJSON *v, int64_t lo, int64_t hi, int64_t *out);
bool k2i_reader_double(k2i_reader *x, const cJSON *v, double lo, double hi, double *out);
/* A list of up to `count` token ids (asserted). */
bool k2i_reader_ids(k2i_reader *x, const cJSON *array, uint32_t *out, size_t count);

/* Who said what, and with which tools: openai_chat.c. */
bool k2i_chat_messages(k2i_reader *x, const cJSON *v);
bool k2i_chat_tools(k2i_reader *x, const cJSON *v);
bool k2i_chat_tool_choice(k2i_reader *x, const cJSON *v);
void k2i_chat_write(k2_buf *out, const k2_openai_request *r);
void k2i_message_fini(k2_openai_message *m);
/* "tool_calls" of a message, or with `chunk` of a delta; there is at least one. */
void k2i_calls_write(k2_buf *out, const k2_openai_call *calls, size_t count, bool chunk);

/* How tokens are drawn, when they end and what is told of them: openai_sampling.c. */
typedef struct k2i_sampling_param {
    const char *name;
    bool (*read)(k2i_reader *x, const cJSON *v);
    bool in_completion, in_chat;
} k2i_sampling_param;
extern const k2i_sampling_param k2i_sampling_params[];
extern const size_t k2i_sampling_param_count;
/* The known parameter that this name was probably meant to be, or NULL: openai_request.c. */
const char *k2i_openai_nearest(const char *name);
/* A parameter that no table has, after those that the request has already: openai_extra.c. */
void k2i_extra_keep(k2_openai_request *r, const cJSON *v);
/* What only holds between parameters. */
bool k2i_sampling_check(k2i_reader *x);
/* so_far: generated tokens that the written request has in its prompt. */
void k2i_sampling_write(k2_buf *out, const k2_openai_request *r, size_t so_far);

#endif
