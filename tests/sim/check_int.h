/* check - what must hold, each under a name. All are looked at while a run goes on, at the event that could break them. */
#ifndef K2_TESTS_SIM_CHECK_INT_H
#define K2_TESTS_SIM_CHECK_INT_H

/* check, name, what must hold */
#define SIM_CHECKS(X)                                                                                                      \
    X(ONCE, "once", "no trajectory is trained in two steps, and no step is given two batches")                             \
    X(LOST, "lost", "every trajectory that was begun is trained or still waits at the end")                                \
    X(PROMPTS, "prompts", "groups follow one another without a gap, each with its epoch's next prompt or the one drawn")   \
    X(BATCH, "batch", "for each group of equal rewards another is begun, up to the maximum, and it leaves the batch")      \
    X(DURABLE, "durable", "after a restart everything is known that somebody was told: tokens, batches, versions")         \
    X(VERSIONS, "versions", "neither the version in force nor the gate nor the versions of a trajectory's tokens go back") \
    X(GATE, "gate", "training tokens come from engines of the table that hold the gate's weights; all do when it opens")   \
    X(FENCE, "fence", "what a former incarnation says is heard by nobody, and no incarnation is given twice")              \
    X(SPANS, "spans", "a trajectory's version spans cover its tokens without gap or overlap")                              \
    X(TOKENS, "tokens", "every token and its log-prob are what its version's weights give at its place in its trajectory") \
    X(CACHE, "cache", "what a token attends to in the cache was computed from its own tokens by the weights in use")       \
    X(STALENESS, "staleness", "no token of a batch is older than budget and longest answer allow; no cut answer waits")    \
    X(WEIGHTS, "weights", "after a commit an engine's weights are the version's to the bit, whatever came over the wire")  \
    X(SAME, "same", "versions, batches, rewards and evaluations are those of the undisturbed run")                         \
    X(POISON, "poison", "who ends its engine is found out, and nobody else is taken for it")                               \
    X(CHECKPOINT, "checkpoint", "what is named the latest checkpoint is whole, and what INIT loads exists")                \
    X(ORDER, "order", "nobody is asked for something out of order: a core that refuses a command is a fault")              \
    X(POOLS, "pools", "pages, places and queues stay within their caps and are whole again when nothing runs")             \
    X(ENDS, "ends", "the run ends well, or with one line that says why while the disk is full")                            \
    X(PROGRESS, "progress", "the run ends 1500 ticks of 20 ms after the last fault at most, 4500 with poison")             \
    X(CRASH, "crash", "no assertion of the cores fails")

typedef enum sim_check_kind {
#define K2_X(check, name, text) SIM_CHECK_##check,
    SIM_CHECKS(K2_X)
#undef K2_X
    SIM_CHECK_KINDS
} sim_check_kind;

const char *sim_check_name(sim_check_kind c);
const char *sim_check_text(sim_check_kind c);

#endif
