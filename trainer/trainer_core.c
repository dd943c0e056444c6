/* trainer_core - the command state machine. See trainer_core_int.h. */
#include "trainer/trainer_core_int.h"

#include "common/base/planted.h"

typedef unsigned long long ull;

const char *k2i_command_name(k2i_command_kind kind)
{
    static const char *const names[] = {
#define K2_X(name) [K2I_##name] = #name,
        K2I_COMMANDS(K2_X)
#undef K2_X
    };
    return (size_t)kind < K2_COUNT(names) ? names[kind] : "?";
}

static k2i_trainer_action *action_add(k2i_trainer_outbox *out, k2i_trainer_action_kind kind)
{
    K2_ASSERT(out->count < K2I_OUTBOX_MAX);
    k2i_trainer_action *a = &out->actions[out->count++];
    *a = (k2i_trainer_action){.kind = kind};
    return a;
}

static k2_code order_check(const k2i_trainer_core *c, const k2i_command *m, k2_error *err)
{
    const char *name = k2i_command_name(m->kind);
    if (m->kind == K2I_JOIN || m->kind == K2I_STOP) return K2_OK;
    if (m->kind == K2I_INIT) {
        if (c->phase == K2I_JOINED) return K2_OK;
        return k2_error_set(err, K2_BAD_INPUT, "INIT: expected after JOIN");
    }
    if (c->phase != K2I_READY) return k2_error_set(err, K2_BAD_INPUT, "%s: expected after JOIN and INIT", name);
    if (m->kind == K2I_PRETRAIN && (m->from != c->pretrain_step || m->to <= m->from))
        return k2_error_set(err, K2_BAD_INPUT, "PRETRAIN: found steps %llu to %llu, expected from %llu to a later one",
                            (ull)m->from, (ull)m->to, (ull)c->pretrain_step);
    if (m->kind == K2I_TRAIN && m->step != c->step + 1)
        return k2_error_set(err, K2_BAD_INPUT, "TRAIN: found step %llu, expected %llu", (ull)m->step, (ull)c->step + 1);
    if (m->kind == K2I_PUBLISH && m->step != c->step)
        return k2_error_set(err, K2_BAD_INPUT, "PUBLISH: found version %llu, expected %llu", (ull)m->step, (ull)c->step);
    return K2_OK;
}

static void on_command(k2i_trainer_core *c, const k2i_command *m, k2i_trainer_outbox *out)
{
    K2_ASSERT(m->id >= 1);
    if (c->running.id == m->id) return; /* asked again while it runs: its DONE will come */
    if (c->answered == m->id) {
        action_add(out, K2I_DO_ANSWER)->id = m->id;
        return;
    }
    k2_error err = {.code = K2_OK};
    if (m->id < c->answered || m->id < c->running.id)
        k2_error_set(&err, K2_FENCED, "command %llu is older than the last one, %llu", (ull)m->id,
                     (ull)K2_MAX(c->answered, c->running.id));
    else if (c->running.id != 0)
        k2_error_set(&err, K2_BUSY, "%s %llu came while %s %llu runs", k2i_command_name(m->kind), (ull)m->id,
                     k2i_command_name(c->running.kind), (ull)c->running.id);
    else
        (void)order_check(c, m, &err);
    if (err.code != K2_OK) {
        k2i_trainer_action *a = action_add(out, K2I_DO_REFUSE);
        a->id = m->id;
        a->error = err;
        return;
    }
    c->running = *m;
    action_add(out, K2I_DO_RUN)->command = *m;
    if (K2_PLANTED(DONE_EARLY) && m->kind == K2I_SAVE) action_add(out, K2I_DO_ANSWER)->id = m->id;
}

static void apply_success(k2i_trainer_core *c, const k2i_trainer_event *event)
{
    switch (c->running.kind) {
    case K2I_JOIN: c->phase = K2I_JOINED; break;
    case K2I_INIT:
        c->phase = K2I_READY;
        c->step = event->step;
        c->pretrain_step = event->pretrain_step;
        break;
    case K2I_PRETRAIN: c->pretrain_step = c->running.to; break;
    case K2I_TRAIN: c->step = c->running.step; break;
    case K2I_PUBLISH:
    case K2I_SAVE:
    case K2I_STOP: break;
    }
}

static void on_finished(k2i_trainer_core *c, const k2i_trainer_event *event, k2i_trainer_outbox *out)
{
    K2_ASSERT(c->running.id != 0);
    if (event->code == K2_OK)
        apply_success(c, event);
    else if (!event->unchanged)
        c->phase = K2I_NEW;
    c->answered = c->running.id;
    action_add(out, K2I_DO_ANSWER)->id = c->running.id;
    if (c->running.kind == K2I_STOP) {
        c->exiting = true;
        action_add(out, K2I_DO_EXIT)->status = 0;
    }
    c->running = (k2i_command){0};
}

void k2i_trainer_step(k2i_trainer_core *c, const k2i_trainer_event *event, k2i_trainer_outbox *out)
{
    out->count = 0;
    if (c->exiting) return;
    switch (event->kind) {
    case K2I_ON_COMMAND: on_command(c, &event->command, out); break;
    case K2I_ON_FINISHED: on_finished(c, event, out); break;
    case K2I_ON_LOST:
        c->exiting = true;
        action_add(out, K2I_DO_EXIT)->status = 1;
        break;
    }
}
