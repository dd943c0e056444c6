/* quant_int - quantization_config of a config.json. */
#ifndef K2_WEIGHTS_QUANT_INT_H
#define K2_WEIGHTS_QUANT_INT_H

#include <cjson/cJSON.h>

#include "common/weights/weights.h"

#define K2I_SCALE_SUFFIX "_scale_inv" /* of the tensor that holds the scales, behind the name of the quantised one */

/* The value of the key; NULL and null mean that nothing is quantised. Errors as k2_weights_quant_parse. */
k2_code k2i_quant_parse(const char *name, const cJSON *item, k2_weights_quant *out, k2_error *err);

#endif
