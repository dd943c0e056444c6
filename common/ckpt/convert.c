/* `k2rl ckpt convert`: the same model in another type, or in shards of another size. */
#include "commands_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SHARD_BYTES_DEFAULT 5000000000ull /* what transformers takes */

static const struct {
    const char *name;
    k2_dtype dtype;
} types[] = {{"f32", K2_DTYPE_F32}, {"bf16", K2_DTYPE_BF16}, {"f16", K2_DTYPE_F16}, {"fp8", K2_DTYPE_F8_E4M3}};

static k2_code type_parse(const char *text, k2_dtype *out, k2_error *err)
{
    for (size_t i = 0; i < K2_COUNT(types); i++) {
        if (strcmp(text, types[i].name) != 0) continue;
        *out = types[i].dtype;
        return K2_OK;
    }
    return k2_error_set(err, K2_BAD_INPUT, "--dtype: \"%.32s\", expected f32, bf16, f16 or fp8", text);
}

k2_code k2i_ckpt_convert(char **args, int count, k2_error *err)
{
    const char *type = "bf16";
    k2_weights_format format = {.shard_bytes = SHARD_BYTES_DEFAULT};
    const k2_option options[] = {{.name = "--dtype", .text = &type}, {.name = "--shard-bytes", .u64 = &format.shard_bytes}};
    int operands = 0;
    k2_dims dims;
    k2i_ckpt_meter meter = {.what = "writing"};
    k2_code code = k2_args_parse(args, count, options, K2_COUNT(options), &operands, NULL, err);
    if (code == K2_OK && operands != 2) code = k2_error_set(err, K2_BAD_INPUT, "%d operands, expected FROM and TO", operands);
    if (code == K2_OK) code = type_parse(type, &format.dtype, err);
    if (code == K2_OK) code = k2i_ckpt_dims(args[0], &dims, err); /* a directory that nobody could load is not worth it */
    if (code != K2_OK) return code;
    code = k2_weights_dir_convert(args[0], args[1], &format, k2i_ckpt_meter_move, &meter, err);
    k2i_ckpt_meter_end(&meter);
    if (code == K2_OK) printf("%s: written as %s\n", args[1], type);
    return code;
}
