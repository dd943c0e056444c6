/* A message to bytes. */
#include "common/wire/wire_int.h"

#include <msgpack.h>
#include <string.h>

static int put(void *out, const char *bytes, size_t n)
{
    return k2_buf_append(out, bytes, n) ? 0 : -1;
}

static void put_str(msgpack_packer *pk, const char *s, size_t n)
{
    msgpack_pack_str(pk, n);
    if (n > 0) msgpack_pack_str_body(pk, s, n);
}

static void put_digest(msgpack_packer *pk, k2_digest d)
{
    unsigned char b[16];
    for (int i = 0; i < 8; i++) {
        b[i] = (unsigned char)(d.hi >> (56 - 8 * i));
        b[8 + i] = (unsigned char)(d.lo >> (56 - 8 * i));
    }
    msgpack_pack_bin(pk, sizeof b);
    msgpack_pack_bin_body(pk, b, sizeof b);
}

typedef struct place {
    const char *message, *field;
    k2_error *err;
} place;

static k2_code put_checked_str(msgpack_packer *pk, const char *s, uint32_t cap, const place *at)
{
    size_t n = s ? strlen(s) : 0;
    if (n > cap) return k2_error_set(at->err, K2_LIMIT, "%s.%s: %zu bytes, at most %u", at->message, at->field, n, cap);
    put_str(pk, s, n);
    return K2_OK;
}

static k2_code put_count(msgpack_packer *pk, uint32_t n, uint32_t cap, const place *at)
{
    if (n > cap) return k2_error_set(at->err, K2_LIMIT, "%s.%s: %u items, at most %u", at->message, at->field, n, cap);
    msgpack_pack_array(pk, n);
    return K2_OK;
}

static k2_code put_list(msgpack_packer *pk, const k2i_field *f, const void *value, const place *at)
{
    /* All list types are a pointer and a count, in this order. */
    uint32_t n = ((const k2_wire_strs *)value)->count;
    k2_code code = put_count(pk, n, f->cap, at);
    for (uint32_t i = 0; code == K2_OK && i < n; i++) {
        if (f->kind == K2I_STRS) {
            code = put_checked_str(pk, ((const k2_wire_strs *)value)->items[i], K2I_ITEM_MAX, at);
        } else if (f->kind == K2I_U64S) {
            msgpack_pack_uint64(pk, ((const k2_wire_u64s *)value)->items[i]);
        } else if (f->kind == K2I_METRICS) {
            const k2_wire_metric *m = &((const k2_wire_metrics *)value)->items[i];
            msgpack_pack_array(pk, 2);
            code = put_checked_str(pk, m->name, K2_WIRE_NAME_MAX, at);
            msgpack_pack_double(pk, m->value);
        } else {
            const k2_wire_engine *e = &((const k2_wire_engines *)value)->items[i];
            msgpack_pack_array(pk, 5);
            msgpack_pack_uint64(pk, e->id);
            msgpack_pack_uint64(pk, e->incarnation);
            code = put_checked_str(pk, e->url, K2I_ITEM_MAX, at);
            put_digest(pk, e->digest);
            if (code == K2_OK) code = put_checked_str(pk, e->state, K2_WIRE_NAME_MAX, at);
        }
    }
    return code;
}

static k2_code put_field(msgpack_packer *pk, const k2i_field *f, const k2_msg *msg, const place *at)
{
    const void *value = (const char *)msg + f->offset;
    put_str(pk, f->name, strlen(f->name));
    switch (f->kind) {
    case K2I_U64: msgpack_pack_uint64(pk, *(const uint64_t *)value); return K2_OK;
    case K2I_F64: msgpack_pack_double(pk, *(const double *)value); return K2_OK;
    case K2I_STR: return put_checked_str(pk, *(const char *const *)value, f->cap, at);
    case K2I_DIGEST: put_digest(pk, *(const k2_digest *)value); return K2_OK;
    case K2I_STRS:
    case K2I_U64S:
    case K2I_METRICS:
    case K2I_ENGINES: break;
    }
    return put_list(pk, f, value, at);
}

k2_code k2_wire_encode(const k2_msg *msg, k2_buf *out, k2_error *err)
{
    size_t mark = out->len;
    bool overflow = out->overflow;
    uint32_t n;
    const k2i_field *fields = k2i_fields(msg->type, &n);
    const char *name = k2_msg_name(msg->type);
    msgpack_packer pk;
    msgpack_packer_init(&pk, out, put);
    out->overflow = false;
    msgpack_pack_map(&pk, 1 + K2I_HEADER_FIELDS + n);
    put_str(&pk, "type", 4);
    put_str(&pk, name, strlen(name));
    k2_code code = K2_OK;
    for (uint32_t i = 0; code == K2_OK && i < K2I_HEADER_FIELDS + n; i++) {
        const k2i_field *f = i < K2I_HEADER_FIELDS ? &k2i_header[i] : &fields[i - K2I_HEADER_FIELDS];
        code = put_field(&pk, f, msg, &(place){name, f->name, err});
    }
    if (code == K2_OK && (out->overflow || out->len - mark > K2_WIRE_BYTES_MAX))
        code = k2_error_set(err, K2_LIMIT, "%s: more than the %zu bytes that it may have", name,
                            K2_MIN(out->cap_max - mark, (size_t)K2_WIRE_BYTES_MAX));
    out->overflow = overflow;
    if (code == K2_OK) return K2_OK;
    out->len = mark;
    if (out->data) out->data[mark] = 0;
    return code;
}
