/* inputs - the model's sizes and the tokenizer: files that every process of a run reads at its own place and that must be the
 * same everywhere, and that go along into checkpoints.
 */
#ifndef K2_COMMON_INPUTS_H
#define K2_COMMON_INPUTS_H

#include "common/config/config.h"

typedef struct k2_inputs {
    k2_digest model;     /* of the sizes that are computed with, however config.json spells them */
    k2_digest tokenizer; /* of its files, kind and pattern */
} k2_inputs;

/* Path of the config.json of a run's model; k2_free it. */
char *k2_inputs_model_path(const k2_config *config);

/* k2_inputs_read - of the files that a configuration names, here.
 *
 * errors   those of k2_weights_dims_load and k2_tokenizer_fingerprint
 * tests    tests/unit/inputs/inputs_test.c
 */
k2_code k2_inputs_read(const k2_config *config, k2_inputs *out, k2_error *err);

/* k2_inputs_check - are they the master's? A digest of zero was not told and is not compared.
 *
 * errors   BAD_INPUT naming the file that is another one; those of k2_inputs_read
 */
k2_code k2_inputs_check(const k2_config *config, const k2_inputs *masters, k2_error *err);

/* k2_inputs_copy - tokenizer, generation config, chat template, licence and the like into a directory of weights, as far as
 * they are there, so that others' programs can serve it: those of model.dir, and over them the tokenizer's, if it has a place
 * of its own. A tokenizer that is named by its file gets the name that others look for.
 *
 * errors   IO, NO_SPACE, LIMIT
 */
k2_code k2_inputs_copy(const k2_config *config, const char *to, k2_error *err);

#endif
