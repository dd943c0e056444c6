/* The state of proxy_core.c (requests) and engines.c (engines). */
#ifndef K2_PROXY_CORE_STATE_INT_H
#define K2_PROXY_CORE_STATE_INT_H

#include "proxy/proxy_core_int.h"

typedef enum k2i_px_req_state { REQ_FREE, REQ_QUEUED, REQ_RUNNING } k2i_px_req_state;

typedef struct k2i_px_req {
    k2i_px_req_state state;
    bool has_group, training, has_digest;
    bool give_back; /* too many engines were lost under it */
    bool must_hold; /* its upstream call still runs on an engine that it was taken from */
    void *user;
    uint64_t prompt_tokens, left; /* left: of max_tokens */
    uint64_t group, deadline_ns;
    k2_digest digest;
    uint32_t engine;
    uint32_t avoid, avoid_life; /* the engine that failed it last, while it is the same */
    uint32_t sent;              /* failures that used up a retry */
    uint32_t broke_max, broke_count;
    k2i_px_broke broke[K2I_PX_BROKE_MAX];
    uint32_t prev, next;        /* in the queue, or in its engine's list */
} k2i_px_req;

typedef struct k2i_px_group {
    uint64_t group;
    uint64_t engine_id, incarnation;
    bool used;
} k2i_px_group;

struct k2i_px {
    k2i_px_config config;
    k2i_px_engine *engines;
    k2i_px_req *reqs;
    uint32_t engine_top; /* slots from here on have never been used */
    uint32_t free_head;  /* of reqs, through next */
    uint32_t queue_head, queue_tail, queued_training, holds; /* holds: queued with must_hold */
    k2_least *late;      /* queued requests by deadline; one that is to be given back is late already */

    uint32_t *buckets, mask; /* engines by id */
    k2_set *free_slots;
    k2_least *open;      /* that take requests, by load, then by when they were picked last */
    k2_least *fit;       /* those of them that hold fit_digest */
    k2_digest fit_digest;
    k2_least *probes;    /* by when their health is to be asked */
    k2_least *busy;      /* by when they are it no more */
    uint64_t tables;

    k2i_px_group *groups;
    bool has_gate, look; /* look: the queue may have become servable */
    uint64_t gate_version, picks, now_ns, looks;
    k2_digest gate;
    k2i_px_stats stats;
};

/* ---- engines.c ---- */
void k2i_px_engines_new(k2i_px *c);
void k2i_px_engines_free(k2i_px *c);
/* An engine of which anything but its list has changed: it is put where it belongs. */
void k2i_px_engine_touch(k2i_px *c, k2i_px_engine *e);
/* The slot of an engine that is known and not leaving. */
uint32_t k2i_px_engine_find(const k2i_px *c, uint64_t id);
/* Who is busy no more takes requests again. */
void k2i_px_engines_wake(k2i_px *c);
/* From now on `fit` is about this digest. */
void k2i_px_fit(k2i_px *c, k2_digest digest);
/* The slot for a request, or K2I_PX_NONE. */
uint32_t k2i_px_pick(k2i_px *c, const k2i_px_req *r);
void k2i_px_group_remember(k2i_px *c, const k2i_px_req *r, const k2i_px_engine *e);
void k2i_px_down(k2i_px *c, k2i_px_engine *e);
void k2i_px_on_engines(k2i_px *c, const k2i_px_event *ev);
void k2i_px_on_health(k2i_px *c, const k2i_px_event *ev);
void k2i_px_engines_check(const k2i_px *c);

/* ---- proxy_core.c ---- */
uint64_t k2i_px_cost(const k2i_px_req *r);
/* An engine's requests go back to the head of the queue. */
void k2i_px_move_all(k2i_px *c, uint32_t slot);

#endif
