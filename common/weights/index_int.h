/* index_int - model.safetensors.index.json: which tensor lies in which shard. */
#ifndef K2_WEIGHTS_INDEX_INT_H
#define K2_WEIGHTS_INDEX_INT_H

#include <cjson/cJSON.h>

#include "common/base/base.h"

typedef struct k2i_place {
    const char *tensor, *shard; /* shard: the name of a file in the same directory */
} k2i_place;

typedef struct k2i_index {
    size_t count;
    k2i_place *places;  /* sorted by shard, then by tensor */
    const char **names; /* of the tensors, sorted; no two are equal */
    cJSON *root;        /* all strings lie in it */
} k2i_index;

/* k2i_index_parse - the index in a text; `name` is the file. k2i_index_free it (NULL is fine).
 *
 * errors   "name: ...": BAD_INPUT: not JSON, no weight_map, a shard that is not the name of a file in the directory, a tensor
 *          named twice
 * tests    tests/unit/weights/dir_test.c, tests/fuzz/weights/safetensors.c
 */
k2_code k2i_index_parse(const char *name, const char *text, size_t n, k2i_index **out, k2_error *err);
void k2i_index_free(k2i_index *x);
bool k2i_index_holds(const k2i_index *x, const char *tensor);

#endif
