/* trainer_core - which command may run when: the pure half of the trainer.
 *
 *               JOIN            INIT                 PRETRAIN, TRAIN, PUBLISH, SAVE
 *     new ───────────► joined ───────► ready ──┐ each makes the next legal
 *      ▲                 ▲               │ ▲───┘
 *      └──── any error that may have left ranks or weights apart: only JOIN and STOP are legal then
 *
 * One command at a time. Every command has an id that rises; the last one's answer is kept, so that a master which did not hear
 * it may ask again. No I/O, no clock, no allocation.
 */
#ifndef K2_TRAINER_CORE_INT_H
#define K2_TRAINER_CORE_INT_H

#include "common/base/base.h"

#define K2I_COMMANDS(X) \
    X(JOIN)             \
    X(INIT)             \
    X(PRETRAIN)         \
    X(TRAIN)            \
    X(PUBLISH)          \
    X(SAVE)             \
    X(STOP)

typedef enum k2i_command_kind {
#define K2_X(name) K2I_##name,
    K2I_COMMANDS(K2_X)
#undef K2_X
} k2i_command_kind;

/* Only what decides whether it may run; locators, paths and digests stay with the I/O half. */
typedef struct k2i_command {
    uint64_t id; /* >= 1 */
    k2i_command_kind kind;
    uint64_t step;     /* TRAIN, SAVE: step; PUBLISH: version */
    uint64_t from, to; /* PRETRAIN */
} k2i_command;

typedef enum k2i_trainer_event_kind {
    K2I_ON_COMMAND,
    K2I_ON_FINISHED, /* the work of the running command ended */
    K2I_ON_LOST      /* the master is gone */
} k2i_trainer_event_kind;

typedef struct k2i_trainer_event {
    k2i_trainer_event_kind kind;
    k2i_command command;          /* ON_COMMAND */
    k2_code code;                 /* ON_FINISHED */
    bool unchanged;               /* ON_FINISHED with an error: model and group are as before the command, on all ranks */
    uint64_t step, pretrain_step; /* ON_FINISHED of INIT: where the source stands */
} k2i_trainer_event;

typedef enum k2i_trainer_action_kind {
    K2I_DO_RUN,    /* start the work of `command` */
    K2I_DO_ANSWER, /* send DONE of command id `id`: its kept result */
    K2I_DO_REFUSE, /* send DONE of command id `id` with `error`; nothing is kept */
    K2I_DO_EXIT    /* end the process with `status` once all answers are out */
} k2i_trainer_action_kind;

typedef struct k2i_trainer_action {
    k2i_trainer_action_kind kind;
    k2i_command command;
    uint64_t id;
    int status;
    k2_error error;
} k2i_trainer_action;

#define K2I_OUTBOX_MAX 2u /* answer and exit: no event causes more */

typedef struct k2i_trainer_outbox {
    uint32_t count;
    k2i_trainer_action actions[K2I_OUTBOX_MAX];
} k2i_trainer_outbox;

typedef enum k2i_trainer_phase { K2I_NEW, K2I_JOINED, K2I_READY } k2i_trainer_phase;

typedef struct k2i_trainer_core {
    k2i_trainer_phase phase;
    uint64_t step, pretrain_step; /* valid in READY */
    k2i_command running;          /* id 0: none */
    uint64_t answered;            /* id of the last command that finished; 0: none */
    bool exiting;
} k2i_trainer_core;

/* k2i_trainer_step - one event in, at most K2I_OUTBOX_MAX actions out.
 *
 * errors   a refused command is an action, never an error here: BUSY while another runs, FENCED below the last id, BAD_INPUT
 *          out of order (the text says what was expected)
 * tests    tests/unit/trainer/core_test.c
 */
void k2i_trainer_step(k2i_trainer_core *c, const k2i_trainer_event *event, k2i_trainer_outbox *out);
const char *k2i_command_name(k2i_command_kind kind);

#endif
