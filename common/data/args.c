/* Options of `k2rl data`. */
#include "args_int.h"

#include <string.h>

static const k2i_option *option_find(const char *arg, size_t name_bytes, const k2i_option *options, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(options[i].name) == name_bytes && memcmp(options[i].name, arg, name_bytes) == 0) return &options[i];
    return NULL;
}

static k2_code unknown(const char *arg, const k2i_option *options, size_t count, k2_error *err)
{
    const char *names[32];
    K2_ASSERT(count <= K2_COUNT(names));
    for (size_t i = 0; i < count; i++) names[i] = options[i].name;
    const char *nearest = k2_str_nearest(arg, names, count);
    return k2_error_set(err, K2_BAD_INPUT, "unknown option %.64s%s%s%s", arg, nearest ? "; did you mean " : "",
                        nearest ? nearest : "", nearest ? "?" : "");
}

static k2_code value_set(const k2i_option *o, const char *value, k2_error *err)
{
    uint64_t number = 0;
    if (o->text) {
        *o->text = value;
        return K2_OK;
    }
    if (!k2_str_u64(value, &number) || (o->u32 && number > UINT32_MAX))
        return k2_error_set(err, K2_BAD_INPUT, "%s: \"%.64s\", expected a whole number", o->name, value);
    if (o->u32)
        *o->u32 = (uint32_t)number;
    else
        *o->u64 = number;
    return K2_OK;
}

k2_code k2i_args_parse(char **args, int count, const k2i_option *options, size_t option_count, int *operands, k2_error *err)
{
    int kept = 0;
    bool ended = false;
    for (int i = 0; i < count; i++) {
        char *arg = args[i];
        if (ended || arg[0] != '-' || arg[1] == 0) {
            args[kept++] = arg;
            continue;
        }
        if (strcmp(arg, "--") == 0) {
            ended = true;
            continue;
        }
        const char *equals = strchr(arg, '=');
        const k2i_option *o = option_find(arg, equals ? (size_t)(equals - arg) : strlen(arg), options, option_count);
        if (!o) return unknown(arg, options, option_count, err);
        if (o->flag) {
            if (equals) return k2_error_set(err, K2_BAD_INPUT, "%s takes no value", o->name);
            *o->flag = true;
            continue;
        }
        if (!equals && i + 1 == count) return k2_error_set(err, K2_BAD_INPUT, "%s: a value is missing", o->name);
        k2_code code = value_set(o, equals ? equals + 1 : args[++i], err);
        if (code != K2_OK) return code;
    }
    *operands = kept;
    return K2_OK;
}
