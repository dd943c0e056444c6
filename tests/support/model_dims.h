/* model_dims - the sizes of a model from its file under configs/: what a bench measures is what runs. */
#ifndef K2_TESTS_SUPPORT_MODEL_DIMS_H
#define K2_TESTS_SUPPORT_MODEL_DIMS_H

#include <stdio.h>
#include <stdlib.h>

#include "common/weights/weights.h"

#define MODEL_QUICKSTART K2_SOURCE_DIR "/configs/quickstart-model.json"
#define MODEL_MINI       K2_SOURCE_DIR "/configs/mini-model.json" /* 31 million parameters, 14 million at work for a token */

static inline k2_dims model_dims(const char *path)
{
    k2_dims dims;
    k2_error err;
    if (k2_weights_dims_load(path, &dims, &err) != K2_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(2);
    }
    return dims;
}

#endif
