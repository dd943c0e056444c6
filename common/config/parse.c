/* JSON text to configuration: strict about syntax, names, types, ranges and repetition. */
#include "common/config/config_int.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_TEXT_MAX  128u
#define DEPTH_MAX      8                  /* the deepest key has three parts */
#define JSON_DEPTH_MAX 64u                /* a text that is nested deeper is not even looked at */
#define EXACT_MAX      9007199254740992.0 /* 2^53: whole numbers up to here survive a double */

static const char *type_name(const cJSON *v)
{
    if (cJSON_IsObject(v)) return "an object";
    if (cJSON_IsArray(v)) return "a list";
    if (cJSON_IsString(v)) return "a string";
    if (cJSON_IsNumber(v)) return "a number";
    if (cJSON_IsBool(v)) return "a boolean";
    return "null";
}

static k2_code set_u64(const k2i_key *k, void *slot, const cJSON *v, const char *name, k2_error *err)
{
    uint64_t n = 0;
    bool whole = false;
    if (cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble <= EXACT_MAX && v->valuedouble == floor(v->valuedouble)) {
        n = (uint64_t)v->valuedouble;
        whole = true;
    } else if (cJSON_IsString(v)) {
        whole = k2_str_u64(v->valuestring, &n);
    } else if (!cJSON_IsNumber(v)) {
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: found %s, expected a whole number", name, k->path, type_name(v));
    }
    if (!whole) {
        char found[40] = "a string";
        if (cJSON_IsNumber(v)) snprintf(found, sizeof found, "%g", v->valuedouble);
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: found %s, expected a whole number%s", name, k->path, found,
                            k->u_max > (uint64_t)EXACT_MAX ? " (above 2^53 as a decimal string)" : "");
    }
    if (n < k->u_min || n > k->u_max)
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: found %llu, expected %llu to %llu", name, k->path,
                            (unsigned long long)n, (unsigned long long)k->u_min, (unsigned long long)k->u_max);
    *(uint64_t *)slot = n;
    return K2_OK;
}

static k2_code set_f64(const k2i_key *k, void *slot, const cJSON *v, const char *name, k2_error *err)
{
    if (!cJSON_IsNumber(v))
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: found %s, expected a number", name, k->path, type_name(v));
    if (!(v->valuedouble >= k->f_min && v->valuedouble <= k->f_max))
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: found %g, expected %g to %g", name, k->path, v->valuedouble, k->f_min,
                            k->f_max);
    *(double *)slot = v->valuedouble;
    return K2_OK;
}

static k2_code set_text(const k2i_key *k, void *slot, const cJSON *v, const char *name, k2_error *err)
{
    size_t cap = k->type == K2I_ENUM ? K2_CONFIG_ENUM_MAX : K2_CONFIG_STR_MAX;
    if (!cJSON_IsString(v))
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: found %s, expected a string", name, k->path, type_name(v));
    if (k->type == K2I_ENUM && !k2i_choice_known(k->choices, v->valuestring))
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: found \"%.60s\", expected one of %s", name, k->path, v->valuestring,
                            k->choices[0] == '|' ? k->choices + 1 : k->choices);
    if (strlen(v->valuestring) >= cap)
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: found a string of %zu bytes, expected at most %zu", name, k->path,
                            strlen(v->valuestring), cap - 1);
    memset(slot, 0, cap);
    memcpy(slot, v->valuestring, strlen(v->valuestring));
    return K2_OK;
}

static k2_code set_list(const k2i_key *k, void *slot, const cJSON *v, const char *name, k2_error *err)
{
    k2_config_list list = {0};
    if (!cJSON_IsArray(v))
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: found %s, expected a list of strings", name, k->path, type_name(v));
    const cJSON *item;
    cJSON_ArrayForEach(item, v)
    {
        if (list.count == K2_CONFIG_LIST_MAX)
            return k2_error_set(err, K2_BAD_INPUT, "%s: %s: more than %u items", name, k->path, K2_CONFIG_LIST_MAX);
        if (!cJSON_IsString(item) || strlen(item->valuestring) >= K2_CONFIG_ITEM_MAX)
            return k2_error_set(err, K2_BAD_INPUT, "%s: %s[%u]: found %s, expected a string of at most %u bytes", name, k->path,
                                list.count, type_name(item), K2_CONFIG_ITEM_MAX - 1);
        strcpy(list.item[list.count++], item->valuestring);
    }
    memcpy(slot, &list, sizeof list);
    return K2_OK;
}

static k2_code set_key(const k2i_key *k, k2_config *c, const cJSON *v, const char *name, k2_error *err)
{
    void *slot = k2i_key_slot(k, c);
    switch (k->type) {
    case K2I_U64: return set_u64(k, slot, v, name, err);
    case K2I_F64: return set_f64(k, slot, v, name, err);
    case K2I_STR:
    case K2I_ENUM: return set_text(k, slot, v, name, err);
    case K2I_LIST: return set_list(k, slot, v, name, err);
    case K2I_BOOL: break;
    }
    if (!cJSON_IsBool(v))
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: found %s, expected true or false", name, k->path, type_name(v));
    *(bool *)slot = cJSON_IsTrue(v);
    return K2_OK;
}

/* Is this path the front part of a known one, as `trainer` of `trainer.ranks`? */
static bool is_section(const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 0; i < k2i_key_count; i++)
        if (strncmp(k2i_keys[i].path, path, n) == 0 && k2i_keys[i].path[n] == '.') return true;
    return false;
}

static k2_code unknown(const char *path, const char *name, k2_error *err)
{
    const char *near = k2i_key_nearest(path);
    return k2_error_set(err, K2_BAD_INPUT, "%s: %.100s: unknown key%s%s%s", name, path, near ? ", did you mean " : "",
                        near ? near : "", near ? "?" : "");
}

static k2_code walk(k2_config *c, const cJSON *object, const char *prefix, int depth, const char *name, k2_error *err)
{
    for (const cJSON *v = object->child; v; v = v->next) {
        char path[PATH_TEXT_MAX];
        int n = snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", v->string);
        if (n < 0 || (size_t)n >= sizeof path) return unknown(path, name, err);
        for (const cJSON *w = object->child; w != v; w = w->next)
            if (strcmp(w->string, v->string) == 0) return k2_error_set(err, K2_BAD_INPUT, "%s: %s: given twice", name, path);
        const k2i_key *k = k2i_key_find(path);
        k2_code code;
        if (k)
            code = set_key(k, c, v, name, err);
        else if (!is_section(path) || depth >= DEPTH_MAX)
            code = unknown(path, name, err);
        else if (!cJSON_IsObject(v))
            code = k2_error_set(err, K2_BAD_INPUT, "%s: %s: found %s, expected an object", name, path, type_name(v));
        else
            code = walk(c, v, path, depth + 1, name, err);
        if (code != K2_OK) return code;
    }
    return K2_OK;
}

static k2_code syntax_error(const char *text, size_t n, const char *at, const char *name, k2_error *err)
{
    size_t line = 1, column = 1;
    for (const char *p = text; p < at && p < text + n; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    return k2_error_set(err, K2_BAD_INPUT, "%s:%zu:%zu: not valid JSON", name, line, column);
}

k2_code k2_config_parse(k2_config *c, const char *text, size_t n, const char *name, k2_error *err)
{
    const char *end = NULL;
    if (memchr(text, 0, n)) return k2_error_set(err, K2_BAD_INPUT, "%s: holds a zero byte, expected JSON text", name);
    const char *fault = k2_json_fault(text, n, JSON_DEPTH_MAX);
    if (fault) return k2_error_set(err, K2_BAD_INPUT, "%s: %s", name, fault);
    cJSON *root = cJSON_ParseWithLengthOpts(text, n, &end, 0);
    if (!root) return syntax_error(text, n, end ? end : text, name, err);
    k2_code code = K2_OK;
    while (end < text + n && strchr(" \t\r\n", *end)) end++;
    if (end != text + n)
        code = syntax_error(text, n, end, name, err);
    else if (!cJSON_IsObject(root))
        code = k2_error_set(err, K2_BAD_INPUT, "%s: found %s, expected an object", name, type_name(root));
    k2_config *next = k2_alloc(sizeof *next);
    *next = *c;
    if (code == K2_OK) code = walk(next, root, "", 0, name, err);
    if (code == K2_OK) *c = *next;
    k2_free(next);
    cJSON_Delete(root);
    return code;
}

k2_code k2_config_load(k2_config *c, const char *path, k2_error *err)
{
    char *text;
    size_t n;
    k2_code code = k2_file_read(path, K2_CONFIG_BYTES_MAX, &text, &n, err);
    if (code != K2_OK) return code;
    code = k2_config_parse(c, text, n, path, err);
    k2_free(text);
    return code;
}

k2_code k2_config_set(k2_config *c, const char *assignment, k2_error *err)
{
    static const char name[] = "--set";
    const char *equals = strchr(assignment, '=');
    char path[PATH_TEXT_MAX];
    if (!equals || equals == assignment || (size_t)(equals - assignment) >= sizeof path)
        return k2_error_set(err, K2_BAD_INPUT, "--set: found \"%.100s\", expected path=value", assignment);
    memcpy(path, assignment, (size_t)(equals - assignment));
    path[equals - assignment] = 0;
    const k2i_key *k = k2i_key_find(path);
    if (!k) return unknown(path, name, err);
    bool text = k->type == K2I_STR || k->type == K2I_ENUM;
    size_t n = strlen(equals + 1);
    const char *fault = !text                          ? k2_json_fault(equals + 1, n, JSON_DEPTH_MAX)
                        : k2_utf8_valid(equals + 1, n) ? NULL
                                                       : "is not UTF-8";
    if (fault) return k2_error_set(err, K2_BAD_INPUT, "%s: %s: the value %s", name, path, fault);
    cJSON *v = text ? cJSON_CreateString(equals + 1) : cJSON_ParseWithOpts(equals + 1, NULL, 1);
    /* A number that JSON cannot hold exactly (a seed above 2^53) is taken by its digits. */
    uint64_t whole;
    if (k->type == K2I_U64 && k2_str_u64(equals + 1, &whole)) {
        cJSON_Delete(v);
        v = cJSON_CreateString(equals + 1);
    }
    if (!v) v = cJSON_CreateString(equals + 1); /* not JSON: the word itself, for the error that says what is expected */
    k2_code code = set_key(k, c, v, name, err);
    cJSON_Delete(v);
    return code;
}
