/* The message table as data: what encoder and decoder walk over. */
#ifndef K2_COMMON_WIRE_INT_H
#define K2_COMMON_WIRE_INT_H

#include "common/wire/wire.h"

typedef enum k2i_kind {
#define K2_X(kind, ctype) K2I_##kind,
    K2_WIRE_KINDS(K2_X)
#undef K2_X
} k2i_kind;

typedef struct k2i_field {
    const char *name;
    k2i_kind kind;
    uint32_t cap;
    size_t offset; /* in k2_msg */
} k2i_field;

/* Bytes of all strings in items of lists. */
#define K2I_ITEM_MAX K2_WIRE_TEXT_MAX

/* The four numbers of the header come first, then the fields of the type. */
#define K2I_HEADER_FIELDS 4u
#define K2I_FIELDS_MAX    32u
extern const k2i_field k2i_header[K2I_HEADER_FIELDS];
const k2i_field *k2i_fields(k2_msg_type type, uint32_t *count);

#endif
