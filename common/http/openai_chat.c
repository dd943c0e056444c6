/* openai_chat.c - who said what in a chat, and with which tools: messages, declarations and calls, read and written. */
#include "openai_int.h"

#include <stdio.h>
#include <string.h>

/* ---- calls of tools --------------------------------------------------------------------------------------------------- */

void k2_openai_calls_clear(k2_openai_calls *c)
{
    for (size_t i = 0; i < c->count; i++) {
        k2_free(c->list[i].id);
        k2_free(c->list[i].name);
        k2_buf_fini(&c->list[i].arguments);
    }
    k2_free(c->list);
    *c = (k2_openai_calls){0};
}

static k2_openai_call *call_at(k2_openai_calls *c, uint32_t index)
{
    for (size_t i = c->count; i-- > 0;)
        if (c->list[i].index == index) return &c->list[i];
    if (c->count == K2_OPENAI_CALLS_MAX) return NULL;
    if (c->count == c->capacity) {
        c->capacity = K2_MAX(c->capacity * 2, (size_t)2);
        c->list = k2_realloc_array(c->list, c->capacity, sizeof *c->list);
    }
    k2_openai_call *call = &c->list[c->count++];
    *call = (k2_openai_call){.index = index};
    k2_buf_init(&call->arguments, SIZE_MAX / 4);
    return call;
}

bool k2_openai_calls_add(k2_openai_calls *c, uint32_t index, const char *id, const char *name, const char *arguments, size_t n)
{
    k2_openai_call *call = call_at(c, index);
    if (!call) return false;
    if (id && !call->id) call->id = k2_strdup(id);
    if (name && !call->name) call->name = k2_strdup(name);
    return k2_buf_append(&call->arguments, arguments, n);
}

bool k2_openai_calls_append(k2_openai_calls *c, const k2_openai_call *calls, size_t count)
{
    bool fits = true;
    for (size_t i = 0; i < count && fits; i++) {
        const k2_openai_call *call = &calls[i];
        fits = k2_openai_calls_add(c, call->index, call->id, call->name, call->arguments.data, call->arguments.len);
    }
    return fits;
}

/* ---- messages ------------------------------------------------------------------------------------------------------------ */

/* The message that is read: where its members are. */
typedef struct place {
    k2i_reader *x;
    size_t message;
    char at[96];
} place;

static const char *at(place *p, const char *member)
{
    snprintf(p->at, sizeof p->at, "messages[%zu].%s", p->message, member);
    return p->at;
}

static const char *at_call(place *p, size_t call, const char *member)
{
    snprintf(p->at, sizeof p->at, "messages[%zu].tool_calls[%zu]%s", p->message, call, member);
    return p->at;
}

/* The member, or NULL where it is absent or null: clients send null for "not given". */
static const cJSON *get(const cJSON *object, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(v) ? NULL : v;
}

static bool content_parts(place *p, const cJSON *list, k2_buf *out)
{
    char name[32];
    size_t i = 0;
    for (const cJSON *part = list->child; part; part = part->next, i++) {
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(part, "text");
        snprintf(name, sizeof name, "content[%zu]", i);
        if (!cJSON_IsString(type) || strcmp(type->valuestring, "text") != 0)
            return k2i_reader_bad(p->x, at(p, name), "only parts of type \"text\" are understood");
        if (!cJSON_IsString(text)) return k2i_reader_bad(p->x, at(p, name), "expected a string in \"text\"");
        k2_buf_puts(out, text->valuestring);
    }
    return true;
}

static bool read_content(place *p, const cJSON *content, k2_openai_message *out)
{
    if (!content && out->calls.count > 0) {
        out->content = k2_strdup("");
        return true;
    }
    if (!cJSON_IsString(content) && !cJSON_IsArray(content))
        return k2i_reader_bad(p->x, at(p, "content"), "expected a string or a list of text parts");
    k2_buf text;
    k2_buf_init(&text, SIZE_MAX / 4);
    bool ok = cJSON_IsString(content) ? k2_buf_puts(&text, content->valuestring) : content_parts(p, content, &text);
    if (ok) {
        out->content = k2_strndup(text.data ? text.data : "", text.len);
        out->content_bytes = text.len;
    }
    k2_buf_fini(&text);
    return ok;
}

static bool read_role(place *p, const cJSON *role, k2_openai_message *out)
{
    static const char *const roles[] = {"system", "user", "assistant", "developer", "tool"};
    bool known = false;
    for (size_t k = 0; cJSON_IsString(role) && k < K2_COUNT(roles); k++) known |= strcmp(role->valuestring, roles[k]) == 0;
    if (!known) return k2i_reader_bad(p->x, at(p, "role"), "expected one of system, user, assistant, developer, tool");
    out->role = k2_strdup(role->valuestring);
    return true;
}

/* A member that is a string where it is there. */
static bool read_string(place *p, const cJSON *m, const char *name, char **out)
{
    const cJSON *v = get(m, name);
    if (!v) return true;
    if (!cJSON_IsString(v)) return k2i_reader_expected(p->x, at(p, name), "a string", v);
    if (v->valuestring[0]) *out = k2_strdup(v->valuestring);
    return true;
}

static bool read_call(place *p, size_t i, const cJSON *v, k2_openai_calls *out)
{
    const cJSON *id = get(v, "id"), *type = get(v, "type"), *function = get(v, "function");
    const cJSON *name = get(function, "name"), *arguments = get(function, "arguments");
    if (!cJSON_IsObject(v)) return k2i_reader_expected(p->x, at_call(p, i, ""), "an object with id and function", v);
    if (!cJSON_IsString(id) || !id->valuestring[0])
        return k2i_reader_bad(p->x, at_call(p, i, ".id"), "expected a string of at least one byte");
    if (type && (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0))
        return k2i_reader_bad(p->x, at_call(p, i, ".type"), "expected \"function\"");
    if (!cJSON_IsString(name) || !name->valuestring[0])
        return k2i_reader_bad(p->x, at_call(p, i, ".function.name"), "expected a string of at least one byte");
    if (!cJSON_IsString(arguments))
        return k2i_reader_bad(p->x, at_call(p, i, ".function.arguments"), "expected a string that holds JSON");
    return k2_openai_calls_add(out, (uint32_t)i, id->valuestring, name->valuestring, arguments->valuestring,
                               strlen(arguments->valuestring));
}

static bool read_calls(place *p, const cJSON *list, k2_openai_message *out)
{
    size_t i = 0;
    if (!list) return true;
    if (!cJSON_IsArray(list)) return k2i_reader_expected(p->x, at(p, "tool_calls"), "a list of calls", list);
    if (list->child && strcmp(out->role, "assistant") != 0)
        return k2i_reader_bad(p->x, at(p, "tool_calls"), "only a message of \"assistant\" may have them");
    if (cJSON_GetArraySize(list) > (int)K2_OPENAI_CALLS_MAX)
        return k2i_reader_bad(p->x, at(p, "tool_calls"), "more than %u calls", K2_OPENAI_CALLS_MAX);
    for (const cJSON *e = list->child; e; e = e->next, i++)
        if (!read_call(p, i, e, &out->calls)) return false;
    return true;
}

static bool read_message(place *p, const cJSON *v, k2_openai_message *out)
{
    if (!cJSON_IsObject(v)) {
        snprintf(p->at, sizeof p->at, "messages[%zu]", p->message);
        return k2i_reader_expected(p->x, p->at, "an object with role and content", v);
    }
    if (!read_role(p, get(v, "role"), out) || !read_calls(p, get(v, "tool_calls"), out)) return false;
    if (!read_content(p, get(v, "content"), out) || !read_string(p, v, "name", &out->name)) return false;
    if (!read_string(p, v, "tool_call_id", &out->tool_call_id)) return false;
    const bool tool = strcmp(out->role, "tool") == 0;
    if (tool && !out->tool_call_id)
        return k2i_reader_bad(p->x, at(p, "tool_call_id"), "missing: a tool's message says which call it answers");
    if (!tool && out->tool_call_id)
        return k2i_reader_bad(p->x, at(p, "tool_call_id"), "only a message of \"tool\" may have it");
    return true;
}

bool k2i_chat_messages(k2i_reader *x, const cJSON *v)
{
    k2_openai_request *r = x->r;
    place p = {.x = x};
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 0;
    if (n == 0) return k2i_reader_bad(x, "messages", "expected a list of at least one message");
    if ((uint32_t)n > K2_OPENAI_MESSAGES_MAX)
        return k2i_reader_bad(x, "messages", "more than %u messages", K2_OPENAI_MESSAGES_MAX);
    r->messages = k2_alloc_array((size_t)n, sizeof *r->messages);
    for (const cJSON *e = v->child; e; e = e->next) {
        p.message = r->message_count++;
        if (!read_message(&p, e, &r->messages[p.message])) return false;
    }
    return true;
}

void k2i_message_fini(k2_openai_message *m)
{
    k2_free(m->role);
    k2_free(m->content);
    k2_free(m->name);
    k2_free(m->tool_call_id);
    k2_openai_calls_clear(&m->calls);
}

/* ---- tools ------------------------------------------------------------------------------------------------------------ */

bool k2i_chat_tools(k2i_reader *x, const cJSON *v)
{
    char at_tool[64];
    size_t i = 0, n;
    const char *text;
    if (!cJSON_IsArray(v)) return k2i_reader_expected(x, "tools", "a list of tools", v);
    if (cJSON_GetArraySize(v) > (int)K2_OPENAI_TOOLS_MAX)
        return k2i_reader_bad(x, "tools", "more than %u tools", K2_OPENAI_TOOLS_MAX);
    for (const cJSON *e = v->child; e; e = e->next, i++) {
        const cJSON *type = get(e, "type"), *name = get(get(e, "function"), "name");
        snprintf(at_tool, sizeof at_tool, "tools[%zu].type", i);
        if (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0)
            return k2i_reader_bad(x, at_tool, "expected \"function\"");
        snprintf(at_tool, sizeof at_tool, "tools[%zu].function.name", i);
        if (!cJSON_IsString(name) || !name->valuestring[0])
            return k2i_reader_bad(x, at_tool, "expected a string of at least one byte");
    }
    if (i == 0) return true;
    /* From the text, not from the tree: the tree has no numbers but doubles. */
    k2_buf sorted;
    k2_buf_init(&sorted, SIZE_MAX / 4);
    bool ok = k2_json_member(x->body, x->body_bytes, "tools", &text, &n) && k2_json_sorted(text, n, &sorted);
    k2_buf_fini(&sorted);
    if (!ok) return k2i_reader_bad(x, "tools", "no JSON in the strict sense, or a name twice in an object");
    x->r->tools = k2_strndup(text, n);
    return true;
}

bool k2i_chat_tool_choice(k2i_reader *x, const cJSON *v)
{
    const char *choice = cJSON_IsString(v) ? v->valuestring : "";
    x->r->tool_choice_none = strcmp(choice, "none") == 0;
    if (x->r->tool_choice_none || strcmp(choice, "auto") == 0) return true;
    return k2i_reader_bad(x, "tool_choice", "not supported; understood are \"none\" and \"auto\"");
}

/* ---- writing ---------------------------------------------------------------------------------------------------------- */

static void put_string(k2_buf *out, const char *key, const char *value)
{
    k2_buf_puts(out, key);
    k2_buf_json_string(out, value, strlen(value));
}

void k2i_calls_write(k2_buf *out, const k2_openai_call *calls, size_t count, bool chunk)
{
    for (size_t i = 0; i < count; i++) {
        const k2_openai_call *c = &calls[i];
        k2_buf_puts(out, i ? ",{" : "\"tool_calls\":[{");
        if (chunk) {
            k2_buf_puts(out, "\"index\":");
            k2i_openai_put_u64(out, c->index);
            k2_buf_puts(out, ",");
        }
        if (c->id) {
            put_string(out, "\"id\":", c->id);
            k2_buf_puts(out, ",\"type\":\"function\",");
        }
        k2_buf_puts(out, "\"function\":{");
        if (c->name) {
            put_string(out, "\"name\":", c->name);
            k2_buf_puts(out, ",");
        }
        k2_buf_puts(out, "\"arguments\":");
        k2_buf_json_string(out, c->arguments.data, c->arguments.len);
        k2_buf_puts(out, "}}");
    }
    k2_buf_puts(out, "]");
}

void k2i_chat_write(k2_buf *out, const k2_openai_request *r)
{
    for (size_t i = 0; i < r->message_count; i++) {
        const k2_openai_message *m = &r->messages[i];
        put_string(out, i ? ",{\"role\":" : "\"messages\":[{\"role\":", m->role);
        k2_buf_puts(out, ",\"content\":");
        k2_buf_json_string(out, m->content, m->content_bytes);
        if (m->name) put_string(out, ",\"name\":", m->name);
        if (m->tool_call_id) put_string(out, ",\"tool_call_id\":", m->tool_call_id);
        if (m->calls.count > 0) {
            k2_buf_puts(out, ",");
            k2i_calls_write(out, m->calls.list, m->calls.count, false);
        }
        k2_buf_puts(out, "}");
    }
    k2_buf_puts(out, "]");
    if (r->tools) k2_buf_puts(out, ",\"tools\":"), k2_buf_puts(out, r->tools);
    if (r->tool_choice_none) k2_buf_puts(out, ",\"tool_choice\":\"none\"");
    if (r->one_call) k2_buf_puts(out, ",\"parallel_tool_calls\":false");
}
