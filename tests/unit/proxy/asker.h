/* asker - a client of the proxy: it asks, reads plain answers and streams into one form, and knows what a stub engine without
 * faults would have answered. Everything is for the loop's thread; what goes wrong fails the test.
 */
#ifndef K2_TESTS_UNIT_PROXY_ASKER_H
#define K2_TESTS_UNIT_PROXY_ASKER_H

#include "common/http/http.h"
#include "common/http/openai.h"
#include "common/loop/loop.h"

enum { TOKENS_MAX = 4096 };

typedef struct asker {
    k2_loop *loop;
    k2_http_client *client;
    char base[64]; /* "http://127.0.0.1:PORT" */
} asker;

/* One question and what has come of it so far. */
typedef struct answer {
    bool done, chat, raw, sse, saw_done, saw_error, first_role;
    k2_code code;
    int status, chunks;
    uint32_t ids[TOKENS_MAX], prompt_ids[TOKENS_MAX];
    float logprobs[TOKENS_MAX];
    size_t count, prompt_count;
    k2_buf text, body;
    char finish[24], id[64], stop[24];
    k2_openai_calls calls;
    bool has_usage, has_logprobs;
    uint64_t prompt_tokens, completion_tokens, version, cached;
    k2_sse events;
    k2_http_call *call;
    struct asker *by;
} answer;

/* A GET where body is NULL. r is written anew, and belongs to the call until it is done. */
void asker_ask(asker *by, answer *r, const char *path, const char *body);
void answer_finish(answer *r); /* runs the loop until it is done */
void answer_drop(answer *r);
/* It must be that of an engine without faults. */
void answer_expect_whole(const answer *r, const uint32_t *prompt, size_t prompt_count, size_t tokens);

#endif
