/* sample - answers of a model under training to the quickstart's prompts: how much of the warm-up has arrived. */
#ifndef K2_TESTS_BENCH_TRAINER_SAMPLE_H
#define K2_TESTS_BENCH_TRAINER_SAMPLE_H

#include "common/data/data.h"
#include "common/model/model.h"

#define SAMPLE_SKILLS 4u

typedef struct sample_score {
    uint32_t prompts;
    uint32_t skill[SAMPLE_SKILLS]; /* answers that are copy, back, twin, fold of the prompt's letters (the first that fits) */
    uint32_t valid;                /* any of them */
    uint32_t right;                /* the one that the prompt's word asks for */
    uint64_t tokens;               /* generated */
} sample_score;

/* One answer to each of the first `count` prompts, drawn at temperature 1 from (seed, prompt, position), or greedy. */
sample_score sample_answers(k2_model *model, const k2_prompts *prompts, uint32_t count, uint64_t seed, bool greedy);

#endif
