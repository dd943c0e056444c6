/* workers: children and control messages. A POLL is kept until there is a command or a third of the lease has passed. */
#include "master/io_int.h"
#include "master/words_int.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/flight/flight.h"

typedef struct k2m_proc {
    k2m_io *io;
    uint32_t worker;
    uint64_t incarnation;
    k2_launch_proc *proc;
    uint64_t pid;
    char *oom_file; /* where the kernel counts kills for lack of memory; NULL: nowhere that we can see */
    uint64_t oom_before;
    struct k2m_proc *next;
} k2m_proc;

/* ---- children -------------------------------------------------------------------------------------------------------------
 */

static char *log_path(const k2m_io *io, uint32_t worker)
{
    char name[K2_WIRE_NAME_MAX];
    k2m_worker_name(&io->core->workers[worker], name);
    return k2_asprintf("%s/logs/%s.log", io->run->config.run_dir, name);
}

static void proc_free(k2m_proc *p)
{
    for (k2m_proc **at = &p->io->slots[p->worker].procs; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    k2_free(p->oom_file);
    k2_free(p);
}

static void tell_words(k2m_io *io, uint32_t worker, const k2m_words *words)
{
    char name[K2_WIRE_NAME_MAX];
    k2m_worker_name(&io->core->workers[worker], name);
    for (uint32_t i = 0; i < words->count; i++) K2_LOG_INFO(io->log, "%s wrote: %s", name, words->lines[i]);
}

static void on_exit_of(void *arg, int exit_code, int term_signal)
{
    k2m_proc *p = arg;
    k2m_io *io = p->io;
    char bytes[K2M_TAIL_BYTES + 1];
    uint64_t oom_now = 0;
    k2m_words words;
    char *path = log_path(io, p->worker);
    k2m_words_find(bytes, k2m_words_read(path, bytes, K2M_TAIL_BYTES), term_signal != 0, &words);
    k2_free(path);
    k2m_event ev = {.type = K2M_EV_EXIT,
                    .worker = p->worker,
                    .incarnation = p->incarnation,
                    .exit_code = exit_code,
                    .signal = term_signal,
                    .pid = p->pid,
                    .text = words.last};
    k2_flight_mark(K2_FLIGHT_EXITED, p->worker + 1, p->incarnation, (uint64_t)exit_code, (uint64_t)term_signal);
    if (k2m_oom_read(p->oom_file, &oom_now) && oom_now > p->oom_before) ev.oom_kills = oom_now - p->oom_before;
    proc_free(p);
    if (exit_code || term_signal) tell_words(io, ev.worker, &words);
    k2m_io_event(io, &ev);
    const k2m_exit *e = k2m_exits_find(&io->core->exits, ev.incarnation);
    if (e && e->over) {
        k2m_exit dated = *e; /* the core's clock says nothing to those who read the file later */
        dated.at_ns = k2_wall_us() * 1000 - (k2_loop_now_ns(io->loop) - e->at_ns);
        k2m_exits_append(io->run->config.run_dir, &dated);
    }
}

static void reply(k2_net_call *call, k2_msg_type type)
{
    k2_net_reply(call, &(k2_msg){.type = type});
}

/* Its next POLL is due from now on: that is how a stopped process is seen. */
static void answer_poll(k2m_io *io, uint32_t worker, const k2_msg *msg)
{
    k2m_slot *s = &io->slots[worker];
    k2_net_reply(s->poll, msg);
    s->poll = NULL;
    k2_least_drop(io->polls, worker);
    io->core->workers[worker].owes_poll_ns = k2_loop_now_ns(io->loop);
}

/* What the process before left: its commands are void, and an answer to its POLL would be lost. */
static void clear_slot(k2m_io *io, uint32_t worker)
{
    k2m_slot *s = &io->slots[worker];
    if (s->poll) reply(s->poll, K2_MSG_NOP);
    s->poll = NULL;
    k2_least_drop(io->polls, worker);
    k2m_mail_drop(&s->mail);
}

void k2m_workers_launch(k2m_io *io, const k2m_action *a)
{
    clear_slot(io, a->worker);
    k2m_slot *slot = &io->slots[a->worker];
    const k2m_worker *w = &io->core->workers[a->worker];
    if (w->role == K2M_PROXY) k2m_calls_drop(io);
    k2_flight_mark(K2_FLIGHT_LAUNCH, k2_flight_text(k2m_role_name(w->role)), w->index, a->incarnation, 0);
    char index[16], nonce[24];
    snprintf(index, sizeof index, "%u", w->index);
    snprintf(nonce, sizeof nonce, "%llu", (unsigned long long)a->incarnation);
    const char *argv[] = {
        NULL, k2m_role_name(w->role), "--master", k2_net_server_url(io->server), "--index", index, "--nonce", nonce, NULL};
    char *path = log_path(io, a->worker);
    k2m_proc *p = k2_alloc(sizeof *p);
    *p = (k2m_proc){.io = io, .worker = a->worker, .incarnation = a->incarnation, .next = slot->procs};
    k2_launch_spec spec = {.role = k2m_role_name(w->role),
                           .index = w->index,
                           .argv = argv,
                           .token = io->token,
                           .log_path = path,
                           .on_exit = on_exit_of,
                           .arg = p};
    k2_error err = {0};
    p->proc = k2_launch_start(io->launch, &spec, &err);
    k2_free(path);
    if (p->proc) {
        slot->procs = p;
        p->pid = (uint64_t)k2_launch_pid(p->proc);
        p->oom_file = p->pid ? k2m_oom_file("/sys/fs/cgroup", (pid_t)p->pid) : NULL;
        (void)k2m_oom_read(p->oom_file, &p->oom_before);
        io->core->workers[a->worker].pid = p->pid; /* until its HELLO says it: for `why` */
        return;
    }
    k2_free(p);
    k2m_io_event(
        io, &(k2m_event){.type = K2M_EV_LAUNCH_FAILED, .worker = a->worker, .incarnation = a->incarnation, .text = err.text});
}

void k2m_workers_kill(k2m_io *io, const k2m_action *a)
{
    for (k2m_proc *p = io->slots[a->worker].procs; p; p = p->next)
        if (p->incarnation == a->incarnation) k2_launch_kill(p->proc, SIGKILL);
}

/* ---- messages
 * ---------------------------------------------------------------------------------------------------------------- */

void k2m_workers_admit(k2m_io *io, const k2m_action *a, k2_net_call *call)
{
    if (!call) return;
    k2_msg m = {.type = K2_MSG_REFUSED, .refused = {.code = a->code, .text = a->text}};
    if (a->type == K2M_ACT_ADMIT)
        m = (k2_msg){.type = K2_MSG_WELCOME,
                     .worker = a->worker + 1,
                     .incarnation = a->incarnation,
                     .welcome = {.lease_ms = io->run->config.master_lease_ms,
                                 .run_id = io->run->id,
                                 .config = io->config_json,
                                 .model = io->run->inputs.model,
                                 .tokenizer = io->run->inputs.tokenizer}};
    k2_net_reply(call, &m);
}

static void send_mail(k2m_io *io, uint32_t worker)
{
    const k2m_slot *s = &io->slots[worker];
    const k2_msg *command = k2m_mail_next(&s->mail);
    if (s->poll && command) answer_poll(io, worker, command);
}

void k2m_workers_command(k2m_io *io, const k2m_action *a)
{
    if (!k2m_core_current(io->core, a->worker + 1, a->incarnation)) return; /* it died meanwhile */
    k2_flight_mark(K2_FLIGHT_SENT, k2_flight_text(k2_msg_name(a->msg.type)), a->msg.cmd, a->worker + 1, a->incarnation);
    k2m_mail_put(&io->slots[a->worker].mail, &a->msg);
    send_mail(io, a->worker);
}

static void on_hello(k2m_io *io, k2_net_call *call, const k2_msg *msg)
{
    if (!k2_net_token_equal(io->token, msg->hello.token)) {
        K2_LOG_WARN(io->log, "a %.20s with a wrong token was refused", msg->hello.role);
        k2_net_reply(call, &(k2_msg){.type = K2_MSG_REFUSED, .refused = {.code = K2_PEER_REFUSED, .text = "wrong token"}});
        return;
    }
    io->hello = call;
    k2m_io_event(io, &(k2m_event){.type = K2M_EV_HELLO, .msg = msg});
    if (io->hello)
        k2_net_reply(io->hello, &(k2_msg){.type = K2_MSG_REFUSED, .refused = {.code = K2_CANCELED, .text = "the run ends"}});
    io->hello = NULL;
}

static void on_poll(k2m_io *io, k2_net_call *call, const k2_msg *msg)
{
    uint32_t worker = (uint32_t)msg->worker - 1;
    k2m_slot *s = &io->slots[worker];
    if (s->poll) reply(s->poll, K2_MSG_NOP); /* it asks anew: the old answer is not awaited any more */
    s->poll = call;
    k2_least_set(io->polls, worker, k2_loop_now_ns(io->loop), 0);
    io->core->workers[worker].owes_poll_ns = 0;
    k2m_mail_heard(&s->mail, msg->incarnation, msg->cmd);
    snprintf(io->core->workers[worker].phase, sizeof io->core->workers[worker].phase, "%s", msg->poll.phase);
    k2m_gauges_take(&io->core->workers[worker].gauges, &msg->poll.gauges, k2_loop_now_ns(io->loop));
    send_mail(io, worker);
    k2m_io_event(io, &(k2m_event){.type = K2M_EV_ALIVE, .worker = worker});
}

static void on_done(k2m_io *io, k2_net_call *call, const k2_msg *msg)
{
    uint32_t worker = (uint32_t)msg->worker - 1;
    const k2m_worker *w = &io->core->workers[worker];
    if (w->role == K2M_TRAINER && w->index == 0 && msg->cmd == w->cmd && msg->done.code == K2_OK &&
        (w->cmd_type == K2_MSG_TRAIN || w->cmd_type == K2_MSG_PRETRAIN))
        k2m_reporter_trainer(io->reporter, &msg->done.metrics);
    k2_flight_mark(K2_FLIGHT_DONE, k2_flight_text(k2_msg_name(w->cmd_type)), msg->cmd, msg->worker, msg->done.code);
    k2m_mail_heard(&io->slots[worker].mail, msg->incarnation, msg->cmd);
    reply(call, K2_MSG_ACK);
    k2m_io_event(io, &(k2m_event){.type = K2M_EV_ALIVE, .worker = worker});
    k2m_io_event(io, &(k2m_event){.type = K2M_EV_DONE, .worker = worker, .msg = msg});
}

/* Who has been replaced learns it here, whatever it asks: nothing of what it says is looked at. */
static void fence(k2m_io *io, k2_net_call *call, const k2_msg *msg)
{
    char text[K2M_TEXT_MAX] = "no such worker in this run", name[K2_WIRE_NAME_MAX];
    if (msg->worker >= 1 && msg->worker <= io->core->worker_count) {
        const k2m_worker *w = &io->core->workers[msg->worker - 1];
        k2m_slot *s = &io->slots[msg->worker - 1];
        k2m_worker_name(w, name);
        snprintf(text, sizeof text, "incarnation %llu of %s is over, %llu has its place", (unsigned long long)msg->incarnation,
                 name, (unsigned long long)w->incarnation);
        if (s->fenced != msg->incarnation) K2_LOG_WARN(io->log, "fenced: a %s was refused: %s", k2_msg_name(msg->type), text);
        s->fenced = msg->incarnation;
    }
    k2_net_reply(call, &(k2_msg){.type = K2_MSG_FENCED, .fenced = {.text = text}});
}

void k2m_workers_request(void *arg, k2_net_call *call, const k2_msg *msg)
{
    k2m_io *io = arg;
    if (msg->type == K2_MSG_HELLO) {
        on_hello(io, call, msg);
    } else if (msg->type == K2_MSG_WHY) {
        k2m_ask(io, call);
    } else if (msg->type == K2_MSG_TOP) {
        k2m_ask_top(io, call);
    } else if (!k2m_core_current(io->core, msg->worker, msg->incarnation)) {
        fence(io, call, msg);
    } else if (msg->type == K2_MSG_POLL) {
        on_poll(io, call, msg);
    } else if (msg->type == K2_MSG_DONE) {
        on_done(io, call, msg);
    } else {
        k2_net_reply(call, &(k2_msg){.type = K2_MSG_REFUSED, .refused = {.code = K2_BAD_INPUT, .text = "not a request"}});
    }
}

void k2m_workers_tick(k2m_io *io, uint64_t now_ns)
{
    uint64_t longest = io->run->config.master_lease_ms * K2_NS_PER_MS / 4;
    uint32_t i;
    while ((i = k2_least_first(io->polls)) != K2_PLACE_NONE && now_ns - k2_least_major(io->polls, i) >= longest)
        answer_poll(io, i, &(k2_msg){.type = K2_MSG_NOP});
}

void k2m_workers_probe(k2m_io *io)
{
    for (uint32_t i = 0; i < io->core->worker_count; i++)
        if (io->slots[i].poll) answer_poll(io, i, &(k2_msg){.type = K2_MSG_NOP});
}

void k2m_workers_fini(k2m_io *io)
{
    for (uint32_t i = 0; io->slots && i < io->core->worker_count; i++) {
        k2m_slot *s = &io->slots[i];
        k2m_mail_drop(&s->mail);
        while (s->procs) {
            k2_launch_abandon(s->procs->proc);
            proc_free(s->procs);
        }
    }
}
