/* A worker's side of the control plane: greet, poll, report, and know when the master is gone. */
#include "common/flight/flight.h"
#include "common/net/net_int.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WELCOME_MS_DEFAULT 60000u
#define RETRY_NS           (100 * K2_NS_PER_MS) /* after a refusal or a failure that came at once */
#define PACE_NS            (20 * K2_NS_PER_MS)  /* polls that are answered at once must not fill the line */
#define FLUSH_NS           (2 * K2_NS_PER_S)

typedef enum state { STATE_GREETING, STATE_POLLING, STATE_LOST } state;

typedef struct gauge {
    char name[K2_WIRE_NAME_MAX];
    double value;
} gauge;

struct k2_net_worker {
    k2_loop *loop;
    k2_net_client *client;
    k2_net_worker_ops ops;
    void *arg;
    k2_log *log;
    state state;
    char *url, *role, *endpoint, *token;
    uint64_t index, nonce;
    uint64_t id, incarnation, lease_ns, answer_ns, poll_ns, last_cmd;
    uint64_t polls; /* id of the one that is out, for the flight recorder */
    k2_timer *lease, *poll_timer, *done_timer, *flush_timer;
    uint64_t checked_ns; /* when the lease was looked at last */
    bool checking;       /* the inbox is being looked through before the master is given up */
    bool done_sent;      /* the first of done is under way */
    k2_msg done[K2_NET_DONE_MAX];
    uint32_t done_n;
    char phase[K2_WIRE_NAME_MAX];
    gauge gauges[K2_WIRE_GAUGES_MAX];
    uint32_t gauges_n;
    void (*on_flush)(void *arg);
    void *flush_arg;
    uint32_t inside; /* callbacks of the owner, and posts, that will still look at this object */
    bool closed;
};

static void poll_send(void *arg);
static void done_send(void *arg);

/* The owner may close the worker in any callback, so the memory waits until the last of them is left. */
static void enter(k2_net_worker *w)
{
    w->inside++;
}

static void leave(k2_net_worker *w)
{
    if (--w->inside > 0 || !w->closed) return;
    for (uint32_t i = 0; i < w->done_n; i++) k2_msg_free(&w->done[i]);
    k2_free(w->url);
    k2_free(w->role);
    k2_free(w->endpoint);
    k2_free(w->token);
    k2_free(w);
}

static void stop_timers(k2_net_worker *w)
{
    k2_timer **timers[] = {&w->lease, &w->poll_timer, &w->done_timer, &w->flush_timer};
    for (size_t i = 0; i < K2_COUNT(timers); i++) {
        k2_timer_stop(*timers[i]);
        *timers[i] = NULL;
    }
}

static void lost(k2_net_worker *w, k2_code why, const char *text)
{
    if (w->state == STATE_LOST || w->closed) return;
    w->state = STATE_LOST;
    K2_LOG_WARN(w->log, "master is lost: %s", text);
    k2_flight_mark(K2_FLIGHT_LOST, why, 0, 0, 0);
    stop_timers(w);
    w->ops.on_lost(w->arg, why, text);
}

static void later(k2_net_worker *w, k2_timer **timer, uint64_t delay_ns, void (*fn)(void *arg))
{
    if (w->state == STATE_LOST || w->closed) return;
    if (*timer)
        k2_timer_restart(*timer, delay_ns, 0);
    else
        *timer = k2_timer_start(w->loop, delay_ns, 0, fn, w);
}

/* ---- lease -------------------------------------------------------------------------------------------------------- */

static bool lease_over(k2_net_worker *w)
{
    return k2_loop_now_ns(w->loop) - w->answer_ns > w->lease_ns;
}

/* Runs behind all that was in the inbox when the lease seemed over. */
static void lease_decide(void *arg)
{
    k2_net_worker *w = arg;
    w->checking = false;
    if (!w->closed && w->state == STATE_POLLING && lease_over(w)) {
        char text[K2_NET_URL_MAX + 64];
        snprintf(text, sizeof text, "no answer from %s for %llu ms", w->url, (unsigned long long)(w->lease_ns / K2_NS_PER_MS));
        lost(w, K2_TIMEOUT, text);
    }
    leave(w);
}

/* A process that was stopped, or had no processor for a while, has not listened: what the master said meanwhile waits in the
 * sockets, and it is that which shall decide (most often: "fenced"), not our own absence. A quarter of a lease is given for it.
 */
static void lease_absence(k2_net_worker *w)
{
    uint64_t now = k2_loop_now_ns(w->loop), grace = w->lease_ns - w->lease_ns / 4;
    if (now - w->checked_ns > w->lease_ns / 2 && now - w->answer_ns > grace) w->answer_ns = now - grace;
    w->checked_ns = now;
}

static void lease_check(void *arg)
{
    k2_net_worker *w = arg;
    lease_absence(w);
    if (w->checking || !lease_over(w)) return;
    /* This thread may have been held up itself, with the answer waiting in the inbox. */
    w->checking = true;
    enter(w);
    if (k2_loop_post(w->loop, lease_decide, w) == K2_OK) return;
    w->checking = false;
    leave(w);
}

/* ---- what every reply goes through ---------------------------------------------------------------------------------- */

/* False when the reply ended the worker's life, or is none. */
static bool answered(k2_net_worker *w, k2_code code, const k2_msg *reply)
{
    if (w->closed || w->state == STATE_LOST) return false;
    if (code == K2_OK) w->answer_ns = k2_loop_now_ns(w->loop);
    if (code != K2_OK || reply->type != K2_MSG_FENCED) return code == K2_OK;
    lost(w, K2_FENCED, reply->fenced.text[0] ? reply->fenced.text : "another has taken this place");
    return false;
}

static k2_msg request(const k2_net_worker *w, k2_msg_type type)
{
    return (k2_msg){.type = type, .worker = w->id, .incarnation = w->incarnation};
}

/* ---- commands ----------------------------------------------------------------------------------------------------- */

static void command(k2_net_worker *w, const k2_msg *msg)
{
    if (msg->cmd <= w->last_cmd) return; /* came again because a reply was lost on the way */
    w->last_cmd = msg->cmd;
    w->ops.on_command(w->arg, msg);
}

static void poll_replied(void *arg, k2_code code, const k2_msg *reply)
{
    k2_net_worker *w = arg;
    enter(w);
    const char *answer = code == K2_OK ? k2_msg_name(reply->type) : k2_code_name(code);
    k2_flight_finish(K2_FLIGHT_POLL, w->polls, k2_flight_text(answer), k2_flight_text_at(answer, 8), w->last_cmd, 0);
    uint64_t pause = 0;
    if (!answered(w, code, reply)) {
        pause = RETRY_NS;
    } else if (k2_msg_class_of(reply->type) == K2_MSG_CLASS_COMMAND) {
        command(w, reply);
    } else {
        if (reply->type == K2_MSG_REFUSED) K2_LOG_WARN(w->log, "poll refused: %s", reply->refused.text);
        pause = w->answer_ns - w->poll_ns < PACE_NS ? PACE_NS : 0;
    }
    later(w, &w->poll_timer, pause, poll_send);
    leave(w);
}

static void poll_send(void *arg)
{
    k2_net_worker *w = arg;
    k2_wire_metric gauges[K2_WIRE_GAUGES_MAX];
    for (uint32_t i = 0; i < w->gauges_n; i++) gauges[i] = (k2_wire_metric){w->gauges[i].name, w->gauges[i].value};
    k2_msg msg = request(w, K2_MSG_POLL);
    msg.cmd = w->last_cmd;
    msg.poll = (k2_msg_poll){.phase = w->phase, .gauges = {gauges, w->gauges_n}};
    w->poll_ns = k2_loop_now_ns(w->loop);
    if (k2_net_request(w->client, &msg, w->lease_ns, poll_replied, w) != K2_OK) {
        later(w, &w->poll_timer, RETRY_NS, poll_send);
        return;
    }
    w->polls = k2_flight_id();
    k2_flight_start(K2_FLIGHT_POLL, w->polls, 0, 0, w->last_cmd, 0);
}

/* ---- reports ------------------------------------------------------------------------------------------------------ */

static void flushed(void *arg)
{
    k2_net_worker *w = arg;
    void (*fn)(void *arg) = w->on_flush;
    w->on_flush = NULL;
    k2_timer_stop(w->flush_timer);
    w->flush_timer = NULL;
    if (fn) fn(w->flush_arg);
}

static void done_pop(k2_net_worker *w)
{
    k2_msg_free(&w->done[0]);
    w->done_n--;
    memmove(&w->done[0], &w->done[1], w->done_n * sizeof w->done[0]);
}

static void done_replied(void *arg, k2_code code, const k2_msg *reply)
{
    k2_net_worker *w = arg;
    enter(w);
    w->done_sent = false;
    if (!answered(w, code, reply)) {
        later(w, &w->done_timer, RETRY_NS, done_send);
    } else if (reply->type == K2_MSG_ACK) {
        done_pop(w);
        if (w->done_n > 0)
            done_send(w);
        else if (w->on_flush)
            flushed(w);
    } else if (reply->type == K2_MSG_REFUSED && reply->refused.code == K2_FULL) {
        later(w, &w->done_timer, RETRY_NS, done_send);
    } else {
        /* Without this report the master would wait for ever: better to be replaced. */
        lost(w, K2_PEER_PROTOCOL, reply->type == K2_MSG_REFUSED ? reply->refused.text : "DONE was not acknowledged");
    }
    leave(w);
}

static void done_send(void *arg)
{
    k2_net_worker *w = arg;
    if (w->done_sent || w->done_n == 0 || w->state != STATE_POLLING || w->closed) return;
    w->done[0].worker = w->id;
    w->done[0].incarnation = w->incarnation;
    if (k2_net_request(w->client, &w->done[0], w->lease_ns, done_replied, w) == K2_OK)
        w->done_sent = true;
    else
        later(w, &w->done_timer, RETRY_NS, done_send);
}

void k2_net_worker_done(k2_net_worker *w, const k2_msg *done)
{
    K2_ASSERT(done->type == K2_MSG_DONE && done->cmd > 0);
    if (w->closed || w->state == STATE_LOST) return;
    K2_ASSERT(w->done_n < K2_NET_DONE_MAX);
    k2_msg_copy(&w->done[w->done_n++], done);
    done_send(w);
}

void k2_net_worker_flush(k2_net_worker *w, void (*fn)(void *arg), void *arg)
{
    K2_ASSERT(!w->on_flush);
    w->on_flush = fn;
    w->flush_arg = arg;
    w->flush_timer = k2_timer_start(w->loop, w->done_n > 0 ? FLUSH_NS : 0, 0, flushed, w);
}

/* ---- greeting ----------------------------------------------------------------------------------------------------- */

static void hello_replied(void *arg, k2_code code, const k2_msg *reply)
{
    k2_net_worker *w = arg;
    enter(w);
    if (!answered(w, code, reply)) {
        char text[K2_NET_URL_MAX + 64];
        snprintf(text, sizeof text, "no welcome from %s: %s", w->url, k2_code_text(code));
        lost(w, code == K2_OK ? K2_PEER_PROTOCOL : code, text);
    } else if (reply->type == K2_MSG_REFUSED) {
        lost(w, K2_PEER_REFUSED, reply->refused.text);
    } else if (reply->type != K2_MSG_WELCOME || reply->welcome.lease_ms == 0) {
        lost(w, K2_PEER_PROTOCOL, "HELLO was not answered with a WELCOME");
    } else {
        w->id = reply->worker;
        w->incarnation = reply->incarnation;
        w->lease_ns = reply->welcome.lease_ms * K2_NS_PER_MS;
        w->state = STATE_POLLING;
        w->checked_ns = k2_loop_now_ns(w->loop);
        w->lease = k2_timer_start(w->loop, w->lease_ns / 8, w->lease_ns / 8, lease_check, w);
        w->ops.on_welcome(w->arg, reply);
        later(w, &w->poll_timer, 0, poll_send);
    }
    leave(w);
}

static k2_code hello_send(k2_net_worker *w, uint64_t welcome_ms)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    k2_msg msg = {.type = K2_MSG_HELLO,
                  .hello = {.role = w->role,
                            .index = w->index,
                            .pid = (uint64_t)getpid(),
                            .host = host,
                            .nonce = w->nonce,
                            .endpoint = w->endpoint,
                            .token = w->token}};
    return k2_net_request(w->client, &msg, welcome_ms * K2_NS_PER_MS, hello_replied, w);
}

k2_net_worker *k2_net_worker_start(k2_loop *loop, const k2_net_worker_config *config, const k2_net_worker_ops *ops, void *arg,
                                   k2_error *err)
{
    K2_ASSERT(config->url && config->role && ops->on_welcome && ops->on_command && ops->on_lost);
    k2_net_client *client = k2_net_dial(loop, config->url, err);
    if (!client) return NULL;
    k2_net_worker *w = k2_alloc(sizeof *w);
    *w = (k2_net_worker){.loop = loop,
                         .client = client,
                         .ops = *ops,
                         .arg = arg,
                         .log = config->log,
                         .url = k2_strdup(config->url),
                         .role = k2_strdup(config->role),
                         .endpoint = k2_strdup(config->endpoint ? config->endpoint : ""),
                         .token = k2_strdup(config->token ? config->token : ""),
                         .index = config->index,
                         .nonce = config->nonce,
                         .phase = "start",
                         .inside = 1}; /* left in close */
    K2_ASSERT(hello_send(w, config->welcome_ms ? config->welcome_ms : WELCOME_MS_DEFAULT) == K2_OK);
    return w;
}

void k2_net_worker_status(k2_net_worker *w, const char *phase, const k2_wire_metric *gauges, uint32_t count)
{
    snprintf(w->phase, sizeof w->phase, "%s", phase);
    w->gauges_n = K2_MIN(count, K2_WIRE_GAUGES_MAX);
    for (uint32_t i = 0; i < w->gauges_n; i++) {
        snprintf(w->gauges[i].name, sizeof w->gauges[i].name, "%s", gauges[i].name);
        w->gauges[i].value = gauges[i].value;
    }
}

void k2_net_worker_record(k2_net_worker *w, const char *run_dir, const char *run_id, uint64_t kib)
{
    k2_error err;
    k2_flight_config config = {.dir = run_dir,
                               .role = w->role,
                               .index = (uint32_t)w->index,
                               .incarnation = w->incarnation,
                               .run_id = run_id,
                               .kib = kib};
    if (k2_flight_open(&config, &err) != K2_OK) K2_LOG_WARN(w->log, "the flight recorder stays off: %s", err.text);
    k2_flight_thread("loop");
}

uint64_t k2_net_worker_id(const k2_net_worker *w)
{
    return w->id;
}

uint64_t k2_net_worker_incarnation(const k2_net_worker *w)
{
    return w->incarnation;
}

void k2_net_worker_close(k2_net_worker *w)
{
    if (!w || w->closed) return;
    w->closed = true;
    stop_timers(w);
    k2_net_client_close(w->client);
    leave(w);
}
