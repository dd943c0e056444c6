/* generate_int - what the files of a completion share.
 *
 *   accept.c    a body becomes jobs, or an error
 *   generate.c  jobs, news and clients: from submit to the last byte
 *   text.c      tokens become text, up to a stop string
 *   calls.c     text becomes calls of tools (calls_int.h)
 *   tell.c      tokens become what "logprobs" says of them
 *
 * Nouns: a *generation* is one request of a client; a *choice* is one of its `n` answers, a job of the engine with its text.
 * Choices share nothing but what the client has asked for; their prompt's pages they share because the engine shares any.
 */
#ifndef K2_ROLLOUT_GENERATE_INT_H
#define K2_ROLLOUT_GENERATE_INT_H

#include "rollout/calls_int.h"
#include "rollout/server_int.h"

#define K2I_TEXT_MAX                                                                                                           \
    (64u << 20) /* bytes of one answer's text: a token is a few bytes, a context some hundred thousand tokens */
_Static_assert(K2I_TOPS_MAX == K2_OPENAI_TOPS_MAX, "what may be asked for is what is planned for");

/* A mark of a call in the text: there stands its name. */
typedef struct k2i_mark {
    size_t at;
    int32_t id;
} k2i_mark;

typedef struct k2i_choice {
    k2i_generation *g;
    k2i_job job;
    uint32_t index;
    k2_token_stream decoder;
    k2_buf text;      /* decoded and not sent; of a whole answer everything */
    size_t tail;      /* bytes at the beginning of `text` that were there before this request: they only serve to find stops */
    size_t echoed;    /* bytes at the beginning of `text` that are the prompt's: no stop string begins there */
    uint32_t decoded; /* tokens that `text` accounts for, prompt included */
    uint32_t sent;    /* tokens that were sent, prompt included */
    bool stopped;     /* a stop string was found: the answer ends with token number `decoded` */
    const char *stop; /* that one */
    k2i_calls calls;  /* in answers to chats with tools: what `text` says when it is sent */
    k2i_mark *marks;  /* of `text`, in order */
    size_t mark_count, mark_cap;
    bool over; /* on_news has seen its job finished: the job itself says so earlier, when its last tokens are no text yet */
    bool begun, ended;      /* its first event has left; so has its last */
    k2_token_stream teller; /* as decoder, of the tokens that were told of */
    uint64_t told_chars;    /* characters of their text */
} k2i_choice;

struct k2i_generation {
    k2i_server *s;
    k2_http_req *req; /* NULL: the answer has ended, or its client has gone; the jobs' ends are all that is awaited */
    k2i_choice *choices;
    uint32_t count, running; /* choices; of these, jobs that the engine still holds */
    bool chat, stream, usage, logprobs, echo, include_stop, prompt_logprobs;
    bool bare; /* only numbers are told of tokens */
    bool tokens_as_ids;
    bool calls; /* calls of tools are looked for */
    bool ignore_eos;
    uint32_t prompt_tops; /* likeliest tokens of "prompt_logprobs" */
    bool head;            /* the answer's status line has left */
    char id[40];
    uint64_t created, begin_ns;
    uint64_t flight, trajectory; /* in the flight recorder: id, 0 before it is admitted; what the proxy knows it by */
    char *stops[K2_OPENAI_STOPS_MAX];
    size_t stop_count, stop_longest;
    k2i_bias *bias;
    k2i_generation *prev, *next;
};

/* ---- generate.c ---- */
/* With `count` choices, among the server's; their requests have tokens and scores of these sizes and nothing else. */
k2i_generation *k2i_generation_new(k2i_server *s, const k2_openai_request *r, const k2_tokens *prompt, uint32_t new_max);

/* ---- accept.c ---- */
/* Append the ids of a chat's messages and tools. The errors of k2_tokenizer_render. */
k2_code k2i_chat_render(const k2_tokenizer *t, const k2_openai_request *r, k2_tokens *out, k2_error *err);
/* NULL with the error. */
k2i_generation *k2i_accept(k2i_server *s, const k2_openai_request *r, k2_openai_error *e);

/* ---- text.c ---- */
/* A continued request: the character, the stop string and the call that its last `position` tokens have begun; where answers with
 * echo begin. `resumed`: what was held back of their text, because it could become a stop string, has not been told. */
void k2i_text_prime(k2i_choice *c, uint64_t position, bool resumed);
/* Take in what the job has drawn. */
void k2i_text_decode(k2i_choice *c);
/* Bytes at the end of the text that may become a stop string. */
size_t k2i_text_held(const k2i_choice *c);
/* The first `bytes` behind the tail have been sent. */
void k2i_text_sent(k2i_choice *c, size_t bytes);
/* Of a chat with tools: these bytes go over to the choice's calls, as far as no mark is cut. `last`: nothing comes behind them. */
void k2i_text_parse(k2i_choice *c, size_t bytes, bool last);

/* ---- tell.c ---- */
/* Append to the list the tokens [from, to) of the choice, prompt included; they must come in order, each once. */
void k2i_tell(k2i_choice *c, uint32_t from, uint32_t to, k2_openai_list *out);
/* The text of the tokens [from, to) stands in front of what will be told. */
void k2i_tell_skip(k2i_choice *c, uint32_t from, uint32_t to);
/* The prompt's log-probabilities as vLLM writes them: [null, {"ID": {"logprob", "rank", "decoded_token"}, ...}, ...]. */
void k2i_tell_prompt(const k2i_choice *c, k2_buf *out);

#endif
