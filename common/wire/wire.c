/* The message table, expanded into names, classes and field descriptions; owning and releasing messages. */
#include "common/wire/wire_int.h"

#include <string.h>

typedef struct message {
    const char *name;
    k2_msg_class class;
    const k2i_field *(*fields)(uint32_t *count);
} message;

const k2i_field k2i_header[K2I_HEADER_FIELDS] = {
    {"worker", K2I_U64, 0, offsetof(k2_msg, worker)},
    {"incarnation", K2I_U64, 0, offsetof(k2_msg, incarnation)},
    {"seq", K2I_U64, 0, offsetof(k2_msg, seq)},
    {"cmd", K2I_U64, 0, offsetof(k2_msg, cmd)},
};

/* One function per message, because a field's offset needs the name of the struct that it is in. The last entry ends the list,
 * and keeps the array of a message without fields from being empty. */
#define K2_F(kind, name, cap) {#name, K2I_##kind, cap, start + offsetof(body, name)},
#define K2_X(name, member, class)                                                                                              \
    static const k2i_field *fields_##member(uint32_t *count)                                                                   \
    {                                                                                                                          \
        typedef k2_msg_##member body;                                                                                          \
        enum { start = offsetof(k2_msg, member) };                                                                             \
        static const k2i_field list[] = {K2_WIRE_FIELDS_##member(K2_F){"", K2I_U64, 0, start + sizeof(body)}};                 \
        _Static_assert(K2_COUNT(list) - 1 + K2I_HEADER_FIELDS <= K2I_FIELDS_MAX, "fields of one message");                     \
        *count = (uint32_t)K2_COUNT(list) - 1;                                                                                 \
        return list;                                                                                                           \
    }
K2_WIRE_MESSAGES(K2_X)
#undef K2_X
#undef K2_F

static const message messages[K2_MSG_COUNT] = {{"NONE", K2_MSG_CLASS_REPLY, NULL},
#define K2_X(name, member, class) {#name, K2_MSG_CLASS_##class, fields_##member},
                                               K2_WIRE_MESSAGES(K2_X)
#undef K2_X
};

const char *k2_msg_name(k2_msg_type type)
{
    K2_ASSERT((unsigned)type < K2_MSG_COUNT);
    return messages[type].name;
}

k2_msg_class k2_msg_class_of(k2_msg_type type)
{
    K2_ASSERT(type > K2_MSG_NONE && (unsigned)type < K2_MSG_COUNT);
    return messages[type].class;
}

const k2i_field *k2i_fields(k2_msg_type type, uint32_t *count)
{
    K2_ASSERT(type > K2_MSG_NONE && (unsigned)type < K2_MSG_COUNT);
    return messages[type].fields(count);
}

void k2_msg_copy(k2_msg *to, const k2_msg *from)
{
    /* By way of the wire: one path that knows the fields is enough, and messages are few. */
    k2_buf buf;
    k2_buf_init(&buf, K2_WIRE_BYTES_MAX);
    K2_ASSERT(k2_wire_encode(from, &buf, NULL) == K2_OK);
    K2_ASSERT(k2_wire_decode(buf.data, buf.len, to, NULL) == K2_OK);
    k2_buf_fini(&buf);
}

void k2_msg_free(k2_msg *msg)
{
    if (msg->block) k2_free(msg->block);
    memset(msg, 0, sizeof *msg);
}
