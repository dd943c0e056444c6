/* dir_int - the files of a model directory. */
#ifndef K2_WEIGHTS_DIR_INT_H
#define K2_WEIGHTS_DIR_INT_H

#include "common/weights/weights.h"

#define K2I_INDEX_BYTES_MAX (256u << 20) /* of an index: a million names of 200 bytes */
#define K2I_WEIGHTS_FILE    "model.safetensors"
#define K2I_INDEX_FILE      "model.safetensors.index.json"
#define K2I_CONFIG_FILE     "config.json"

/* What a missing tensor is missing in: the path of the single file or of the index. */
const char *k2i_dir_where(const k2_weights_dir *d);
/* A directory that consists of this one file, whose bytes may be anywhere; close closes the file, too. */
k2_weights_dir *k2i_dir_of_file(const char *name, k2_weights_file *f, k2_weights_quant quant);

#endif
