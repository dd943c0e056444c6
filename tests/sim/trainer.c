/* trainer: one rank around the trainer's core. Its model is a digest; its collectives are a look at whether the peers live. */
#include "trainer/trainer_core_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_int.h"

typedef struct trainer {
    k2i_trainer_core core;
    sim_model model;
    k2_digest work_digest;
    k2_xfer_segment *published;
    uint64_t peers[8];
    uint32_t peer_count;
    char source[K2M_LOCATOR_MAX];
} trainer;

void *sim_trainer_new(void)
{
    return k2_alloc(sizeof(trainer));
}

void sim_trainer_free(void *state)
{
    k2_xfer_segment_destroy(((trainer *)state)->published);
    k2_free(state);
}

static k2i_command command_of(const k2_msg *m)
{
    k2i_command c = {.id = m->cmd};
    switch (m->type) {
    case K2_MSG_JOIN: c.kind = K2I_JOIN; break;
    case K2_MSG_INIT: c.kind = K2I_INIT; break;
    case K2_MSG_PRETRAIN:
        c.kind = K2I_PRETRAIN;
        c.from = m->pretrain.from;
        c.to = m->pretrain.to;
        break;
    case K2_MSG_TRAIN:
        c.kind = K2I_TRAIN;
        c.step = m->train.step;
        break;
    case K2_MSG_PUBLISH:
        c.kind = K2I_PUBLISH;
        c.step = m->publish.version;
        break;
    case K2_MSG_SAVE:
        c.kind = K2I_SAVE;
        c.step = m->save.step;
        break;
    default: c.kind = K2I_STOP; break;
    }
    return c;
}

/* What the work needs beyond what the core keeps. */
static void note(trainer *t, const k2_msg *m)
{
    if (m->type == K2_MSG_TRAIN) t->work_digest = m->train.digest;
    if (m->type == K2_MSG_SAVE) snprintf(t->source, sizeof t->source, "%s", m->save.dir);
    if (m->type != K2_MSG_INIT) return;
    snprintf(t->source, sizeof t->source, "%s", m->init.source);
    t->peer_count = K2_MIN(m->init.locators.count, 8u);
    for (uint32_t i = 0; i < t->peer_count; i++) t->peers[i] = strtoull(m->init.locators.items[i], NULL, 10);
}

static bool group_lives(sim *s, const trainer *t)
{
    for (uint32_t i = 0; i < t->peer_count; i++)
        if (!sim_proc_find(s, t->peers[i])) return false;
    return true;
}

static uint64_t number_in(const char *dir)
{
    const char *at = strstr(dir, "step_");
    return at ? strtoull(at + 5, NULL, 10) % SIM_CHECKPOINTS : 0;
}

static void carry_out(sim *s, sim_proc *p, k2i_trainer_outbox *out, k2_code code, k2_digest digest, const k2_msg *m)
{
    trainer *t = p->state;
    char serial[64];
    snprintf(serial, sizeof serial, "%llu", (unsigned long long)p->serial);
    for (uint32_t i = 0; i < out->count; i++) {
        const k2i_trainer_action *a = &out->actions[i];
        if (a->kind == K2I_DO_RUN) {
            note(t, m);
            sim_event *e = sim_at(s, SIM_WORK, (500 + sim_draw(s, 20000)) * K2_MIN(p->slow, 10u));
            e->proc = p->serial;
            e->id = a->id ? a->id : a->command.id;
        } else if (a->kind == K2I_DO_ANSWER) {
            sim_done(s, p, a->id, code, digest, t->published ? k2_xfer_segment_locator(t->published) : serial);
        } else if (a->kind == K2I_DO_REFUSE) {
            sim_break(s, SIM_CHECK_ORDER, "trainer %u was asked out of order: %s", p->worker, a->error.text);
        } else {
            sim_proc_end(s, p, 0, true);
            return;
        }
    }
}

void sim_trainer_command(sim *s, sim_proc *p, const k2_msg *m)
{
    trainer *t = p->state;
    k2i_trainer_outbox out;
    if (t->core.running.id != 0 && m->type == K2_MSG_STOP) { /* stands in line behind what runs */
        k2_msg_copy(&p->later, m);
        return;
    }
    k2i_trainer_step(&t->core, &(k2i_trainer_event){.kind = K2I_ON_COMMAND, .command = command_of(m)}, &out);
    carry_out(s, p, &out, K2_OK, (k2_digest){0, 0}, m);
}

static void init(sim *s, trainer *t, k2i_trainer_event *ev)
{
    if (strcmp(t->source, "fresh") == 0)
        t->model = (sim_model){.ready = true, .digest = sim_mix((k2_digest){1, 2}, s->config.seed, 0)};
    else
        t->model = s->checkpoints[number_in(t->source)];
    if (!t->model.ready) sim_break(s, SIM_CHECK_CHECKPOINT, "INIT from %s, which is not there or not whole", t->source);
    ev->step = t->model.step;
    ev->pretrain_step = t->model.pretrain;
}

/* All give their part, rank 0 writes. */
static k2_code save(sim *s, const sim_proc *p, const trainer *t, k2i_trainer_event *ev)
{
    ev->unchanged = true;
    if (s->core->workers[p->worker].index != 0) return K2_OK;
    if (s->disk_full_until_ns > s->now_ns) return K2_NO_SPACE;
    s->checkpoints[number_in(t->source)] = t->model;
    return K2_OK;
}

static void offer(sim *s, const sim_proc *p, trainer *t)
{
    if (s->core->workers[p->worker].index != 0) return;
    s->train_fails = 0;
    k2_xfer_segment_destroy(t->published);
    t->published = sim_weights_offer(s, p, t->model.digest);
}

/* Four failures in a row end a run, and rightly: it never comes to that. */
static bool fails(sim *s, const sim_proc *p)
{
    if (s->train_fails == 3 || !sim_fault(s, SIM_FAIL_TRAIN, p->worker)) return false;
    s->train_fails++;
    return true;
}

static k2_code work(sim *s, const sim_proc *p, trainer *t, k2i_trainer_event *ev)
{
    const k2i_command *c = &t->core.running;
    bool together = c->kind == K2I_INIT || c->kind == K2I_PRETRAIN || c->kind == K2I_TRAIN || c->kind == K2I_SAVE;
    if (together && (!group_lives(s, t) || fails(s, p))) return K2_TIMEOUT;
    switch (c->kind) {
    case K2I_JOIN:
        k2_xfer_segment_destroy(t->published);
        t->published = NULL;
        break;
    case K2I_INIT: init(s, t, ev); break;
    case K2I_PRETRAIN:
        for (; t->model.pretrain < c->to; t->model.pretrain++) t->model.digest = sim_mix(t->model.digest, 7, t->model.pretrain);
        break;
    case K2I_TRAIN:
        t->model.step++;
        t->model.digest = sim_mix(t->model.digest, t->work_digest.hi, t->work_digest.lo);
        break;
    case K2I_PUBLISH: offer(s, p, t); break;
    case K2I_SAVE: return save(s, p, t, ev);
    case K2I_STOP: break;
    }
    return K2_OK;
}

void sim_trainer_work(sim *s, sim_proc *p, const sim_event *e)
{
    trainer *t = p->state;
    if (t->core.running.id != e->id) return;
    k2i_trainer_outbox out;
    k2i_trainer_event ev = {.kind = K2I_ON_FINISHED};
    ev.code = work(s, p, t, &ev);
    k2_digest digest = ev.code == K2_OK ? sim_weights_digest(t->model.digest) : (k2_digest){0, 0};
    uint64_t serial = p->serial;
    k2i_trainer_step(&t->core, &ev, &out);
    carry_out(s, p, &out, ev.code, digest, NULL);
    if (p->serial != serial || p->later.type == K2_MSG_NONE) return;
    k2_msg stop = p->later;
    p->later = (k2_msg){0};
    sim_trainer_command(s, p, &stop);
    k2_msg_free(&stop);
}
