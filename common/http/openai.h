/* openai - reading and writing the bodies of the OpenAI interface, with the "k2" extension: one code for all.
 *
 * The second public header of common/http, apart because it is pure (bytes in, bytes out; no loop). Nouns: a *request* is a
 * body of POST /v1/completions or /v1/chat/completions; an *answer* is a whole response or one chunk of a stream, both read into one
 * type; an *error* carries its HTTP status. What a request owns goes with its fini.
 *
 * The extension: request {"k2": {trajectory, group, position, digest, seed, train, repetition}}, answer choices with
 * "token_ids" (and "prompt_token_ids" in a whole answer and in the first chunk), top level "k2": {"version", "digest"}. u64
 * numbers are read as a JSON integer or as a decimal string and written as a number up to 2^53, as a string beyond.
 */
#ifndef K2_COMMON_HTTP_OPENAI_H
#define K2_COMMON_HTTP_OPENAI_H

#include "common/base/base.h"

#define K2_OPENAI_STOPS_MAX    8u       /* stop strings and, apart from them, stop token ids; OpenAI allows 4 strings */
#define K2_OPENAI_MESSAGES_MAX 4096u    /* messages of one chat */
#define K2_OPENAI_PROMPT_MAX   1048576u /* token ids of one prompt: above any context length we know */
#define K2_OPENAI_TOKENS_MAX   1048576u /* max_tokens of one request, likewise */
#define K2_OPENAI_CHOICES_MAX  128u     /* n of one request, as OpenAI */
#define K2_OPENAI_TOPS_MAX     20u      /* likeliest tokens told of one position, as OpenAI's chat and vLLM */
#define K2_OPENAI_BIAS_MAX     1024u    /* token ids of one logit_bias; OpenAI allows 300 */
#define K2_OPENAI_TOOLS_MAX    1024u    /* tools of one request; OpenAI allows 128 */
#define K2_OPENAI_CALLS_MAX    128u     /* calls of tools in one message or answer */

/* ---- errors ----------------------------------------------------------------------------------------------------- */

typedef struct k2_openai_error {
    int status;         /* HTTP status: 400, 404, 409, 413, 429, 500, 502, 503, 504 */
    const char *type;   /* "invalid_request_error", "server_error", ...: a literal */
    const char *code;   /* machine-readable, or NULL: a literal */
    char param[64];     /* the parameter at fault, "" when none: "messages[2].content" */
    char message[K2_ERROR_TEXT_MAX];
} k2_openai_error;

/* Fill an error; type follows from status (4xx: invalid_request_error; 429: rate_limit_error; 5xx: server_error). */
void k2_openai_error_set(k2_openai_error *e, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* {"error": {"message", "type", "param", "code"}} */
void k2_openai_write_error(k2_buf *out, const k2_openai_error *e);
/* Read such a body (an engine's 4xx); status is the caller's. Anything else becomes the message, cut. */
void k2_openai_read_error(const char *body, size_t n, int status, k2_openai_error *out);

/* ---- calls of tools ----------------------------------------------------------------------------------------------- */

/* One call: of a message, of an answer, or as much of it as a chunk brings. */
typedef struct k2_openai_call {
    uint32_t index;   /* among those of the answer */
    char *id, *name;  /* NULL: they came in an earlier chunk */
    k2_buf arguments; /* meant to be JSON; whatever the model has written */
} k2_openai_call;

/* A list of them that owns all it holds. All zero is an empty one. */
typedef struct k2_openai_calls {
    k2_openai_call *list;
    size_t count, capacity;
} k2_openai_calls;
void k2_openai_calls_clear(k2_openai_calls *c); /* and frees */
/* A new call, or more of the one with that index: id and name (NULL: none yet, or known) and n bytes of arguments. False: it
 * would be one too many. */
bool k2_openai_calls_add(k2_openai_calls *c, uint32_t index, const char *id, const char *name, const char *arguments, size_t n);
bool k2_openai_calls_append(k2_openai_calls *c, const k2_openai_call *calls, size_t count);

/* ---- requests --------------------------------------------------------------------------------------------------- */

typedef struct k2_openai_message {
    char *role;    /* "system", "user", "assistant", "developer", "tool" */
    char *content; /* UTF-8; text parts of a content list are put one behind another; "" for an assistant that only calls */
    size_t content_bytes;
    char *name;            /* NULL: none */
    char *tool_call_id;    /* of a tool's message, and only there: the call that it answers */
    k2_openai_calls calls; /* of an assistant's */
} k2_openai_message;

typedef struct k2_openai_ext {
    bool present; /* the body has a "k2" object */
    bool has_trajectory, has_group, has_digest, has_seed;
    bool train;      /* only an engine that holds the digest in force may answer */
    bool repetition; /* end the sequence when it repeats itself */
    bool resumed;    /* it goes on with an answer that broke off between two chunks: text that was held back there is still to be told */
    bool calls;      /* completions: answered as a chat with tools, for such a one is resumed */
    uint64_t trajectory, group, seed;
    uint64_t position; /* index, within the trajectory's generated tokens, of the first token to generate */
    k2_digest digest;
} k2_openai_ext;

typedef struct k2_openai_bias {
    uint32_t id;
    double add; /* -100 .. 100, to the id's logit */
} k2_openai_bias;

typedef struct k2_openai_request {
    bool chat, stream, include_usage;
    bool logprobs;         /* log-probability of each generated token is wanted */
    uint32_t top_logprobs; /* and of so many likeliest ones at its position; completions: the number in "logprobs" */
    bool has_prompt_logprobs;
    uint32_t prompt_logprobs; /* likeliest tokens told of each position of the prompt, besides its own */
    bool echo;             /* the answer's text and log-probabilities begin with the prompt's */
    uint32_t n;            /* choices: 1 when not given */
    bool tokens_as_ids;    /* tokens in logprobs are always "token_id:N" */
    bool return_token_ids; /* given by name, or k2 is present */
    bool ignore_eos;
    bool has_max_tokens, has_temperature, has_top_p, has_top_k, has_seed;
    char *model; /* NULL when not given */
    /* completions: exactly one of text and ids; chat: messages */
    char *prompt_text;
    size_t prompt_bytes;
    uint32_t *prompt_ids;
    size_t prompt_ids_count;
    k2_openai_message *messages;
    size_t message_count;
    char *tools;           /* their declaration as it came, JSON that k2_json_sorted takes; NULL: none */
    bool tool_choice_none; /* answers are text, whatever they look like */
    bool one_call;         /* parallel_tool_calls is false */
    uint32_t max_tokens;        /* 1 .. K2_OPENAI_TOKENS_MAX; 0 where only the prompt is asked about; in chat also given as max_completion_tokens */
    double temperature, top_p;  /* 1 and 1 when not given; 0 <= temperature <= 100, 0 < top_p <= 1 */
    int32_t top_k;              /* 0 when not given: off; -1 is read as 0 */
    double min_p;               /* 0 when not given: off */
    double frequency_penalty, presence_penalty; /* -2 .. 2, 0 when not given */
    double repetition_penalty;  /* 0.01 .. 100, 1 when not given */
    k2_openai_bias *bias;
    size_t bias_count;
    uint64_t seed;
    char *stops[K2_OPENAI_STOPS_MAX];
    size_t stop_count;
    uint32_t stop_ids[K2_OPENAI_STOPS_MAX];
    size_t stop_id_count;
    bool include_stop;          /* a stop string belongs to the answer's text */
    uint32_t min_tokens;        /* before so many generated tokens (those before k2.position count) nothing ends the answer */
    k2_openai_ext k2;
    /* Parameters that are not known here, as they stood, `"a":1,"b":[2]` without braces; NULL when none. A proxy passes them
     * on, the built-in engine refuses them (k2_openai_refuse_extra). */
    char *extra;
} k2_openai_request;

/* k2_openai_parse_request - read a body, strictly.
 *
 * memory   out owns its strings; k2_openai_request_fini frees them. On an error out is empty and need not be finished
 * keeps    `user`, `store`, `metadata`, `service_tier` and other names without a say in the tokens are accepted and dropped;
 *          best_of, suffix, response_format and the like only at the value that changes nothing; tool_choice is "none" or "auto"
 * errors   false with err (status 400, param names the place): not JSON, wrong type, out of range, duplicate keys, not UTF-8
 * tests    tests/unit/http/openai_test.c
 */
bool k2_openai_parse_request(const char *body, size_t n, bool chat, k2_openai_request *out, k2_openai_error *err);
void k2_openai_request_fini(k2_openai_request *r);
/* For an engine that knows no further parameters: false and err when r->extra has one, but for those of other engines (skip_special_tokens,
 * add_generation_prompt, ...) at the value that changes nothing. */
bool k2_openai_refuse_extra(const k2_openai_request *r, k2_openai_error *err);

/* How a request goes on from tokens that were generated before, by an engine that is gone. */
typedef struct k2_openai_resume {
    const uint32_t *prompt_ids; /* the prompt as that engine gave it in prompt_token_ids; NULL: the request's own prompt_ids */
    size_t prompt_ids_count;
    const uint32_t *ids; /* generated so far; fewer than max_tokens */
    size_t ids_count;
} k2_openai_resume;

/* k2_openai_write_request - the body that parses into r (extra included), or the one that continues it.
 *
 * keeps    with resume (NULL: none) the body is always one of /v1/completions: its prompt is the prompt's ids and the ids so
 *          far, max_tokens is less by their count, and k2.position, where k2 is present, is more by it. An engine that gets a
 *          position p > 0 may take the last p ids of the prompt for generated ones (to go on in the middle of a character or
 *          of a stop string)
 */
void k2_openai_write_request(k2_buf *out, const k2_openai_request *r, const k2_openai_resume *resume);

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* One of the likeliest tokens at a position. */
typedef struct k2_openai_top {
    const char *text; /* as of k2_openai_token */
    float logprob;
    size_t text_at;   /* the list's own */
} k2_openai_top;

/* A token as "logprobs" tells of it. */
typedef struct k2_openai_token {
    const char *text;          /* its own text; "token_id:N" where it has none that is valid UTF-8 alone */
    float logprob;             /* NaN (JSON: null): there is none, as for a prompt's first token */
    uint64_t offset;           /* characters (code points) of the answer's text in front of its own */
    const k2_openai_top *tops; /* likeliest first; NULL: none */
    size_t top_count;
    size_t text_at, tops_at;   /* the list's own */
} k2_openai_token;

/* A growing list of them; owns all it holds. What k2_openai_list_tokens gave is valid until the next change. */
typedef struct k2_openai_list {
    k2_buf text;
    k2_openai_token *tokens;
    k2_openai_top *tops;
    size_t count, cap, top_count, top_cap;
} k2_openai_list;
void k2_openai_list_init(k2_openai_list *l);
void k2_openai_list_fini(k2_openai_list *l);
void k2_openai_list_clear(k2_openai_list *l);
void k2_openai_list_token(k2_openai_list *l, const char *text, float logprob, uint64_t offset);
void k2_openai_list_top(k2_openai_list *l, const char *text, float logprob); /* one more of the last token */
void k2_openai_list_append(k2_openai_list *l, const k2_openai_token *tokens, size_t count);
const k2_openai_token *k2_openai_list_tokens(k2_openai_list *l);

typedef struct k2_openai_answer {
    bool chat;
    uint32_t index; /* of the choice */
    const char *id;    /* "cmpl-..." */
    const char *model;
    uint64_t created;  /* seconds since 1970 */
    const char *text;  /* text of these tokens; bytes that are not UTF-8 are written as U+FFFD */
    size_t text_bytes;
    const uint32_t *ids;   /* NULL: no token_ids in the answer */
    const float *logprobs; /* NULL: none in the answer; otherwise one for each id */
    size_t count;          /* of ids and logprobs */
    const k2_openai_token *tokens; /* NULL: only what `logprobs` says; otherwise written in its place */
    size_t token_count;    /* with echo the prompt's, too */
    const char *prompt_logprobs; /* JSON; NULL: none in the answer */
    const uint32_t *prompt_ids; /* NULL: no prompt_token_ids in the answer */
    size_t prompt_ids_count;
    const k2_openai_call *calls; /* chats: of tools; beside the text */
    size_t call_count;
    const char *finish_reason; /* NULL: not finished */
    const char *stop_text; /* the stop string that ended it; NULL: none did */
    bool has_stop_id;
    uint32_t stop_id; /* the token that ended it, where the request had named it */
    bool first;                /* first chunk of a stream (chat: carries the role) */
    bool has_usage;
    uint64_t prompt_tokens, completion_tokens;
    bool has_cached; /* told with the usage, and in a stream's first chunk beside the version */
    uint64_t cached_tokens; /* of the prompt's: they had been computed for others */
    bool has_k2; /* version and digest are there */
    uint64_t version;
    k2_digest digest;
} k2_openai_answer;

/* One JSON object: a whole response, or a chunk (wrap it with k2_sse_write; the stream ends with the data "[DONE]"). Floats are
 * %.9g, so that an f32 survives bit for bit; a -inf is written as -3.4028235e+38, JSON has no infinity. A chunk with has_usage
 * and without finish_reason, text and ids is the usage chunk: its choices are empty. */
void k2_openai_write_answer(k2_buf *out, const k2_openai_answer *a);
/* A whole response of several choices; what is not a choice's is that of the first. */
void k2_openai_write_choices(k2_buf *out, const k2_openai_answer *choices, size_t count);
void k2_openai_write_chunk(k2_buf *out, const k2_openai_answer *a);

/* What was read of an answer or a chunk; owns its memory, reused from one read to the next. */
typedef struct k2_openai_parsed {
    k2_openai_answer a; /* points into the members below; strings are "" when absent, finish_reason NULL when null */
    k2_buf text;        /* all strings */
    uint32_t *ids, *prompt_ids;
    float *logprobs;
    k2_openai_list list; /* of a.tokens: there where each token came with its place in the text */
    k2_openai_calls calls;
    size_t ids_cap, prompt_ids_cap, logprobs_cap;
} k2_openai_parsed;
void k2_openai_parsed_init(k2_openai_parsed *p);
void k2_openai_parsed_fini(k2_openai_parsed *p);
/* k2_openai_parse_answer - read a whole answer or a chunk, completions or chat, of our engines or of others'.
 *
 * memory   out->a stays valid until the next parse into it
 * keeps    fields that are absent are empty; unknown ones are skipped; only choices[0] is read; an {"error": ...} object (vLLM
 *          sends it in mid-stream) is PEER_REFUSED with its message
 * errors   PEER_PROTOCOL: not JSON, a wrong type, as many logprobs as ids are not there
 */
k2_code k2_openai_parse_answer(const char *body, size_t n, k2_openai_parsed *out, k2_error *err);

/* {"object":"list","data":[{"id":model,"object":"model","created":..,"owned_by":"k2rl"}]} */
void k2_openai_write_models(k2_buf *out, const char *const *models, size_t count, uint64_t created);
/* An engine's answer to GET /health: {"status":"ok","k2":{"version":..,"digest":".."}}; without k2 (has_k2 false) when it
 * holds no weights. */
void k2_openai_write_health(k2_buf *out, bool has_k2, uint64_t version, k2_digest digest);
/* Reads version and digest of such an answer (of the "k2" object or of the top level); false where there are none, as with
 * others' engines, whose body may be anything. */
bool k2_openai_read_health(const char *body, size_t n, uint64_t *version, k2_digest *digest);
/* A u64 as a JSON number up to 2^53, as a decimal string beyond. */
void k2_openai_write_u64(k2_buf *out, uint64_t v);

#endif
