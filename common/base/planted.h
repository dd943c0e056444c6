/* planted - mistakes that can be planted in the cores, to see that the simulator finds them (./run sim --planted).
 *
 * K2_PLANTED(NAME) stands at the one place where the mistake would be made. It is the constant 0 everywhere but in
 * tests/sim's second binary, which compiles the cores once more with K2_PLANTED_BUILD and makes one of them true.
 */
#ifndef K2_COMMON_BASE_PLANTED_H
#define K2_COMMON_BASE_PLANTED_H

/* name, what the mistake does */
#define K2_PLANTED_LIST(X)                                                                                          \
    X(ACTION_BEFORE_RECORD, "master: an action is carried out before its records are durable")                      \
    X(NO_FENCE, "master: messages of a worker's former incarnation are heard")                                      \
    X(GATE_EARLY, "master: the gate is opened when the first engine has echoed the digest")                         \
    X(RANK_FAILURE_IGNORED, "master: a command counts as done by all ranks though one has failed")                  \
    X(LATEST_EARLY, "master: a checkpoint is named the latest when the first rank has answered")                    \
    X(OLD_VERSION_IN_FORCE, "master: a version that recovery makes again is put in force")                          \
    X(BATCH_FORGOTTEN, "master: the action that asks for the batch again is dropped when a trainer died meanwhile") \
    X(SCORE_LOST, "master: rewards whose request failed are not asked for again")                                   \
    X(HELD_AFTER_DEATH, "master: a new process is believed to hold the weights of the one before it")               \
    X(RELEASED_EARLY, "master: a batch is forgotten when it is trained, before a checkpoint covers it")             \
    X(RATES_EARLY, "master: a prompt's priority follows rewards that no step was trained with yet")                 \
    X(RATES_FORGOTTEN, "master: success rates of prompts are not written with a checkpoint")                        \
    X(FLAT_BEFORE_WHOLE, "replay: a group is taken for one of equal rewards before all of them are in")             \
    X(CUT_LOST, "replay: the record of a cut is not written")                                                       \
    X(TRAINED_TWICE, "replay: the record that a batch was trained is not written")                                  \
    X(PROMPT_SKIPPED, "replay: a prompt is left out after a restart from a snapshot")                               \
    X(TOO_STALE, "replay: a cut trajectory is left waiting one iteration too long")                                 \
    X(ROUTED_ANYWHERE, "proxy: a training request goes to any engine, whatever weights it holds")                   \
    X(CANCELED_KEPT, "proxy: a request that its client gave up keeps its place")                                    \
    X(WRONG_POSITION, "engine: an answer that is resumed draws its tokens as if it began anew")                     \
    X(CACHE_KEPT, "engine: cached pages are kept through a change of weights")                                      \
    X(PAGES_LEAKED, "engine: pages of a canceled request are not given back")                                       \
    X(STAGED_THOUGH_FAILED, "rollout: weights whose pull failed count as staged")                                   \
    X(UNVERIFIED, "rollout: pulled bytes are not compared with the manifest's hashes and digests")                  \
    X(OTHER_WEIGHTS, "rollout: the manifest's digest is not compared with the one that the master named")           \
    X(DONE_EARLY, "trainer: SAVE is answered when it begins")

typedef enum k2_planted {
    K2_PLANTED_NONE,
#define K2_X(name, text) K2_PLANTED_##name,
    K2_PLANTED_LIST(K2_X)
#undef K2_X
    K2_PLANTED_COUNT
} k2_planted;

#ifdef K2_PLANTED_BUILD
extern k2_planted k2_planted_now; /* of tests/sim */
#define K2_PLANTED(name) (k2_planted_now == K2_PLANTED_##name)
#else
#define K2_PLANTED(name) 0
#endif

#endif
