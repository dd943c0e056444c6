/* quickstart_dims - the model of the quickstart, from its own file: what a bench measures is what runs. */
#ifndef K2_TESTS_SUPPORT_QUICKSTART_DIMS_H
#define K2_TESTS_SUPPORT_QUICKSTART_DIMS_H

#include <stdio.h>
#include <stdlib.h>

#include "common/weights/weights.h"

static inline k2_dims quickstart_dims(void)
{
    k2_dims dims;
    k2_error err;
    if (k2_weights_dims_load(K2_SOURCE_DIR "/configs/quickstart-model.json", &dims, &err) != K2_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(2);
    }
    return dims;
}

#endif
