/* reward_child - scores answers: by a match at once, or by the user's command, one item at a time; see reward_int.h.
 *
 * A command that hangs, ends or writes nonsense is killed with its process group and started anew for the next item. A process
 * that was given up still has callbacks coming: it is cut off from the rewarder (`owner` is NULL) and frees itself when its
 * pipe has closed and it has been reaped. */
#include "common/flight/flight.h"
#include "rollout/reward_int.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define GRACE_NS K2_NS_PER_S /* from the end of its output to its own: the exit status comes behind */
#define TRIES    2 /* of one item, when the command ends or talks nonsense: it may have been the item before that made it */

typedef struct call {
    k2i_score_batch *batch;
    uint32_t next_item;
    void (*on_done)(void *arg);
    void *arg;
    struct call *prev, *next;
} call;

typedef struct proc {
    k2i_rewarder *owner; /* NULL: given up */
    k2_child *child;     /* NULL once reaped */
    bool closed;         /* its pipe */
    k2_timer *grace;     /* from there to its end */
    int exit_code, term_signal;
    k2_buf line;
} proc;

struct k2i_rewarder {
    k2_loop *loop;
    k2_log *log;
    enum { EXACT, NUMERIC, COMMAND } kind;
    double tolerance;
    uint64_t timeout_ms;
    k2_config_list command;
    call *first, *last;
    uint32_t waiting; /* items */
    proc *proc;
    k2_timer *timer;
    /* the item in work */
    bool busy;
    call *current; /* NULL: its caller has gone, only the answer is awaited */
    uint64_t trajectory, since_ns;
    uint64_t flight; /* in the flight recorder */
    uint32_t tries;
    bool pumping;
};

static void pump(k2i_rewarder *r);

/* ---- the queue ---------------------------------------------------------------------------------------------------------- */

static void call_remove(k2i_rewarder *r, call *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        r->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    else
        r->last = c->prev;
    r->waiting -= c->batch->count - c->next_item;
    k2_free(c);
}

static void attempt_over(const k2i_rewarder *r, bool answered)
{
    k2_flight_finish(K2_FLIGHT_REWARD, r->flight, r->trajectory, r->tries, answered, 0);
}

/* The item in work has a score, or the reason why it has none. */
static void settle(k2i_rewarder *r, bool ok, double reward, const char *detail)
{
    call *c = r->current;
    attempt_over(r, ok);
    r->busy = false;
    r->current = NULL;
    r->tries = 0;
    k2_timer_stop(r->timer);
    r->timer = NULL;
    if (!c) return;
    k2i_score *s = &c->batch->scores[c->next_item++];
    r->waiting--;
    s->ok = ok;
    s->reward = reward;
    snprintf(s->detail, sizeof s->detail, "%s", detail);
    if (!ok) K2_LOG_WARN(r->log, "no reward trajectory=%llu: %s", (unsigned long long)s->trajectory, detail);
    if (c->next_item < c->batch->count) return;
    void (*on_done)(void *) = c->on_done;
    void *arg = c->arg;
    call_remove(r, c);
    on_done(arg);
}

/* ---- the process -------------------------------------------------------------------------------------------------------- */

static void proc_free_if_over(proc *p)
{
    if (p->child || !p->closed) return;
    k2_buf_fini(&p->line);
    k2_free(p);
}

static void give_up(k2i_rewarder *r)
{
    proc *p = r->proc;
    if (!p) return;
    r->proc = NULL;
    p->owner = NULL;
    k2_timer_stop(p->grace);
    p->grace = NULL;
    if (p->child) k2_child_kill(p->child, SIGKILL);
}

/* The item in work was not answered, perhaps through the fault of the item before it: ask a fresh process, once. */
static void retry_or_settle(k2i_rewarder *r, const char *why)
{
    if (++r->tries < TRIES && r->current) {
        K2_LOG_WARN(r->log, "%s; it is started anew", why);
        attempt_over(r, false);
        r->busy = false; /* pump takes the same item again */
        r->current = NULL;
        k2_timer_stop(r->timer);
        r->timer = NULL;
    } else {
        settle(r, false, 0, why);
    }
}

static void ended(k2i_rewarder *r, const proc *p)
{
    char why[K2I_SCORE_DETAIL_MAX];
    if (p->term_signal)
        snprintf(why, sizeof why, "the reward command was ended by signal %d before it answered", p->term_signal);
    else
        snprintf(why, sizeof why, "the reward command ended with status %d before it answered", p->exit_code);
    r->proc = NULL;
    if (r->busy) retry_or_settle(r, why);
    pump(r);
}

static void over(proc *p)
{
    if (p->child || !p->closed) return;
    if (p->owner) ended(p->owner, p);
    p->owner = NULL;
    proc_free_if_over(p);
}

static void on_exit(void *arg, int exit_code, int term_signal)
{
    proc *p = arg;
    k2_timer_stop(p->grace);
    p->grace = NULL;
    p->child = NULL;
    p->exit_code = exit_code;
    p->term_signal = term_signal;
    over(p);
}

static void on_grace(void *arg)
{
    proc *p = arg;
    k2_timer_stop(p->grace);
    p->grace = NULL;
    if (p->child) k2_child_kill(p->child, SIGKILL); /* one that closes its output has nothing more to say */
}

static void on_close(void *arg, k2_code why, const char *text)
{
    proc *p = arg;
    (void)why;
    (void)text;
    p->closed = true;
    if (p->child && p->owner) p->grace = k2_timer_start(p->owner->loop, GRACE_NS, 0, on_grace, p);
    over(p);
}

/* What it writes can not be an answer. */
static void nonsense(k2i_rewarder *r, const char *text)
{
    char why[K2I_SCORE_DETAIL_MAX];
    snprintf(why, sizeof why, "the reward command's output: %.200s", text);
    give_up(r);
    if (r->busy)
        retry_or_settle(r, why);
    else
        K2_LOG_WARN(r->log, "%s", why);
    pump(r);
}

static void on_line(k2i_rewarder *r, const char *line, size_t n)
{
    double reward;
    k2_error err;
    if (!r->busy) {
        nonsense(r, "found a line without an item to answer");
    } else if (k2i_score_parse_line(line, n, r->trajectory, &reward, &err) != K2_OK) {
        nonsense(r, err.text);
    } else {
        settle(r, true, reward, "");
        pump(r);
    }
}

static void on_read(void *arg, const char *data, size_t n)
{
    proc *p = arg;
    while (n > 0 && p->owner) {
        const k2_code code = k2i_score_line(&p->line, &data, &n);
        if (code == K2_LIMIT) nonsense(p->owner, "found a line that is too long");
        if (code != K2_OK) return;
        k2_buf line = p->line; /* the answer may end this process, not this line */
        k2_buf_init(&p->line, K2I_SCORE_LINE_MAX);
        on_line(p->owner, line.data ? line.data : "", line.len);
        k2_buf_fini(&line);
    }
}

static const k2_stream_ops io_ops = {.on_read = on_read, .on_close = on_close};

static bool spawn(k2i_rewarder *r, k2_error *err)
{
    const char *argv[K2_CONFIG_LIST_MAX + 1] = {NULL};
    for (uint32_t i = 0; i < r->command.count; i++) argv[i] = r->command.item[i];
    proc *p = k2_alloc(sizeof *p);
    p->owner = r;
    k2_buf_init(&p->line, K2I_SCORE_LINE_MAX);
    static const char *const env[] = {"K2RL_TOKEN", NULL}; /* takes it away: the run's secret is no business of the command's */
    const k2_child_spec spec = {
        .argv = argv, .env = env, .io = &io_ops, .io_arg = p, .on_exit = on_exit, .arg = p, .guarded = true};
    p->child = k2_child_spawn(r->loop, &spec, err);
    if (!p->child) {
        k2_free(p);
        return false;
    }
    K2_LOG_INFO(r->log, "started the reward command pid=%ld", (long)k2_child_pid(p->child));
    r->proc = p;
    return true;
}

/* ---- one item after the other ----------------------------------------------------------------------------------------------
 */

static void on_timeout(void *arg)
{
    k2i_rewarder *r = arg;
    char why[K2I_SCORE_DETAIL_MAX];
    k2i_rewarder_state s;
    k2i_rewarder_state_get(r, &s);
    K2_LOG_WARN(r->log,
                "wait: deadline passed: trajectory %llu for its reward: the reward command pid=%ld since=%.1fs, waiting=%u",
                (unsigned long long)s.trajectory, (long)s.pid, (double)(k2_loop_now_ns(r->loop) - s.since_ns) / 1e9, s.waiting);
    snprintf(why, sizeof why, "the reward command gave no answer within %llu ms", (unsigned long long)r->timeout_ms);
    give_up(r);
    settle(r, false, 0, why);
    pump(r);
}

static void ask(k2i_rewarder *r)
{
    const k2i_score_item *item = &r->first->batch->items[r->first->next_item];
    r->busy = true;
    r->current = r->first;
    r->trajectory = item->trajectory;
    r->flight = k2_flight_id();
    k2_flight_start(K2_FLIGHT_REWARD, r->flight, r->trajectory, r->tries, K2_FLIGHT_NONE, 0);
    k2_error err;
    if (!r->proc && !spawn(r, &err)) {
        settle(r, false, 0, err.text);
        return;
    }
    k2_buf line;
    k2_buf_init(&line, 64u << 20);
    k2i_score_write_item(item, &line);
    r->since_ns = k2_loop_now_ns(r->loop);
    r->timer = k2_timer_start(r->loop, r->timeout_ms * K2_NS_PER_MS, 0, on_timeout, r);
    k2_conn *io = k2_child_io(r->proc->child);
    if (io) (void)k2_conn_write(io, line.data, line.len); /* a pipe that has closed shows in on_close */
    k2_buf_fini(&line);
}

/* Not recursive: an item that is settled at once, inside ask, only makes the loop here go round again. */
static void pump(k2i_rewarder *r)
{
    if (r->pumping) return;
    r->pumping = true;
    while (!r->busy && r->first) ask(r);
    r->pumping = false;
}

static void match(const k2i_rewarder *r, const k2i_score_item *item, k2i_score *s)
{
    s->ok = true;
    if (r->kind == EXACT)
        s->reward = k2i_reward_exact(item->text, item->answer);
    else
        s->ok = k2i_reward_numeric(item->text, item->answer, r->tolerance, &s->reward, s->detail);
}

k2_code k2i_rewarder_score(k2i_rewarder *r, k2i_score_batch *batch, void (*on_done)(void *arg), void *arg)
{
    if (r->kind != COMMAND || batch->count == 0) {
        for (uint32_t i = 0; i < batch->count; i++) match(r, &batch->items[i], &batch->scores[i]);
        on_done(arg);
        return K2_OK;
    }
    if (r->waiting + batch->count > K2I_SCORE_QUEUE_MAX) return K2_FULL;
    call *c = k2_alloc(sizeof *c);
    *c = (call){.batch = batch, .on_done = on_done, .arg = arg, .prev = r->last};
    if (r->last)
        r->last->next = c;
    else
        r->first = c;
    r->last = c;
    r->waiting += batch->count;
    pump(r);
    return K2_OK;
}

void k2i_rewarder_cancel(k2i_rewarder *r, const k2i_score_batch *batch)
{
    for (call *c = r->first; c; c = c->next) {
        if (c->batch != batch) continue;
        if (r->current == c) {
            r->current = NULL;
            r->tries = 0;
        }
        call_remove(r, c);
        return;
    }
}

/* Before the command stands its guard (k2_child_spec.guarded), whose only child it is. */
static pid_t command_pid(const k2i_rewarder *r)
{
    if (!r->proc || !r->proc->child) return 0;
    long guard = (long)k2_child_pid(r->proc->child), pid = 0;
    char path[96];
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/children", guard, guard);
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%ld", &pid) != 1) pid = 0;
    if (f) fclose(f);
    return (pid_t)(pid > 0 ? pid : guard);
}

void k2i_rewarder_state_get(const k2i_rewarder *r, k2i_rewarder_state *out)
{
    *out = (k2i_rewarder_state){.waiting = r->waiting,
                                .busy = r->busy,
                                .pid = command_pid(r),
                                .trajectory = r->trajectory,
                                .since_ns = r->since_ns,
                                .deadline_ns = r->since_ns + r->timeout_ms * K2_NS_PER_MS};
}

k2i_rewarder *k2i_rewarder_new(k2_loop *loop, const k2_config *config, k2_log *log)
{
    k2i_rewarder *r = k2_alloc(sizeof *r);
    r->loop = loop;
    r->log = log;
    r->kind = strcmp(config->reward_kind, "command") == 0   ? COMMAND
              : strcmp(config->reward_kind, "numeric") == 0 ? NUMERIC
                                                            : EXACT;
    r->tolerance = config->reward_tolerance;
    r->timeout_ms = config->reward_timeout_ms;
    r->command = config->reward_command;
    return r;
}

void k2i_rewarder_free(k2i_rewarder *r)
{
    if (!r) return;
    k2_timer_stop(r->timer);
    while (r->first) call_remove(r, r->first);
    give_up(r);
    k2_free(r);
}
