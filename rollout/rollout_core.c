/* rollout_core - see rollout_core_int.h. */
#include "rollout/rollout_core_int.h"

#include <stdio.h>
#include <string.h>

#include "common/base/planted.h"

static k2i_action *emit(k2i_outbox *out, k2i_action_type type)
{
    K2_ASSERT(out->count < K2I_ACTIONS_MAX);
    k2i_action *a = &out->list[out->count++];
    *a = (k2i_action){.type = type};
    return a;
}

static void done(k2i_outbox *out, const k2i_held *h, k2_code code, const char *text)
{
    k2i_action *a = emit(out, K2I_ACT_DONE);
    a->cmd = h->cmd;
    a->version = h->version;
    a->digest = h->digest;
    a->code = code;
    snprintf(a->text, sizeof a->text, "%s", text);
}

static bool holds(const k2i_held *h, k2_digest digest)
{
    return !k2_digest_zero(h->digest) && k2_digest_equal(h->digest, digest);
}

/* ---- prepare ------------------------------------------------------------------------------------------------------ */

static void drop_next(k2i_rollout *r, k2i_outbox *out)
{
    if (r->has_next) done(out, &r->next, K2_CANCELED, "a later PREPARE took its place");
    r->has_next = false;
}

static void prepare(k2i_rollout *r, const k2i_held *want, k2i_outbox *out)
{
    if (holds(&r->active, want->digest)) {
        drop_next(r, out);
        done(out, want, K2_OK, "these weights are in use");
        return;
    }
    if (r->is_pulling || r->is_switching) {
        drop_next(r, out);
        r->next = *want;
        r->has_next = true;
        if (r->is_pulling) emit(out, K2I_ACT_CANCEL_PULL);
        return;
    }
    if (holds(&r->staged, want->digest)) {
        r->staged.version = want->version;
        done(out, want, K2_OK, "these weights are staged");
        return;
    }
    r->staged = (k2i_held){0};
    r->pulling = *want;
    r->is_pulling = true;
    k2i_action *a = emit(out, K2I_ACT_PULL);
    a->cmd = want->cmd;
    a->version = want->version;
    a->digest = want->digest;
}

static void begin_next(k2i_rollout *r, k2i_outbox *out)
{
    if (!r->has_next) return;
    r->has_next = false;
    k2i_held want = r->next;
    prepare(r, &want, out);
}

static void pulled(k2i_rollout *r, const k2i_event *ev, k2i_outbox *out)
{
    K2_ASSERT(r->is_pulling);
    r->is_pulling = false;
    /* A pull that came whole although it was to be ended counts: its weights are there. */
    if (ev->code == K2_OK || K2_PLANTED(STAGED_THOUGH_FAILED)) r->staged = r->pulling;
    done(out, &r->pulling, ev->code, ev->text ? ev->text : "");
    begin_next(r, out);
}

/* ---- commit --------------------------------------------------------------------------------------------------------- */

static void commit(k2i_rollout *r, const k2i_event *ev, k2i_outbox *out)
{
    k2i_held want = {.version = ev->version, .cmd = ev->cmd, .digest = ev->digest};
    char text[128], hex[K2_DIGEST_HEX];
    if (r->is_switching) {
        done(out, &want, K2_AGAIN, "another version is being switched to");
        return;
    }
    bool keep = holds(&r->active, want.digest);
    if (keep && r->active.version == want.version) {
        done(out, &want, K2_OK, "");
        return;
    }
    if (!keep && !holds(&r->staged, want.digest)) {
        k2_digest_hex(want.digest, hex);
        snprintf(text, sizeof text, "weights %s have not been prepared here", hex);
        done(out, &want, K2_NOT_FOUND, text);
        return;
    }
    r->switching = want;
    r->is_switching = true;
    k2i_action *a = emit(out, K2I_ACT_SWITCH);
    a->version = want.version;
    a->digest = want.digest;
    a->keep = keep;
}

static void switched(k2i_rollout *r, k2i_outbox *out)
{
    K2_ASSERT(r->is_switching);
    r->is_switching = false;
    if (!holds(&r->active, r->switching.digest)) r->staged = (k2i_held){0};
    r->active = r->switching;
    done(out, &r->active, K2_OK, "");
    begin_next(r, out);
}

/* ---- stop ------------------------------------------------------------------------------------------------------------ */

static void stop(k2i_rollout *r, const k2i_event *ev, k2i_outbox *out)
{
    if (r->stopping) { /* asked twice: at once */
        if (ev->cmd) done(out, &(k2i_held){.cmd = ev->cmd}, K2_OK, "");
        if (!r->exiting) emit(out, K2I_ACT_EXIT);
        r->exiting = true;
        return;
    }
    r->stopping = true;
    r->stop_cmd = ev->cmd;
    drop_next(r, out);
    if (r->is_pulling) emit(out, K2I_ACT_CANCEL_PULL);
    emit(out, K2I_ACT_DRAIN);
}

static void drained(k2i_rollout *r, k2i_outbox *out)
{
    if (r->exiting) return;
    if (r->stop_cmd) done(out, &(k2i_held){.cmd = r->stop_cmd}, K2_OK, "");
    r->exiting = true;
    emit(out, K2I_ACT_EXIT);
}

void k2i_rollout_step(k2i_rollout *r, const k2i_event *ev, k2i_outbox *out)
{
    out->count = 0;
    k2i_held want = {.version = ev->version, .cmd = ev->cmd, .digest = ev->digest};
    if (r->stopping && (ev->type == K2I_EV_PREPARE || ev->type == K2I_EV_COMMIT)) {
        done(out, &want, K2_CANCELED, "the worker is stopping");
        return;
    }
    switch (ev->type) {
    case K2I_EV_PREPARE: prepare(r, &want, out); break;
    case K2I_EV_PULLED: pulled(r, ev, out); break;
    case K2I_EV_COMMIT: commit(r, ev, out); break;
    case K2I_EV_SWITCHED: switched(r, out); break;
    case K2I_EV_STOP: stop(r, ev, out); break;
    case K2I_EV_DRAINED: drained(r, out); break;
    }
}
