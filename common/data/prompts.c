/* Prompt files: a JSONL file read whole, checked whole, and kept in five allocations however many prompts it holds, and
 * one for each declaration of tools. */
#include "common/data/data.h"
#include "jsonl_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AUTO_ID_BYTES 16u /* "line-4294967295" and its terminator */

/* All strings of a prompt are shorter decoded than quoted in the file, so one block of the file's size holds all of them; but
 * for declarations of tools, which are written anew. */
struct k2_prompts {
    char *json; /* the file */
    char *text; /* decoded strings */
    size_t text_used, text_capacity;
    k2_prompt *items;
    size_t count, capacity;
    k2_prompt_message *messages; /* of all prompts, one behind the other */
    size_t message_count, message_capacity;
    k2_prompt_call *calls; /* of all messages */
    size_t call_count, call_capacity;
    char **tools; /* each another one than that before it */
    size_t tools_count;
    k2_digest fingerprint;
};

typedef struct loader {
    k2_prompts *p;
    k2i_place at;
    k2_prompts_limits limits;
} loader;

static const char *const roles[] = {"system", "user", "assistant", "tool"};

static const char *keep(k2_prompts *p, const char *s)
{
    size_t n = strlen(s) + 1;
    K2_ASSERT(n <= p->text_capacity - p->text_used);
    char *kept = memcpy(p->text + p->text_used, s, n);
    p->text_used += n;
    return kept;
}

static void message_add(k2_prompts *p, const k2_prompt_message *m)
{
    if (p->message_count == p->message_capacity) {
        p->message_capacity = K2_MAX(p->message_capacity * 2, (size_t)64);
        p->messages = k2_realloc_array(p->messages, p->message_capacity, sizeof *p->messages);
    }
    p->messages[p->message_count++] = *m;
}

/* A field that must be a string where it is there; `where` is "" or "messages[3]." for the text. */
static k2_code string_field(const loader *l, const cJSON *object, const char *where, const char *key, const char **out,
                            k2_error *err)
{
    const cJSON *item;
    k2_code code = k2i_jsonl_field(l->at, object, key, &item, err);
    if (code != K2_OK) return code;
    if (item && !cJSON_IsString(item))
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: %s%s is %s, expected a string", l->at.name, l->at.line, where, key,
                            k2i_jsonl_type(item));
    *out = item ? item->valuestring : NULL;
    return K2_OK;
}

/* Text parts, one behind the other. */
static k2_code parts_parse(loader *l, const cJSON *list, uint32_t i, const char **out, k2_error *err)
{
    uint32_t k = 0;
    k2_prompts *p = l->p;
    *out = p->text + p->text_used;
    for (const cJSON *part = list->child; part; part = part->next, k++) {
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(part, "text");
        if (!cJSON_IsString(type) || strcmp(type->valuestring, "text") != 0 || !cJSON_IsString(text))
            return k2_error_set(err, K2_BAD_INPUT,
                                "%s:%u: messages[%u].content[%u]: only parts of type \"text\" are understood", l->at.name,
                                l->at.line, i, k);
        keep(p, text->valuestring);
        p->text_used--; /* the next one stands in place of the terminator */
    }
    keep(p, "");
    return K2_OK;
}

static k2_code content_parse(loader *l, const cJSON *item, uint32_t i, bool calls, const char **out, k2_error *err)
{
    const cJSON *content;
    k2_code code = k2i_jsonl_field(l->at, item, "content", &content, err);
    if (code != K2_OK) return code;
    if (calls && (!content || cJSON_IsNull(content))) {
        *out = keep(l->p, "");
        return K2_OK;
    }
    if (!content) return k2_error_set(err, K2_BAD_INPUT, "%s:%u: messages[%u].content is missing", l->at.name, l->at.line, i);
    if (cJSON_IsArray(content)) return parts_parse(l, content, i, out, err);
    if (!cJSON_IsString(content))
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: messages[%u].content is %s, expected a string", l->at.name, l->at.line,
                            i, k2i_jsonl_type(content));
    *out = keep(l->p, content->valuestring);
    return K2_OK;
}

/* A string of at least one byte. */
static const char *word(const cJSON *object, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(v) && v->valuestring[0] ? v->valuestring : NULL;
}

static k2_code call_parse(loader *l, const cJSON *item, uint32_t i, uint32_t k, k2_error *err)
{
    k2_prompts *p = l->p;
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(item, "type");
    const cJSON *function = cJSON_GetObjectItemCaseSensitive(item, "function");
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(function, "arguments");
    const char *id = word(item, "id"), *name = word(function, "name");
    const char *wrong = !id                                                                             ? "id"
                        : type && (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0) ? "type"
                        : !name                                                                         ? "function.name"
                        : !cJSON_IsString(arguments)                                                    ? "function.arguments"
                                                                                                        : NULL;
    if (wrong)
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: messages[%u].tool_calls[%u].%s: expected %s", l->at.name, l->at.line, i,
                            k, wrong,
                            strcmp(wrong, "type") == 0                 ? "\"function\""
                            : strcmp(wrong, "function.arguments") == 0 ? "a string that holds JSON"
                                                                       : "a string of at least one byte");
    if (p->call_count == p->call_capacity) {
        p->call_capacity = K2_MAX(p->call_capacity * 2, (size_t)16);
        p->calls = k2_realloc_array(p->calls, p->call_capacity, sizeof *p->calls);
    }
    p->calls[p->call_count++] =
        (k2_prompt_call){.id = keep(p, id), .name = keep(p, name), .arguments = keep(p, arguments->valuestring)};
    return K2_OK;
}

static k2_code calls_parse(loader *l, const cJSON *item, uint32_t i, const char *role, uint32_t *count, k2_error *err)
{
    const cJSON *list;
    k2_code code = k2i_jsonl_field(l->at, item, "tool_calls", &list, err);
    if (code != K2_OK || !list || cJSON_IsNull(list)) return code;
    const char *wrong = !cJSON_IsArray(list)                                ? "expected a list"
                        : list->child && strcmp(role, "assistant") != 0     ? "only an assistant's message may have them"
                        : cJSON_GetArraySize(list) > (int)K2_DATA_CALLS_MAX ? "holds too many"
                                                                            : NULL;
    if (wrong) return k2_error_set(err, K2_BAD_INPUT, "%s:%u: messages[%u].tool_calls: %s", l->at.name, l->at.line, i, wrong);
    for (const cJSON *e = list->child; e && code == K2_OK; e = e->next) code = call_parse(l, e, i, (*count)++, err);
    return code;
}

static k2_code message_parse(loader *l, const cJSON *item, uint32_t i, k2_error *err)
{
    char where[32];
    const char *role = NULL, *name = NULL, *answers = NULL;
    k2_prompt_message m = {0};
    snprintf(where, sizeof where, "messages[%u].", i);
    if (!cJSON_IsObject(item))
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: messages[%u] is %s, expected an object", l->at.name, l->at.line, i,
                            k2i_jsonl_type(item));
    k2_code code = string_field(l, item, where, "role", &role, err);
    if (code != K2_OK) return code;
    if (!role) return k2_error_set(err, K2_BAD_INPUT, "%s:%u: %srole is missing", l->at.name, l->at.line, where);
    for (size_t r = 0; r < K2_COUNT(roles); r++)
        if (strcmp(role, roles[r]) == 0) m.role = roles[r];
    if (!m.role)
        return k2_error_set(err, K2_BAD_INPUT,
                            "%s:%u: %srole is \"%.64s\", expected \"system\", \"user\", \"assistant\" or \"tool\"", l->at.name,
                            l->at.line, where, role);
    code = calls_parse(l, item, i, m.role, &m.call_count, err);
    if (code == K2_OK) code = content_parse(l, item, i, m.call_count > 0, &m.content, err);
    if (code == K2_OK) code = string_field(l, item, where, "name", &name, err);
    if (code == K2_OK) code = string_field(l, item, where, "tool_call_id", &answers, err);
    if (code != K2_OK) return code;
    const bool tool = strcmp(m.role, "tool") == 0;
    if (tool != (answers != NULL))
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: %stool_call_id %s", l->at.name, l->at.line, where,
                            tool ? "is missing: a tool's message says which call it answers" : "is a tool's message's alone");
    m.name = name && *name ? keep(l->p, name) : NULL;
    m.tool_call_id = answers ? keep(l->p, answers) : NULL;
    message_add(l->p, &m);
    return K2_OK;
}

static k2_code messages_parse(loader *l, const cJSON *list, uint32_t *count, k2_error *err)
{
    if (!cJSON_IsArray(list))
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: messages is %s, expected a list", l->at.name, l->at.line,
                            k2i_jsonl_type(list));
    for (const cJSON *item = list->child; item; item = item->next, (*count)++) {
        if (*count == K2_DATA_MESSAGES_MAX)
            return k2_error_set(err, K2_LIMIT, "%s:%u: messages holds more than %u", l->at.name, l->at.line,
                                K2_DATA_MESSAGES_MAX);
        k2_code code = message_parse(l, item, *count, err);
        if (code != K2_OK) return code;
    }
    if (*count == 0) return k2_error_set(err, K2_BAD_INPUT, "%s:%u: messages is empty", l->at.name, l->at.line);
    const char *last = l->p->messages[l->p->message_count - 1].role;
    if (strcmp(last, "user") != 0 && strcmp(last, "tool") != 0)
        return k2_error_set(err, K2_BAD_INPUT,
                            "%s:%u: messages[%u].role is \"%s\", but the last message must be a user's or a tool's", l->at.name,
                            l->at.line, *count - 1, last);
    return K2_OK;
}

static k2_code turns_parse(loader *l, const cJSON *object, uint32_t *count, k2_error *err)
{
    const cJSON *list = NULL;
    const char *prompt = NULL;
    k2_code code = k2i_jsonl_field(l->at, object, "messages", &list, err);
    if (code == K2_OK) code = string_field(l, object, "", "prompt", &prompt, err);
    if (code != K2_OK) return code;
    if (!list == !prompt)
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: %s of \"messages\" and \"prompt\" %s, expected one of them", l->at.name,
                            l->at.line, list ? "both" : "none", list ? "are there" : "is there");
    if (list) return messages_parse(l, list, count, err);
    message_add(l->p, &(k2_prompt_message){.role = roles[1], .content = keep(l->p, prompt)});
    *count = 1;
    return K2_OK;
}

/* The declaration; prompts that follow each other with the same one share it. */
static k2_code tools_parse(loader *l, const cJSON *object, const k2_prompt *line, const char **out, k2_error *err)
{
    k2_prompts *p = l->p;
    const cJSON *list;
    const char *text;
    size_t n;
    uint32_t i = 0;
    k2_code code = k2i_jsonl_field(l->at, object, "tools", &list, err);
    if (code != K2_OK || !list || cJSON_IsNull(list)) return code;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > (int)K2_DATA_TOOLS_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: tools: expected a list of up to %u", l->at.name, l->at.line,
                            K2_DATA_TOOLS_MAX);
    for (const cJSON *e = list->child; e; e = e->next, i++) {
        const char *type = word(e, "type");
        if (!type || strcmp(type, "function") != 0 || !word(cJSON_GetObjectItemCaseSensitive(e, "function"), "name"))
            return k2_error_set(err, K2_BAD_INPUT, "%s:%u: tools[%u]: expected type \"function\" and function.name", l->at.name,
                                l->at.line, i);
    }
    if (i == 0) return K2_OK;
    k2_buf sorted;
    k2_buf_init(&sorted, SIZE_MAX / 4);
    if (!k2_json_member(line->json, line->json_bytes, "tools", &text, &n) || !k2_json_sorted(text, n, &sorted)) {
        k2_buf_fini(&sorted);
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: tools: no JSON in the strict sense, or a name twice in an object",
                            l->at.name, l->at.line);
    }
    if (p->tools_count == 0 || strcmp(p->tools[p->tools_count - 1], sorted.data) != 0) {
        p->tools = k2_realloc_array(p->tools, p->tools_count + 1, sizeof *p->tools);
        p->tools[p->tools_count++] = k2_strndup(sorted.data, sorted.len);
    }
    k2_buf_fini(&sorted);
    *out = p->tools[p->tools_count - 1];
    return K2_OK;
}

static k2_code id_parse(loader *l, const cJSON *object, const char **id, k2_error *err)
{
    char automatic[AUTO_ID_BYTES];
    const char *given = NULL;
    k2_code code = string_field(l, object, "", "id", &given, err);
    if (code != K2_OK) return code;
    if (given && (*given == 0 || strlen(given) > K2_DATA_ID_BYTES_MAX))
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: id has %zu bytes, expected 1 to %u", l->at.name, l->at.line,
                            strlen(given), K2_DATA_ID_BYTES_MAX);
    snprintf(automatic, sizeof automatic, "line-%u", l->at.line);
    *id = keep(l->p, given ? given : automatic);
    return K2_OK;
}

static k2_code prompt_parse(loader *l, const cJSON *object, k2_prompt *out, k2_error *err)
{
    const char *answer = NULL;
    const cJSON *difficulty = NULL;
    k2_code code = id_parse(l, object, &out->id, err);
    if (code == K2_OK) code = turns_parse(l, object, &out->message_count, err);
    if (code == K2_OK) code = tools_parse(l, object, out, &out->tools, err);
    if (code == K2_OK) code = string_field(l, object, "", "answer", &answer, err);
    if (code == K2_OK) code = k2i_jsonl_field(l->at, object, "difficulty", &difficulty, err);
    if (code != K2_OK) return code;
    if (!answer && !l->limits.answer_optional)
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: \"answer\" is missing", l->at.name, l->at.line);
    out->answer = answer ? keep(l->p, answer) : NULL;
    out->difficulty = cJSON_IsNumber(difficulty) ? difficulty->valuedouble : (double)NAN;
    out->line = l->at.line;
    return K2_OK;
}

static k2_code line_load(loader *l, const char *line, size_t n, k2_error *err)
{
    k2_prompts *p = l->p;
    cJSON *object = NULL;
    if (p->count == l->limits.prompts_max)
        return k2_error_set(err, K2_LIMIT, "%s:%u: more than %u prompts", l->at.name, l->at.line, l->limits.prompts_max);
    if (p->count == p->capacity) {
        p->capacity = K2_MAX(p->capacity * 2, (size_t)64);
        p->items = k2_realloc_array(p->items, p->capacity, sizeof *p->items);
    }
    k2_prompt *item = &p->items[p->count];
    *item = (k2_prompt){.json = line, .json_bytes = n};
    k2_code code = k2i_jsonl_object(l->at, line, n, &object, err);
    if (code != K2_OK) return code;
    code = prompt_parse(l, object, item, err);
    cJSON_Delete(object);
    if (code == K2_OK) p->count++;
    return code;
}

static int by_id(const void *a, const void *b)
{
    const k2_prompt *x = *(const k2_prompt *const *)a, *y = *(const k2_prompt *const *)b;
    int order = strcmp(x->id, y->id);
    return order ? order : x->line < y->line ? -1 : x->line > y->line;
}

/* Names the first line whose id was there before. */
static k2_code ids_check(const char *name, const k2_prompts *p, k2_error *err)
{
    const k2_prompt **sorted = k2_alloc_array(p->count, sizeof *sorted), *second = NULL, *first = NULL;
    for (size_t i = 0; i < p->count; i++) sorted[i] = &p->items[i];
    qsort(sorted, p->count, sizeof *sorted, by_id);
    for (size_t i = 1; i < p->count; i++) {
        if (strcmp(sorted[i - 1]->id, sorted[i]->id) != 0 || (second && second->line < sorted[i]->line)) continue;
        first = sorted[i - 1];
        second = sorted[i];
    }
    k2_free(sorted);
    if (!second) return K2_OK;
    return k2_error_set(err, K2_BAD_INPUT, "%s:%u: id \"%s\" was given before, at line %u", name, second->line, second->id,
                        first->line);
}

/* Pointers into arrays that grew while loading, line ends, fingerprint. */
static void finish(k2_prompts *p)
{
    k2_digest_stream *digest = k2_digest_begin();
    size_t message = 0, call = 0;
    for (size_t i = 0; i < p->message_count; i++) {
        p->messages[i].calls = p->calls ? p->calls + call : NULL;
        call += p->messages[i].call_count;
    }
    for (size_t i = 0; i < p->count; i++) {
        k2_prompt *item = &p->items[i];
        item->messages = p->messages + message;
        message += item->message_count;
        k2_digest_update(digest, item->json, item->json_bytes);
        k2_digest_update(digest, "\n", 1);
        p->json[item->json - p->json + (ptrdiff_t)item->json_bytes] = 0;
    }
    p->fingerprint = k2_digest_end(digest);
}

static size_t lines_count(const char *bytes, size_t n)
{
    size_t lines = 1;
    for (const char *at = bytes; (at = memchr(at, '\n', n - (size_t)(at - bytes))); at++) lines++;
    return lines;
}

/* Takes `bytes` (n of them and a terminator). */
static k2_code load(const char *name, char *bytes, size_t n, const k2_prompts_limits *limits, k2_prompts **out, k2_error *err)
{
    loader l = {.p = k2_alloc(sizeof *l.p), .at = {.name = name}, .limits = *limits};
    l.p->json = bytes;
    l.p->text_capacity = n + lines_count(bytes, n) * AUTO_ID_BYTES;
    l.p->text = k2_alloc(l.p->text_capacity);
    k2i_jsonl lines = {.name = name, .bytes = bytes, .n = n, .line_bytes_max = limits->line_bytes_max};
    k2_code code;
    const char *line;
    size_t len;
    while ((code = k2i_jsonl_next(&lines, &line, &len, err)) == K2_OK) {
        l.at.line = lines.line;
        code = line_load(&l, line, len, err);
        if (code != K2_OK) goto free_prompts;
    }
    if (code != K2_NOT_FOUND) goto free_prompts;
    code = l.p->count ? ids_check(name, l.p, err) : k2_error_set(err, K2_BAD_INPUT, "%s: holds no prompt", name);
    if (code != K2_OK) goto free_prompts;
    finish(l.p);
    *out = l.p;
    return K2_OK;
free_prompts:
    k2_prompts_free(l.p);
    return code;
}

static k2_prompts_limits with_defaults(const k2_prompts_limits *given)
{
    k2_prompts_limits l = given ? *given : (k2_prompts_limits){0};
    if (!l.file_bytes_max) l.file_bytes_max = K2_DATA_FILE_BYTES_MAX;
    if (!l.line_bytes_max) l.line_bytes_max = K2_DATA_LINE_BYTES_MAX;
    if (!l.prompts_max) l.prompts_max = K2_DATA_PROMPTS_MAX;
    return l;
}

k2_code k2_prompts_load(const char *path, const k2_prompts_limits *limits, k2_prompts **out, k2_error *err)
{
    const k2_prompts_limits l = with_defaults(limits);
    char *bytes = NULL;
    size_t n = 0;
    k2_code code = k2_file_read(path, l.file_bytes_max, &bytes, &n, err);
    return code == K2_OK ? load(path, bytes, n, &l, out, err) : code;
}

k2_code k2_prompts_parse(const char *name, const char *bytes, size_t n, const k2_prompts_limits *limits, k2_prompts **out,
                         k2_error *err)
{
    const k2_prompts_limits l = with_defaults(limits);
    if (n > l.file_bytes_max)
        return k2_error_set(err, K2_LIMIT, "%s: %zu bytes, at most %llu are accepted", name, n,
                            (unsigned long long)l.file_bytes_max);
    char *copy = k2_alloc(n + 1);
    if (n) memcpy(copy, bytes, n);
    return load(name, copy, n, &l, out, err);
}

void k2_prompts_free(k2_prompts *p)
{
    if (!p) return;
    k2_free(p->json);
    k2_free(p->text);
    k2_free(p->items);
    k2_free(p->messages);
    k2_free(p->calls);
    for (size_t i = 0; i < p->tools_count; i++) k2_free(p->tools[i]);
    k2_free(p->tools);
    k2_free(p);
}

size_t k2_prompts_count(const k2_prompts *p)
{
    return p->count;
}

const k2_prompt *k2_prompts_at(const k2_prompts *p, size_t i)
{
    K2_ASSERT(i < p->count);
    return &p->items[i];
}

k2_digest k2_prompts_fingerprint(const k2_prompts *p)
{
    return p->fingerprint;
}
