/* What the files of loop share: the objects behind the public names, all of them libuv handles with a head that tells their
 * kind. */
#ifndef K2_COMMON_LOOP_INT_H
#define K2_COMMON_LOOP_INT_H

#include "common/loop/loop.h"

#include <stdatomic.h>
#include <uv.h>

/* A libuv handle's `data` points to one of these heads: k2_loop_free walks the handles and must know what each one is. */
typedef enum k2i_kind { K2I_TIMER, K2I_CONN, K2I_LISTENER, K2I_SIGNAL, K2I_PLAIN } k2i_kind;

/* Circular list with a sentinel: an element can leave whichever list it is in. */
typedef struct k2i_link {
    struct k2i_link *next, *prev;
} k2i_link;

static inline void k2i_link_init(k2i_link *l)
{
    l->next = l->prev = l;
}
static inline void k2i_link_remove(k2i_link *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    k2i_link_init(l);
}
static inline void k2i_link_push(k2i_link *list, k2i_link *l)
{
    l->prev = list->prev;
    l->next = list;
    list->prev->next = l;
    list->prev = l;
}

typedef struct k2i_post {
    void (*fn)(void *arg);
    void *arg;
} k2i_post;

struct k2_loop {
    uv_loop_t uv;
    k2i_kind plain; /* head of the loop's own handles */
    uv_async_t wake;
    uv_signal_t child_signal;
    atomic_bool stop;
    bool ending, child_signal_on;
    uint32_t conns;

    uv_mutex_t inbox_lock; /* guards the four below */
    k2i_post *inbox;       /* ring of K2_INBOX_MAX */
    uint32_t inbox_head, inbox_count;

    k2i_link works; /* all that are not done */
    uint32_t works_n;
    k2i_link children; /* not reaped */
    char *read_buffer; /* K2_READ_BYTES, shared by all conns: libuv gives it back before it asks again */
};

struct k2_conn {
    k2i_kind kind;
    bool open, closing, closed, paused, eof, finishing, flush_close;
    k2_code why;
    k2_loop *loop;
    const k2_stream_ops *ops;
    void *arg;
    size_t queued, queue_max;
    struct dial *dial; /* only while dialing */
    k2_conn **slot;    /* a child's pointer to us, cleared when we go */
    char *text;        /* why, when it was no plain close */
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } u;
};

/* conn.c */
k2_conn *k2i_conn_new_tcp(k2_loop *loop);
/* A conn on a connected socket; takes the descriptor over. NULL when libuv refuses it (the descriptor is closed then). */
k2_conn *k2i_conn_new_fd(k2_loop *loop, int fd);
void k2i_conn_opened(k2_conn *c);
/* Begin the end of a conn; only the first call counts. `what` names the step, errnum is libuv's (0 = none). */
void k2i_conn_end(k2_conn *c, k2_code why, const char *what, int errnum);
void k2i_conn_final(k2_conn *c);
void k2i_conn_submit_pending(k2_conn *c);
k2_code k2i_code_of_uv(int errnum);

/* dial.c */
void k2i_dial_free(k2_conn *c);
bool k2i_dial_looking(const k2_conn *c); /* a name look-up that cannot be taken back is under way */
struct write_req;
struct write_req **k2i_dial_pending(k2_conn *c);
void k2i_listener_end(k2_listener *l);

/* child.c */
void k2i_children_end(k2_loop *loop);

#endif
