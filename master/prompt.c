/* prompt - a prompt of a file as the tokens that a model gets. */
#include "master/io_int.h"

#include <string.h>

k2_code k2m_prompt_render(const k2_tokenizer *t, const k2_prompt *p, k2_tokens *out, k2_error *err)
{
    size_t calls = 0, used = 0;
    for (uint32_t i = 0; i < p->message_count; i++) calls += p->messages[i].call_count;
    k2_token_message *messages = k2_alloc_array(p->message_count, sizeof *messages);
    k2_token_call *list = k2_alloc_array(K2_MAX(calls, (size_t)1), sizeof *list);
    for (uint32_t i = 0; i < p->message_count; i++) {
        const k2_prompt_message *m = &p->messages[i];
        messages[i] = (k2_token_message){.role = m->role,
                                         .content = m->content,
                                         .content_bytes = strlen(m->content),
                                         .name = m->name,
                                         .tool_call_id = m->tool_call_id,
                                         .calls = list + used,
                                         .call_count = m->call_count};
        for (uint32_t k = 0; k < m->call_count; k++)
            list[used++] = (k2_token_call){.id = m->calls[k].id, .arguments = m->calls[k].arguments};
    }
    const k2_token_chat chat = {.messages = messages, .count = p->message_count, .tools = p->tools, .generate = true};
    const k2_code code = k2_tokenizer_render(t, &chat, out, err);
    k2_free(messages);
    k2_free(list);
    return code;
}
