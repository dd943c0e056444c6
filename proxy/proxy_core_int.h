/* proxy_core - the proxy's decisions: which engine serves a request, when it is sent again, when it is refused. Pure: an event
 * with its time in, a bounded list of actions out; nothing is allocated after new.
 *
 *   request:   REQUEST ──► queued ──SEND──► running ──DONE──► gone
 *                 │          ▲ │               │ └─FAILED, engine gone─► queued (resumed first)
 *                 │          │ └─deadline─► FAIL (503) ─► gone        └─ out of retries ─► FAIL (502) ─► gone
 *                 └─ full ─► FAIL (429)        └─CANCEL─► gone
 *
 *   engine:    joining ──healthy──► ready ──failures──► down ──healthy──► ready;   draining: finishes what it has
 *
 * A request is queued only while no engine may serve it: engines batch by themselves, so there is no cap for each. Load is
 * counted in tokens that may still have to be computed: prompt + what is left of max_tokens.
 *
 * No event looks at all engines: tournaments over their slots say who has the least load, whose probe is due, and over requests
 * whose patience ends next. An event costs O(log of the greater of engines and requests); a new gate, and a table that begins
 * anew, cost one look at every engine.
 *
 * memory   about 520 bytes a slot of an engine and 300 a request, besides 256 KiB for groups; bench: scale
 */
#ifndef K2_PROXY_PROXY_CORE_INT_H
#define K2_PROXY_PROXY_CORE_INT_H

#include "common/base/base.h"

#define K2I_PX_URL_MAX     256u  /* bytes of an engine's base URL with its terminator */
#define K2I_PX_ENGINE_BYTES 1200u /* of the core for each engine when it has two slots; held by bench/scale's test */
#define K2I_PX_ACTIONS_MAX 64u   /* of one step; when more are due, `more` says so */
#define K2I_PX_GROUPS      8192u /* groups whose engine is remembered; a power of two. Forgetting one costs a second prefill */
#define K2I_PX_NONE        UINT32_MAX
#define K2I_PX_BROKE_MAX   4u    /* engines that broke under one request and are told to who sent it */

/* A group stays on its engine while load(engine) <= FACTOR * load(least) + SLACK * cost of the request. */
#define K2I_PX_AFFINITY_FACTOR 2u
#define K2I_PX_AFFINITY_SLACK  8u /* requests: the samples of a usual group */

#define K2I_PX_PROBES_DOWN 2u /* failed health checks in a row: no new requests */
#define K2I_PX_PROBES_DEAD 4u /* failed health checks in a row: its requests go elsewhere */
#define K2I_PX_ERRORS_DOWN 3u /* answers 5xx in a row */

typedef enum k2i_px_engine_state {
    K2I_PX_FREE,     /* the slot is empty */
    K2I_PX_JOINING,  /* has not shown its health yet */
    K2I_PX_READY,    /* takes requests */
    K2I_PX_DRAINING, /* finishes what it has, gets nothing new */
    K2I_PX_DOWN      /* failed; back when it is healthy */
} k2i_px_engine_state;

typedef struct k2i_px_engine {
    uint64_t id, incarnation;
    char url[K2I_PX_URL_MAX];
    k2i_px_engine_state state;
    uint64_t version;
    k2_digest digest; /* of the weights that it echoed; zero: unknown */
    uint64_t load;    /* tokens that its requests may still need */
    uint32_t requests; /* running on it */
    uint32_t head;     /* list of them */
    uint32_t probe_fails, errors;
    uint32_t crowd; /* requests that were on it when its connections began to break; 0 = they hold */
    bool probing, leaving; /* leaving: forgotten when its probe has been answered */
    uint64_t probe_due_ns, probe_sent_ns, digest_set_ns, busy_until_ns, picked; /* busy_until 0: it is not */
    uint64_t served, failed; /* for metrics */
    uint32_t census;   /* as what engines.c has counted it */
    uint32_t life;     /* counts who had this slot: what was said of one before does not hold for it */
    uint32_t same;     /* next in its bucket of the hash over ids */
    uint64_t told;     /* the table that it was in last */
} k2i_px_engine;

typedef struct k2i_px_config {
    uint32_t engines_max;  /* slots; one whose probe is out when it goes keeps its slot until then. More engines are left out, with
                            * `engines_dropped` counting them */
    uint32_t requests_max; /* running and queued */
    uint32_t retries;      /* times that one request may be sent again after a failure */
    uint64_t wait_ns;      /* longest time without an engine */
    uint64_t health_ns;    /* between two probes of an engine */
    uint64_t busy_ns;      /* an engine that answered 429 gets nothing new for this long */
} k2i_px_config;

typedef enum k2i_px_event_kind {
    K2I_PX_TICK,     /* time passes; also after an outbox with `more` */
    K2I_PX_ENGINES,  /* the table, or a page of what has changed in it, from the master */
    K2I_PX_GATE,     /* the digest that training requests need from now on */
    K2I_PX_REQUEST,  /* a client's request; outbox.request is its number */
    K2I_PX_PROGRESS, /* tokens came */
    K2I_PX_DONE,     /* the answer is whole (or was a refusal that is the client's own fault) */
    K2I_PX_FAILED,   /* the engine failed it */
    K2I_PX_CANCEL,   /* the client went away, or the I/O half gave up */
    K2I_PX_HEALTH    /* a probe's result */
} k2i_px_event_kind;

typedef enum k2i_px_why {
    K2I_PX_REFUSED,      /* no connection: the engine is down */
    K2I_PX_BROKEN,       /* the connection ended in mid-answer, or spoke nonsense */
    K2I_PX_STALLED,      /* no byte for too long */
    K2I_PX_ERROR,        /* 5xx, or an error in the stream */
    K2I_PX_BUSY,         /* 429 or 503: not now */
    K2I_PX_WRONG_DIGEST  /* 409: it does not hold the weights */
} k2i_px_why;

typedef struct k2i_px_entry {
    uint64_t id, incarnation;
    const char *url;
    k2_digest digest;
    bool ready; /* false: has to show its health first */
    bool drain;
    bool gone;  /* to be forgotten: only id counts */
} k2i_px_entry;

/* An engine that was lost while a request was on it. */
typedef struct k2i_px_broke {
    uint64_t engine, incarnation;
    bool alone; /* nothing else was on it */
} k2i_px_broke;

typedef struct k2i_px_event {
    k2i_px_event_kind kind;
    uint64_t now_ns;
    uint32_t request; /* PROGRESS, DONE, FAILED, CANCEL */
    uint32_t engine;  /* HEALTH: its slot */
    union {
        struct {
            const k2i_px_entry *entries;
            size_t count;
            bool page; /* who is not in it stays as it is; else it is gone */
        } engines;
        struct {
            uint64_t version;
            k2_digest digest; /* zero: the gate is shut */
        } gate;
        struct {
            void *user;
            uint64_t prompt_tokens, max_tokens; /* estimates */
            uint64_t group;
            bool has_group, training, has_digest;
            uint32_t broke_max; /* engines lost under it before it is given back; 0 = only `retries` counts */
            k2_digest digest; /* zero with training: that of the gate */
        } req;
        struct {
            uint64_t tokens;
        } progress;
        struct {
            k2i_px_why why;
            bool final; /* the answer cannot be continued: what the client has of it cannot be made whole */
        } failed;
        struct {
            bool ok, refused; /* refused: nobody listens */
            bool has_digest;
            uint64_t version;
            k2_digest digest;
        } health;
    };
} k2i_px_event;

typedef enum k2i_px_action_kind {
    K2I_PX_SEND,  /* give the request to the engine; an upstream call that it still has is canceled first */
    K2I_PX_HOLD,  /* its upstream call is canceled; it waits for an engine */
    K2I_PX_FAIL,  /* answer the client with status; the request is gone */
    K2I_PX_PROBE  /* check the engine's health; HEALTH must follow, whatever happens */
} k2i_px_action_kind;

typedef struct k2i_px_action {
    k2i_px_action_kind kind;
    uint32_t request, engine;
    void *user;
    int status;             /* FAIL */
    uint32_t retry_after_s; /* FAIL with 429 and 503 */
    const char *text;       /* FAIL: a literal */
    k2i_px_broke broke[K2I_PX_BROKE_MAX]; /* FAIL: lost under the request, where its sender wants to know */
    uint32_t broke_count;
} k2i_px_action;

typedef struct k2i_px_outbox {
    k2i_px_action actions[K2I_PX_ACTIONS_MAX];
    uint32_t count;
    bool more;        /* step with TICK again once these are done */
    uint32_t request; /* of REQUEST: its number; K2I_PX_NONE when it was refused */
} k2i_px_outbox;

typedef struct k2i_px_stats {
    uint32_t running, queued, engines, ready;
    uint64_t outstanding; /* tokens, all engines */
    uint64_t admitted, refused, expired, retried, moved, done, canceled, failed, engines_dropped;
} k2i_px_stats;

/* Where one request stands. */
typedef struct k2i_px_request {
    bool running;         /* at an engine; else queued */
    uint32_t engine;      /* slot, K2I_PX_NONE when queued */
    uint64_t deadline_ns; /* queued: when it is given up */
    const char *waits;    /* queued: for what; a literal */
} k2i_px_request;

typedef struct k2i_px k2i_px;

/* memory   new allocates all that is ever needed */
k2i_px *k2i_px_new(const k2i_px_config *config);
void k2i_px_free(k2i_px *c);
void k2i_px_step(k2i_px *c, const k2i_px_event *ev, k2i_px_outbox *out);
/* The engine of a slot below k2i_px_engine_slots; its state is FREE where the slot is empty. Valid until the next step. */
const k2i_px_engine *k2i_px_engine_at(const k2i_px *c, uint32_t slot);
uint32_t k2i_px_engine_slots(const k2i_px *c);
const char *k2i_px_state_name(k2i_px_engine_state s);
/* The request must be in the core: between its REQUEST and its end. */
void k2i_px_request_get(const k2i_px *c, uint32_t request, k2i_px_request *out);
/* Digest and version of the gate; false when it is shut. */
bool k2i_px_gate(const k2i_px *c, uint64_t *version, k2_digest *digest);
void k2i_px_stats_get(const k2i_px *c, k2i_px_stats *out);
/* Entries looked at since new, for tests of what an event costs. */
uint64_t k2i_px_looks(const k2i_px *c);
/* Aborts when the books do not agree with themselves; for tests. */
void k2i_px_check(const k2i_px *c);

#endif
