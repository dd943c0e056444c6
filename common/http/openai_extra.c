/* Parameters of other engines. A proxy passes them on as they stood; the built-in engine takes those that ask for what it does
 * anyway, which is what clients written for another engine send with every request, and refuses the rest. */
#include "openai_int.h"

#include <stdio.h>
#include <string.h>

typedef struct foreign {
    const char *name, *value; /* the value that changes nothing, as JSON; null does so for all of them */
    bool in_completion, in_chat;
} foreign;

static const foreign known[] = {
    {"skip_special_tokens", "true", true, true},      {"spaces_between_special_tokens", "true", true, true},
    {"use_beam_search", "false", true, true},         {"length_penalty", "1", true, true},
    {"early_stopping", "false", true, true},          {"priority", "0", true, true},
    {"truncate_prompt_tokens", "null", true, true},   {"add_generation_prompt", "true", false, true},
    {"continue_final_message", "false", false, true}, {"modalities", "[\"text\"]", false, true},
};

void k2i_extra_keep(k2_openai_request *r, const cJSON *v)
{
    k2_buf text;
    k2_buf_init(&text, SIZE_MAX / 4);
    if (r->extra) {
        k2_buf_puts(&text, r->extra);
        k2_buf_puts(&text, ",");
    }
    k2_buf_json_string(&text, v->string, strlen(v->string));
    k2_buf_puts(&text, ":");
    char *json = cJSON_PrintUnformatted(v);
    K2_ASSERT(json);
    k2_buf_puts(&text, json);
    cJSON_free(json);
    k2_free(r->extra);
    r->extra = k2_strndup(text.data, text.len);
    k2_buf_fini(&text);
}

static const foreign *find(const char *name, bool chat)
{
    for (size_t i = 0; i < K2_COUNT(known); i++)
        if (strcmp(known[i].name, name) == 0 && (chat ? known[i].in_chat : known[i].in_completion)) return &known[i];
    return NULL;
}

static bool changes_nothing(const foreign *f, const cJSON *v)
{
    cJSON *value = cJSON_Parse(f->value);
    const bool same = cJSON_IsNull(v) || cJSON_Compare(v, value, true);
    cJSON_Delete(value);
    return same;
}

static bool refuse(const cJSON *v, const foreign *f, k2_openai_error *err)
{
    char name[64];
    snprintf(name, sizeof name, "%s", *v->string ? v->string : "\"\""); /* an error has a place */
    const char *near = k2i_openai_nearest(v->string);
    if (f)
        k2_openai_error_set(err, 400, NULL, name, "%s: not supported; the only value understood is %s", name, f->value);
    else if (near)
        k2_openai_error_set(err, 400, "unknown_parameter", name, "%s: unknown parameter; did you mean \"%s\"?", name, near);
    else
        k2_openai_error_set(err, 400, "unknown_parameter", name, "%s: unknown parameter", name);
    return false;
}

bool k2_openai_refuse_extra(const k2_openai_request *r, k2_openai_error *err)
{
    if (!r->extra) return true;
    char *text = k2_asprintf("{%s}", r->extra);
    cJSON *root = cJSON_Parse(text);
    K2_ASSERT(root); /* it was written here */
    bool ok = true;
    for (const cJSON *v = root->child; ok && v; v = v->next) {
        const foreign *f = find(v->string, r->chat);
        if (!f || !changes_nothing(f, v)) ok = refuse(v, f, err);
    }
    cJSON_Delete(root);
    k2_free(text);
    return ok;
}
