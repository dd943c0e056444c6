/* A directory of its own for each test that writes model directories, and the sizes that they are written with. */
#ifndef K2_TESTS_WEIGHTS_SCRATCH_H
#define K2_TESTS_WEIGHTS_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/weights/weights.h"

static char dir[32];

static inline int scratch_begin(void)
{
    strcpy(dir, "/tmp/k2_weights_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static inline int scratch_end(void **state)
{
    (void)state;
    return k2_dir_remove(dir, NULL) == K2_OK ? 0 : -1;
}

/* Of a name in it; k2_free it. */
static inline char *at(const char *name)
{
    return k2_asprintf("%s/%s", dir, name);
}

static inline void write_text(const char *name, const char *text)
{
    char *path = at(name);
    assert_int_equal(k2_file_write_atomic(path, text, strlen(text), NULL), K2_OK);
    k2_free(path);
}

#define SMALL_DIMS(layers)                                                                                                     \
    {                                                                                                                          \
        .vocab_size = 3, .hidden_size = 2, .num_hidden_layers = layers, .num_attention_heads = 1, .kv_lora_rank = 2,           \
        .qk_nope_head_dim = 2, .qk_rope_head_dim = 2, .v_head_dim = 2, .intermediate_size = 4, .moe_layer_freq = 1,            \
        .max_position_embeddings = 16, .rope_theta = 10000, .rms_norm_eps = 1e-6, .initializer_range = 0.02,                   \
        .bos_token_id = -1, .eos_token_id = -1                                                                                 \
    }

#endif
