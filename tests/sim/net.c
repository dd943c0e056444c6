/* net: the control plane. A worker sends a request again until it has the reply; the master remembers its last replies and
 * repeats them, so each request takes effect once although the network drops, repeats, delays and overtakes. */
#include <stdio.h>
#include <string.h>

#include "sim_int.h"

#define AGAIN_NS (60 * K2_NS_PER_MS)

/* ---- packets */

static void packet(sim *s, sim_kind kind, const sim_proc *p, const k2_msg *msg)
{
    bool lost = (kind == SIM_TO_MASTER ? p->mute_until_ns : p->deaf_until_ns) > s->now_ns;
    uint32_t copies = 1 + sim_fault(s, SIM_DUPLICATE, p->worker);
    for (uint32_t i = 0; i < copies; i++) {
        if (lost || sim_fault(s, SIM_DROP, p->worker)) {
            s->outcome->dropped++;
            continue;
        }
        sim_event *e = sim_at(s, kind, sim_latency_us(s, p->worker));
        e->proc = p->serial;
        e->worker = p->worker;
        e->life = s->life;
        k2_msg_copy(&e->msg, msg);
    }
}

/* ---- the worker's side */

void sim_request(sim *s, sim_proc *p, const k2_msg *msg)
{
    for (uint32_t i = 0; i < SIM_REQUESTS; i++) {
        if (p->requests[i].used) continue;
        p->requests[i].used = true;
        p->requests[i].sent_ns = s->now_ns;
        k2_msg_copy(&p->requests[i].msg, msg);
        p->requests[i].msg.seq = ++p->seq;
        packet(s, SIM_TO_MASTER, p, &p->requests[i].msg);
        return;
    }
    sim_break(s, SIM_CHECK_POOLS, "worker %u has more than %u requests to the master", p->worker, SIM_REQUESTS);
}

void sim_done(sim *s, sim_proc *p, uint64_t cmd, k2_code code, k2_digest digest, const char *locator)
{
    if (cmd == 0) return;
    const char *list[] = {locator};
    k2_msg m = {.type = K2_MSG_DONE,
                .worker = p->worker + 1,
                .incarnation = p->incarnation,
                .cmd = cmd,
                .done = {.code = (uint64_t)code, .text = "sim", .digest = digest}};
    if (locator) m.done.locators = (k2_wire_strs){.items = list, .count = 1};
    sim_request(s, p, &m);
}

static void poll(sim *s, sim_proc *p)
{
    if (p->polling) return;
    p->polling = true;
    k2_msg m = {.type = K2_MSG_POLL, .worker = p->worker + 1, .incarnation = p->incarnation, .cmd = p->last_cmd};
    m.poll.phase = "sim";
    sim_request(s, p, &m);
}

void sim_beat(sim *s, sim_proc *p)
{
    if (s->now_ns - p->heard_ns > s->config.master_lease_ms * K2_NS_PER_MS) {
        sim_proc_end(s, p, 0, true); /* no answer for a lease: another may have its place */
        return;
    }
    for (uint32_t i = 0; i < SIM_REQUESTS; i++) {
        if (!p->requests[i].used || s->now_ns - p->requests[i].sent_ns < AGAIN_NS) continue;
        p->requests[i].sent_ns = s->now_ns;
        packet(s, SIM_TO_MASTER, p, &p->requests[i].msg);
    }
    if (p->welcomed) poll(s, p);
    if (p->role == K2M_PROXY) sim_proxy_beat(s, p);
}

static void take_command(sim *s, sim_proc *p, const k2_msg *msg)
{
    if (msg->cmd <= p->last_cmd) return;
    p->last_cmd = msg->cmd;
    if (p->role == K2M_TRAINER)
        sim_trainer_command(s, p, msg);
    else if (p->role == K2M_ROLLOUT)
        sim_rollout_command(s, p, msg);
    else
        sim_proxy_command(s, p, msg);
}

void sim_to_worker(sim *s, sim_proc *p, const k2_msg *msg)
{
    uint32_t at = 0;
    while (at < SIM_REQUESTS && !(p->requests[at].used && p->requests[at].msg.seq == msg->seq)) at++;
    if (at == SIM_REQUESTS) return; /* a reply that came twice */
    if (p->requests[at].msg.type == K2_MSG_POLL) p->polling = false;
    p->requests[at].used = false;
    k2_msg_free(&p->requests[at].msg);
    p->heard_ns = s->now_ns;
    if (msg->type == K2_MSG_FENCED || msg->type == K2_MSG_REFUSED) {
        s->outcome->fenced++;
        sim_proc_end(s, p, 0, true);
        return;
    }
    if (msg->type == K2_MSG_WELCOME) p->welcomed = true;
    uint64_t serial = p->serial;
    if (k2_msg_class_of(msg->type) == K2_MSG_CLASS_COMMAND) take_command(s, p, msg);
    if (p->serial == serial && p->welcomed) poll(s, p);
}

/* ---- the master's side */

static void reply(sim *s, uint32_t worker, uint64_t proc, uint64_t seq, const k2_msg *msg)
{
    sim_slot *slot = &s->slots[worker];
    uint32_t at = slot->reply_at++ % SIM_REPLIES;
    k2_msg_free(&slot->replies[at].msg);
    slot->replies[at].proc = proc;
    slot->replies[at].seq = seq;
    k2_msg_copy(&slot->replies[at].msg, msg);
    slot->replies[at].msg.seq = seq;
    sim_proc *p = sim_proc_find(s, proc);
    if (p) packet(s, SIM_TO_WORKER, p, &slot->replies[at].msg);
}

/* What the process before left: its commands are void, and an answer to its POLL would be lost. */
void sim_slot_clear(sim *s, uint32_t worker)
{
    s->slots[worker].polled = false;
    k2m_mail_drop(&s->slots[worker].mail);
}

static void send_mail(sim *s, uint32_t worker)
{
    sim_slot *slot = &s->slots[worker];
    const k2_msg *command = k2m_mail_next(&slot->mail);
    if (!slot->polled || !command) return;
    slot->polled = false;
    reply(s, worker, slot->poll_proc, slot->poll_seq, command);
}

void sim_queue_command(sim *s, const k2m_action *a)
{
    if (!k2m_core_current(s->core, a->worker + 1, a->incarnation)) return;
    k2m_mail_put(&s->slots[a->worker].mail, &a->msg);
    send_mail(s, a->worker);
}

void sim_slots_tick(sim *s)
{
    for (uint32_t i = 0; i < s->core->worker_count; i++) {
        sim_slot *slot = &s->slots[i];
        if (!slot->polled || s->now_ns - slot->poll_since_ns < s->config.master_lease_ms * K2_NS_PER_MS / 4) continue;
        slot->polled = false;
        reply(s, i, slot->poll_proc, slot->poll_seq, &(k2_msg){.type = K2_MSG_NOP});
    }
}

void sim_slots_clear(sim *s)
{
    for (uint32_t i = 0; i < SIM_PROCS; i++) {
        k2m_mail_drop(&s->slots[i].mail);
        for (uint32_t k = 0; k < SIM_REPLIES; k++) k2_msg_free(&s->slots[i].replies[k].msg);
        s->slots[i] = (sim_slot){0};
    }
}

static void on_poll(sim *s, const sim_event *e)
{
    sim_slot *slot = &s->slots[e->worker];
    if (slot->polled && slot->poll_proc == e->proc && slot->poll_seq == e->msg.seq) return; /* it is under way */
    if (slot->polled) reply(s, e->worker, slot->poll_proc, slot->poll_seq, &(k2_msg){.type = K2_MSG_NOP});
    slot->polled = true;
    slot->poll_proc = e->proc;
    slot->poll_seq = e->msg.seq;
    slot->poll_since_ns = s->now_ns;
    k2m_mail_heard(&slot->mail, e->msg.incarnation, e->msg.cmd);
    send_mail(s, e->worker);
    sim_master_event(s, &(k2m_event){.type = K2M_EV_ALIVE, .worker = e->worker});
}

static void on_hello(sim *s, const sim_event *e)
{
    const k2m_outbox *out = &s->core->outbox;
    uint64_t life = s->life;
    sim_master_event(s, &(k2m_event){.type = K2M_EV_HELLO, .msg = &e->msg});
    if (life != s->life || s->ended || s->dying) return;
    for (uint32_t i = 0; i < out->count; i++) {
        if (out->list[i].type == K2M_ACT_ADMIT)
            reply(s, e->worker, e->proc, e->msg.seq,
                  &(k2_msg){.type = K2_MSG_WELCOME,
                            .worker = e->worker + 1,
                            .incarnation = out->list[i].incarnation,
                            .welcome = {.lease_ms = s->config.master_lease_ms}});
        if (out->list[i].type == K2M_ACT_REFUSE)
            reply(s, e->worker, e->proc, e->msg.seq, &(k2_msg){.type = K2_MSG_REFUSED, .refused = {.code = out->list[i].code}});
    }
}

void sim_to_master(sim *s, const sim_event *e)
{
    sim_slot *slot = &s->slots[e->worker];
    for (uint32_t i = 0; i < SIM_REPLIES; i++)
        if (slot->replies[i].proc == e->proc && slot->replies[i].seq == e->msg.seq && e->proc) {
            sim_proc *p = sim_proc_find(s, e->proc);
            if (p) packet(s, SIM_TO_WORKER, p, &slot->replies[i].msg);
            return;
        }
    if (e->msg.type == K2_MSG_HELLO) {
        on_hello(s, e);
        return;
    }
    bool current = k2m_core_current(s->core, e->msg.worker, e->msg.incarnation);
    if (current && e->msg.incarnation != s->core->workers[e->worker].incarnation)
        sim_break(s, SIM_CHECK_FENCE, "incarnation %llu of worker %u is heard, %llu has its place",
                  (unsigned long long)e->msg.incarnation, e->worker,
                  (unsigned long long)s->core->workers[e->worker].incarnation);
    if (!current) {
        reply(s, e->worker, e->proc, e->msg.seq, &(k2_msg){.type = K2_MSG_FENCED});
    } else if (e->msg.type == K2_MSG_POLL) {
        on_poll(s, e);
    } else {
        k2m_mail_heard(&slot->mail, e->msg.incarnation, e->msg.cmd);
        reply(s, e->worker, e->proc, e->msg.seq, &(k2_msg){.type = K2_MSG_ACK});
        uint64_t life = s->life;
        sim_master_event(s, &(k2m_event){.type = K2M_EV_ALIVE, .worker = e->worker});
        if (life == s->life) sim_master_event(s, &(k2m_event){.type = K2M_EV_DONE, .worker = e->worker, .msg = &e->msg});
    }
}
