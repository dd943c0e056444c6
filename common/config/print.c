/* Configuration to text: resolved JSON, identity, and the reference page. */
#include "common/config/config_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 1048576u /* far above what the table can print */

/* The shortest decimal that reads back as the same double. */
static void put_f64(k2_buf *b, double v)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    k2_buf_puts(b, text);
}

static void put_value(k2_buf *b, const k2i_key *k, const void *value)
{
    const k2_config_list *list = value;
    switch (k->type) {
    case K2I_U64:
        k2_buf_printf(b, *(const uint64_t *)value > 9007199254740992u ? "\"%" PRIu64 "\"" : "%" PRIu64,
                      *(const uint64_t *)value);
        break;
    case K2I_F64: put_f64(b, *(const double *)value); break;
    case K2I_BOOL: k2_buf_puts(b, *(const bool *)value ? "true" : "false"); break;
    case K2I_STR:
    case K2I_ENUM: k2_buf_json_string(b, value, strlen(value)); break;
    case K2I_LIST:
        k2_buf_puts(b, "[");
        for (uint32_t i = 0; i < list->count; i++) {
            if (i) k2_buf_puts(b, ", ");
            k2_buf_json_string(b, list->item[i], strlen(list->item[i]));
        }
        k2_buf_puts(b, "]");
    }
}

/* Parts that path shares with the one before it; a part counts only when it ends in a dot in both. */
static size_t shared_sections(const char *before, const char *path)
{
    size_t shared = 0;
    for (size_t i = 0; before[i] && before[i] == path[i]; i++) shared += path[i] == '.';
    return shared;
}

static size_t sections(const char *path)
{
    size_t n = 0;
    for (; *path; path++) n += *path == '.';
    return n;
}

static void indent(k2_buf *b, size_t depth)
{
    k2_buf_puts(b, "\n");
    for (size_t i = 0; i < depth; i++) k2_buf_puts(b, "  ");
}

char *k2_config_json(const k2_config *c)
{
    k2_buf b;
    k2_buf_init(&b, TEXT_MAX);
    k2_buf_puts(&b, "{");
    const char *before = "";
    for (size_t i = 0; i < k2i_key_count; i++) {
        const char *path = k2i_keys[i].path;
        size_t open = sections(before), keep = i ? shared_sections(before, path) : 0;
        for (; open > keep; open--) {
            indent(&b, open);
            k2_buf_puts(&b, "}");
        }
        if (i) k2_buf_puts(&b, ",");
        const char *part = path;
        for (size_t skip = 0; skip < keep; skip++) part = strchr(part, '.') + 1;
        for (const char *dot; (dot = strchr(part, '.')); part = dot + 1) {
            indent(&b, ++open);
            k2_buf_printf(&b, "\"%.*s\": {", (int)(dot - part), part);
        }
        indent(&b, open + 1);
        k2_buf_printf(&b, "\"%s\": ", part);
        put_value(&b, &k2i_keys[i], k2i_key_value(&k2i_keys[i], c));
        before = path;
    }
    for (size_t open = sections(before); open > 0; open--) {
        indent(&b, open);
        k2_buf_puts(&b, "}");
    }
    k2_buf_puts(&b, "\n}\n");
    K2_ASSERT(!b.overflow);
    return b.data;
}

k2_digest k2_config_identity(const k2_config *c)
{
    k2_buf b;
    k2_buf_init(&b, TEXT_MAX);
    for (size_t i = 0; i < k2i_key_count; i++) {
        if (!k2i_keys[i].same) continue;
        k2_buf_printf(&b, "%s=", k2i_keys[i].path);
        put_value(&b, &k2i_keys[i], k2i_key_value(&k2i_keys[i], c));
        k2_buf_puts(&b, "\n");
    }
    K2_ASSERT(!b.overflow);
    k2_digest d = k2_digest_of(b.data, b.len);
    k2_buf_fini(&b);
    return d;
}

static void put_expected(k2_buf *b, const k2i_key *k)
{
    switch (k->type) {
    case K2I_U64:
        k2_buf_printf(b, "whole number, %" PRIu64 " to ", k->u_min);
        if (k->u_max == UINT64_MAX)
            k2_buf_puts(b, "2^64 - 1");
        else
            k2_buf_printf(b, "%" PRIu64, k->u_max);
        break;
    case K2I_F64: k2_buf_printf(b, "number, %g to %g", k->f_min, k->f_max); break;
    case K2I_BOOL: k2_buf_puts(b, "true or false"); break;
    case K2I_STR: k2_buf_puts(b, "string"); break;
    case K2I_LIST: k2_buf_puts(b, "list of strings"); break;
    case K2I_ENUM:
        for (const char *at = k->choices; *at; at++) {
            if (at == k->choices || *at == '|') k2_buf_puts(b, at == k->choices ? "`" : "`, `");
            if (*at != '|') k2_buf_append(b, at, 1);
        }
        k2_buf_puts(b, "`");
    }
}

char *k2_config_markdown(void)
{
    k2_config *c = k2_alloc(sizeof *c);
    k2_config_defaults(c);
    k2_buf b;
    k2_buf_init(&b, TEXT_MAX);
    k2_buf_puts(
        &b,
        "# Configuration keys\n\n"
        "This page is what `k2rl config` prints; a test holds it against the code. A configuration is one JSON object; dots\n"
        "are nesting: `trainer.optimizer.lr` is `{\"trainer\": {\"optimizer\": {\"lr\": …}}}`. Keys that are left out have "
        "their\n"
        "defaults; unknown keys, wrong types and values out of range are errors. `--set path=value` overrides on the command\n"
        "line. A key with a star may change between two starts of one run; the others decide what the run computes and\n"
        "must stay as they were for it to be resumed. Relative paths count from the directory in which\n"
        "a process is started.\n\n"
        "| key | default | value | meaning |\n| --- | --- | --- | --- |\n");
    for (size_t i = 0; i < k2i_key_count; i++) {
        const k2i_key *k = &k2i_keys[i];
        k2_buf_printf(&b, "| `%s`%s | `", k->path, k->same ? "" : " *");
        put_value(&b, k, k2i_key_value(k, c));
        k2_buf_puts(&b, "` | ");
        put_expected(&b, k);
        k2_buf_printf(&b, " | %s |\n", k->doc);
    }
    k2_free(c);
    K2_ASSERT(!b.overflow);
    return b.data;
}
