/* rollout_core - the worker's side of the two-phase change of weights, as a state machine: commands in, actions out. Pure.
 *
 *                    ┌──── PREPARE ────┐             ┌─ COMMIT ─┐
 *        nothing staged ── pulling ──► staged ──► switching ──► active
 *                    ▲        │ failed, or another PREPARE came
 *                    └────────┘
 *
 * There is one staging buffer: a second PREPARE ends the pull in hand (its DONE is CANCELED) and is begun when that has let go
 * of the buffer; during a switch it waits for the switch. Every command gets exactly one DONE. Commands that come again
 * (the master was restarted) find what they want in place and are done at once.
 */
#ifndef K2_ROLLOUT_ROLLOUT_CORE_INT_H
#define K2_ROLLOUT_ROLLOUT_CORE_INT_H

#include "common/base/base.h"

typedef enum k2i_event_type {
    K2I_EV_PREPARE,  /* cmd, version, digest */
    K2I_EV_PULLED,   /* code, text: the pull that was begun last has ended */
    K2I_EV_COMMIT,   /* cmd, version, digest */
    K2I_EV_SWITCHED, /* the engine decodes with the new weights */
    K2I_EV_STOP,     /* cmd; 0: a signal */
    K2I_EV_DRAINED   /* no request runs any more, or its deadline has passed */
} k2i_event_type;

typedef struct k2i_event {
    k2i_event_type type;
    uint64_t cmd, version;
    k2_digest digest;
    k2_code code;
    const char *text; /* valid during the call */
} k2i_event;

typedef enum k2i_action_type {
    K2I_ACT_PULL,        /* version, digest, cmd: pull into the staging buffer */
    K2I_ACT_CANCEL_PULL, /* end it early; PULLED still comes */
    K2I_ACT_SWITCH,      /* version, digest: decode with the staged weights; `keep`: with those in use, under this version */
    K2I_ACT_DONE,        /* cmd, version, digest, code, text */
    K2I_ACT_DRAIN,       /* refuse new requests and say DRAINED when none runs */
    K2I_ACT_EXIT
} k2i_action_type;

typedef struct k2i_action {
    k2i_action_type type;
    uint64_t cmd, version;
    k2_digest digest;
    bool keep;
    k2_code code;
    char text[K2_ERROR_TEXT_MAX];
} k2i_action;

#define K2I_ACTIONS_MAX 8u /* of one event: three DONEs, a pull or a switch, drain, exit */

typedef struct k2i_outbox {
    k2i_action list[K2I_ACTIONS_MAX];
    uint32_t count;
} k2i_outbox;

/* A version with its digest; the digest is zero where there is none. */
typedef struct k2i_held {
    uint64_t version, cmd;
    k2_digest digest;
} k2i_held;

typedef struct k2i_rollout {
    k2i_held active, staged;
    k2i_held pulling, switching, next; /* with the command that waits for it; next: a PREPARE that waits for the buffer */
    bool is_pulling, is_switching, has_next, stopping, exiting;
    uint64_t stop_cmd;
} k2i_rollout;

/* Zero-initialise a k2i_rollout. The outbox is emptied first. */
void k2i_rollout_step(k2i_rollout *r, const k2i_event *ev, k2i_outbox *out);

#endif
