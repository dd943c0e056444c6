/* served - a server with a real engine under it, and a client that asks it: for the tests of this folder. */
#ifndef K2_TESTS_ROLLOUT_SERVED_INT_H
#define K2_TESTS_ROLLOUT_SERVED_INT_H

#include "rollout/server_int.h"

enum { CONTEXT = 200, REQUESTS = 6 };

extern k2_loop *loop;
extern k2i_server *server;
extern k2i_engine *engine;
extern k2_tokenizer *tokenizer;
extern k2_http_client *http;

/* What the next setup makes; NULL: tokens are bytes, with the tiny model. */
typedef struct served_spec {
    const char *tokenizer; /* a directory */
    uint32_t vocab;        /* of the model */
    void (*fill)(k2_model *m, const k2_tokenizer *t); /* its weights */
} served_spec;
extern const served_spec *served;

int setup(void **state); /* a server without its engine */
int setup_attached(void **state);
int teardown(void **state);
void attach(void);

typedef struct reply {
    int status;
    k2_buf body;
    bool done;
} reply;
void begin(reply *r, const char *method, const char *path, const char *body);
reply ask(const char *method, const char *path, const char *body);

/* What an answer says, whole or put together from its events. */
typedef struct answer {
    uint32_t ids[CONTEXT], prompt[CONTEXT];
    float logps[CONTEXT];
    size_t count, prompt_count, events;
    char text[16 * CONTEXT + 64], reason[16], stop[32]; /* stop: "" or the reason, as a text or number */
    k2_openai_list tokens; /* freed by answer_fini */
    k2_openai_calls calls; /* so they */
    uint64_t usage_prompt, usage_new, usage_cached, cached, version; /* cached: as the first event has it */
    k2_digest digest;
    bool done;
} answer;
/* Of one choice; a stream's events of all choices come into one. */
answer complete(const char *path, const char *body, bool stream);
void add(answer *out, const char *json, size_t n);
void answer_fini(answer *a);
void assert_same(const answer *a, const answer *b);

#endif
