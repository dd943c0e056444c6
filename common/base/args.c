/* Command lines: one reading of options for all sub-commands. */
#include "base.h"

#include <string.h>

static const k2_option *option_find(const char *arg, size_t name_bytes, const k2_option *options, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(options[i].name) == name_bytes && memcmp(options[i].name, arg, name_bytes) == 0) return &options[i];
    return NULL;
}

static k2_code unknown(const char *arg, const k2_option *options, size_t count, k2_error *err)
{
    const char *names[32];
    K2_ASSERT(count < K2_COUNT(names));
    for (size_t i = 0; i < count; i++) names[i] = options[i].name;
    names[count] = "--help";
    const char *nearest = k2_str_nearest(arg, names, count + 1);
    return k2_error_set(err, K2_BAD_INPUT, "unknown option %.64s%s%s%s", arg, nearest ? "; did you mean " : "",
                        nearest ? nearest : "", nearest ? "?" : "");
}

static k2_code value_set(const k2_option *o, const char *value, k2_error *err)
{
    uint64_t number = 0;
    if (o->take) return o->take(o->arg, value, err);
    if (o->text) {
        *o->text = value;
        return K2_OK;
    }
    if (!k2_str_u64(value, &number) || (o->u32 && number > UINT32_MAX))
        return k2_error_set(err, K2_BAD_INPUT, "%s: found \"%.64s\", expected a whole number", o->name, value);
    if (o->u32)
        *o->u32 = (uint32_t)number;
    else
        *o->u64 = number;
    return K2_OK;
}

/* The option at args[*i]; *i moves on to its value where that is a word of its own. */
static k2_code option_take(char **args, int count, int *i, const k2_option *options, size_t option_count, k2_error *err)
{
    const char *arg = args[*i], *equals = strchr(arg, '=');
    const k2_option *o = option_find(arg, equals ? (size_t)(equals - arg) : strlen(arg), options, option_count);
    if (!o) return unknown(arg, options, option_count, err);
    if (o->flag) {
        if (equals) return k2_error_set(err, K2_BAD_INPUT, "%s takes no value", o->name);
        *o->flag = true;
        return K2_OK;
    }
    if (equals) return value_set(o, equals + 1, err);
    if (*i + 1 == count) return k2_error_set(err, K2_BAD_INPUT, "%s: a value is missing", o->name);
    return value_set(o, args[++*i], err);
}

k2_code k2_args_parse(char **args, int count, const k2_option *options, size_t option_count, int *operands, bool *help,
                      k2_error *err)
{
    int kept = 0;
    bool ended = false;
    for (int i = 0; i < count; i++) {
        char *arg = args[i];
        const bool operand = ended || arg[0] != '-' || arg[1] == 0;
        if (operand && !operands) return k2_error_set(err, K2_BAD_INPUT, "found \"%.64s\", expected options only", arg);
        if (operand) {
            args[kept++] = arg;
        } else if (strcmp(arg, "--") == 0) {
            ended = true;
        } else if (help && (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)) {
            *help = true;
            return K2_OK;
        } else {
            k2_code code = option_take(args, count, &i, options, option_count, err);
            if (code != K2_OK) return code;
        }
    }
    if (operands) *operands = kept;
    return K2_OK;
}
