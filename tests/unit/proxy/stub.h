/* stub - an engine that draws its tokens from a hash: the next one is a function of all before it, so an answer that was put
 * together from two engines is right exactly when it equals the answer of one. It can be told to fail in every way. Asked with
 * tools it calls one, and what would be its text are the call's arguments. */
#ifndef K2_TESTS_PROXY_STUB_H
#define K2_TESTS_PROXY_STUB_H

#include "common/http/http.h"
#include "common/http/openai.h"
#include "common/loop/loop.h"

typedef struct stub_answer stub_answer;

typedef struct stub {
    /* How it behaves; may be changed at any time. */
    bool foreign;       /* no token ids, no k2 */
    bool whole_only;    /* answers whole, whatever is asked */
    bool sick;          /* /health is 503 */
    bool at_once;       /* all tokens in one event; otherwise one a millisecond */
    int status;         /* answers every completion with this, when not 0 */
    uint32_t die_after, stall_after, error_after; /* tokens of an answer; 0: never */
    uint32_t lose_end;                            /* not 0: die behind the last token */
    uint32_t fail_times; /* how many answers fail like that; then it works again */
    uint32_t stop_every; /* a token that this divides ends the answer with "stop"; 0: none does */
    bool has_digest;
    k2_digest digest;
    uint64_t cached; /* tokens of each prompt that it claims to have known; told with a digest */

    /* What it saw. */
    uint32_t requests, aborted, running, scores, healths;
    uint64_t tokens;
    char last_body[4096];

    k2_loop *loop;
    k2_http_server *server;
    k2_timer *pace;
    stub_answer *answers;
    k2_buf out, json;
    char url[64];
} stub;

void stub_start(stub *s, k2_loop *loop, uint16_t port);
/* As kill -9 would: all connections end, nobody listens. */
void stub_kill(stub *s);
void stub_stop(stub *s);

/* The answer that any one healthy stub gives to these prompt ids. */
uint32_t stub_next(const uint32_t *ids, size_t n);
float stub_logprob(const uint32_t *ids, size_t n);
char stub_char(uint32_t token);
/* Text prompts become these ids. */
size_t stub_encode(const char *text, size_t n, uint32_t *ids);

#endif
