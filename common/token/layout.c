/* Chats as tokens. What stands between two control tokens is encoded as one text, as the layouts' own programs do: where a word
 * ends may depend on what follows it. */
#include "common/token/token_int.h"

#include <string.h>

#define SEGMENT_BYTES_MAX (1u << 30)

/* Text since the last control token, and the first error. */
typedef struct writer {
    const k2_tokenizer *t;
    k2_tokens *out;
    k2_error *err;
    k2_buf segment;
    k2i_cuts cuts; /* of the layout's text, names of control tokens included */
    k2_code code;
} writer;

static void text_n(writer *w, const char *text, size_t n)
{
    if (n) k2_buf_append(&w->segment, text, n);
}

static void text(writer *w, const char *s)
{
    text_n(w, s, strlen(s));
}

static void flush(writer *w)
{
    if (w->code == K2_OK && w->segment.overflow)
        w->code = k2_error_set(w->err, K2_LIMIT, "messages: a text of more than %u bytes", SEGMENT_BYTES_MAX);
    if (w->code == K2_OK && w->segment.len)
        w->code = k2i_encode_next(w->t, w->t->cuts ? &w->cuts : NULL, w->segment.data, w->segment.len, w->out, w->err);
    k2_buf_clear(&w->segment);
}

static void control(writer *w, unsigned number)
{
    const char *name = w->t->layout->controls[number];
    flush(w);
    for (size_t at = 0, n = w->t->cuts ? strlen(name) : 0; at < n;) /* a cut never goes through one */
        at += k2i_cuts_next(&w->cuts, (const unsigned char *)name + at, n - at);
    if (w->code == K2_OK && !k2_tokens_push(w->out, &w->t->controls[number], 1))
        w->code = k2_error_set(w->err, K2_LIMIT, "messages: more than %zu tokens", w->out->count_max);
}

static void begin(writer *w, const k2_tokenizer *t, k2_tokens *out, k2_error *err)
{
    *w = (writer){.t = t, .out = out, .err = err};
    k2_buf_init(&w->segment, SEGMENT_BYTES_MAX);
}

static k2_code end(writer *w)
{
    flush(w);
    k2_buf_fini(&w->segment);
    return w->code;
}

static bool is_role(const k2_token_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

/* ---- byte ---------------------------------------------------------------------------------------------------------------- */

enum { BYTE_USER, BYTE_ASSISTANT, BYTE_SYSTEM, BYTE_END };

static k2_code render_byte(const k2_tokenizer *t, const k2_token_chat *chat, k2_tokens *out, k2_error *err)
{
    writer w;
    begin(&w, t, out, err);
    for (size_t i = 0; i < chat->count; i++) {
        const k2_token_message *m = &chat->messages[i];
        control(&w, is_role(m, "user") ? BYTE_USER : is_role(m, "assistant") ? BYTE_ASSISTANT : BYTE_SYSTEM);
        text_n(&w, m->content, m->content_bytes);
        control(&w, BYTE_END);
    }
    if (chat->generate) control(&w, BYTE_ASSISTANT);
    return end(&w);
}

const k2i_layout k2i_layout_byte = {
    .name = "byte",
    .controls = {"IM_USER", "IM_ASSISTANT", "IM_SYSTEM", "IM_END"},
    .required = 4,
    .turn_end = BYTE_END,
    .roles = "\"system\", \"user\" or \"assistant\"",
    .render = render_byte,
};

/* ---- kimi ---------------------------------------------------------------------------------------------------------------- */

enum {
    KIMI_USER,
    KIMI_ASSISTANT,
    KIMI_SYSTEM,
    KIMI_MIDDLE,
    KIMI_END,
    CALLS_BEGIN,
    CALLS_END,
    CALL_BEGIN,
    CALL_ARGUMENTS,
    CALL_END
};

static void kimi_begin(writer *w, unsigned who, const char *name)
{
    control(w, who);
    text(w, name);
    control(w, KIMI_MIDDLE);
}

static void kimi_system(writer *w, const char *name, const char *body)
{
    kimi_begin(w, KIMI_SYSTEM, name);
    text(w, body);
    control(w, KIMI_END);
}

static void kimi_calls(writer *w, const k2_token_message *m)
{
    if (m->call_count == 0) return;
    control(w, CALLS_BEGIN);
    for (size_t i = 0; i < m->call_count; i++) {
        control(w, CALL_BEGIN);
        text(w, m->calls[i].id);
        control(w, CALL_ARGUMENTS);
        text(w, m->calls[i].arguments);
        control(w, CALL_END);
    }
    control(w, CALLS_END);
}

static void kimi_turn(writer *w, const k2_token_message *m)
{
    kimi_begin(w,
               is_role(m, "user")        ? KIMI_USER
               : is_role(m, "assistant") ? KIMI_ASSISTANT
                                         : KIMI_SYSTEM,
               m->name ? m->name : m->role);
    if (is_role(m, "tool")) {
        text(w, "## Return of ");
        text(w, m->tool_call_id);
        text(w, "\n");
    }
    text_n(w, m->content, m->content_bytes);
    kimi_calls(w, m);
    control(w, KIMI_END);
}

static k2_code render_kimi(const k2_tokenizer *t, const k2_token_chat *chat, k2_tokens *out, k2_error *err)
{
    writer w;
    begin(&w, t, out, err);
    if (chat->tools) kimi_system(&w, "tool_declare", chat->tools);
    if (!is_role(&chat->messages[0], "system"))
        kimi_system(&w, "system", "You are Kimi, an AI assistant created by Moonshot AI.");
    for (size_t i = 0; i < chat->count; i++) kimi_turn(&w, &chat->messages[i]);
    if (chat->generate) kimi_begin(&w, KIMI_ASSISTANT, "assistant");
    return end(&w);
}

const k2i_layout k2i_layout_kimi = {
    .name = "kimi",
    .controls = {"<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>",
                 "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                 "<|tool_call_argument_begin|>", "<|tool_call_end|>"},
    .required = 5,
    .turn_end = KIMI_END,
    .roles = "\"system\", \"user\", \"assistant\" or \"tool\"",
    .tools = true,
    .render = render_kimi,
};

/* ---- chatml -------------------------------------------------------------------------------------------------------------- */

enum { CHATML_START, CHATML_END };

static k2_code render_chatml(const k2_tokenizer *t, const k2_token_chat *chat, k2_tokens *out, k2_error *err)
{
    writer w;
    begin(&w, t, out, err);
    for (size_t i = 0; i < chat->count; i++) {
        const k2_token_message *m = &chat->messages[i];
        control(&w, CHATML_START);
        text(&w, m->role);
        text(&w, "\n");
        text_n(&w, m->content, m->content_bytes);
        control(&w, CHATML_END);
        text(&w, "\n");
    }
    if (chat->generate) {
        control(&w, CHATML_START);
        text(&w, "assistant\n");
    }
    return end(&w);
}

const k2i_layout k2i_layout_chatml = {
    .name = "chatml",
    .controls = {"<|im_start|>", "<|im_end|>"},
    .required = 2,
    .turn_end = CHATML_END,
    .roles = "\"system\", \"user\" or \"assistant\"",
    .render = render_chatml,
};

/* ---- all -------------------------------------------------------------------------------------------------------------------
 */

static k2_code check_message(const k2_tokenizer *t, const k2_token_message *m, size_t i, k2_error *err)
{
    const k2i_layout *l = t->layout;
    const bool tool = is_role(m, "tool");
    if (!is_role(m, "system") && !is_role(m, "user") && !is_role(m, "assistant") && !(tool && l->tools))
        return k2_error_set(err, K2_BAD_INPUT, "messages[%zu].role: \"%.64s\" is not known, expected %s", i, m->role, l->roles);
    if (m->name && !l->tools)
        return k2_error_set(err, K2_UNSUPPORTED, "messages[%zu].name: the chat layout \"%s\" has no names", i, l->name);
    if (tool && !m->tool_call_id)
        return k2_error_set(err, K2_BAD_INPUT,
                            "messages[%zu].tool_call_id: is missing, a tool's turn says which call it answers", i);
    if (m->call_count == 0) return K2_OK;
    if (!is_role(m, "assistant"))
        return k2_error_set(err, K2_BAD_INPUT, "messages[%zu].tool_calls: only a turn of \"assistant\" may have them", i);
    if (!l->tools)
        return k2_error_set(err, K2_UNSUPPORTED, "messages[%zu].tool_calls: the chat layout \"%s\" has no tools", i, l->name);
    for (unsigned k = l->required; k < K2I_CONTROLS_MAX; k++)
        if (t->controls[k] < 0)
            return k2_error_set(err, K2_UNSUPPORTED, "messages[%zu].tool_calls: the tokenizer has no token \"%s\"", i,
                                l->controls[k]);
    return K2_OK;
}

k2_token_mark k2_tokenizer_mark(const k2_tokenizer *t, int32_t id)
{
    static const k2_token_mark marks[] = {K2_TOKEN_CALLS_BEGIN, K2_TOKEN_CALLS_END, K2_TOKEN_CALL_BEGIN,
                                          K2_TOKEN_CALL_ARGUMENTS, K2_TOKEN_CALL_END};
    if (!t->layout || !t->layout->tools) return K2_TOKEN_TEXT;
    k2_token_mark found = K2_TOKEN_TEXT;
    for (unsigned k = 0; k < K2_COUNT(marks); k++) {
        if (t->controls[CALLS_BEGIN + k] < 0) return K2_TOKEN_TEXT;
        if (t->controls[CALLS_BEGIN + k] == id) found = marks[k];
    }
    return found;
}

const char *k2_tokenizer_chat_layout(const k2_tokenizer *t)
{
    return t->layout ? t->layout->name : NULL;
}

k2_code k2_tokenizer_render(const k2_tokenizer *t, const k2_token_chat *chat, k2_tokens *out, k2_error *err)
{
    const size_t mark = out->count;
    if (!t->layout)
        return k2_error_set(
            err, K2_UNSUPPORTED,
            "the tokenizer has no chat layout that is known: neither <|im_user|>, <|im_assistant|>, <|im_system|>, "
            "<|im_middle|> and <|im_end|> (kimi) nor <|im_start|> and <|im_end|> (chatml) are among its tokens");
    if (chat->count == 0) return k2_error_set(err, K2_BAD_INPUT, "messages: is empty, expected at least one");
    if (chat->tools && !t->layout->tools)
        return k2_error_set(err, K2_UNSUPPORTED, "tools: the chat layout \"%s\" has none", t->layout->name);
    for (size_t i = 0; i < chat->count; i++) {
        k2_code code = check_message(t, &chat->messages[i], i, err);
        if (code != K2_OK) return code;
    }
    k2_code code = t->layout->render(t, chat, out, err);
    if (code != K2_OK) out->count = mark;
    return code;
}

k2_code k2_tokenizer_chat(const k2_tokenizer *t, const k2_token_message *messages, size_t count, bool generate, k2_tokens *out,
                          k2_error *err)
{
    return k2_tokenizer_render(t, &(k2_token_chat){.messages = messages, .count = count, .generate = generate}, out, err);
}
