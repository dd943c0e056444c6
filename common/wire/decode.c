/* Bytes to a message: the bones are skimmed, msgpack-c makes a tree, and the tree is held against the table. */
#include "common/wire/skim_int.h"
#include "common/wire/wire_int.h"

#include <msgpack.h>
#include <string.h>

/* Strings and lists of one message, cut from one block: its size is known from the skim. */
typedef struct block {
    unsigned char *bytes;
    size_t used, size;
} block;

static void *block_take(block *b, size_t n)
{
    size_t start = (b->used + 7u) & ~(size_t)7;
    K2_ASSERT(start + n <= b->size);
    b->used = start + n;
    return b->bytes + start;
}

typedef struct place {
    const char *message, *field;
    k2_error *err;
} place;

static const char *kind_of(const msgpack_object *o)
{
    switch (o->type) {
    case MSGPACK_OBJECT_NIL: return "nil";
    case MSGPACK_OBJECT_BOOLEAN: return "boolean";
    case MSGPACK_OBJECT_POSITIVE_INTEGER: return "unsigned number";
    case MSGPACK_OBJECT_NEGATIVE_INTEGER: return "negative number";
    case MSGPACK_OBJECT_FLOAT32: return "32-bit float";
    case MSGPACK_OBJECT_FLOAT64: return "float";
    case MSGPACK_OBJECT_STR: return "string";
    case MSGPACK_OBJECT_ARRAY: return "list";
    case MSGPACK_OBJECT_MAP: return "map";
    case MSGPACK_OBJECT_BIN: return "bytes";
    case MSGPACK_OBJECT_EXT: break;
    }
    return "extension";
}

static k2_code wrong(const place *at, const msgpack_object *o, const char *expected)
{
    return k2_error_set(at->err, K2_BAD_INPUT, "%s.%s: %s found, %s expected", at->message, at->field, kind_of(o), expected);
}

static k2_code get_u64(const msgpack_object *o, uint64_t *out, const place *at)
{
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return wrong(at, o, "unsigned number");
    *out = o->via.u64;
    return K2_OK;
}

static k2_code get_f64(const msgpack_object *o, double *out, const place *at)
{
    if (o->type != MSGPACK_OBJECT_FLOAT64) return wrong(at, o, "float");
    *out = o->via.f64;
    return K2_OK;
}

static k2_code get_str(const msgpack_object *o, uint32_t cap, block *b, const char **out, const place *at)
{
    if (o->type != MSGPACK_OBJECT_STR) return wrong(at, o, "string");
    uint32_t n = o->via.str.size;
    if (n > cap) return k2_error_set(at->err, K2_LIMIT, "%s.%s: %u bytes, at most %u", at->message, at->field, n, cap);
    if (n > 0 && memchr(o->via.str.ptr, 0, n))
        return k2_error_set(at->err, K2_BAD_INPUT, "%s.%s: a 0 byte inside a string", at->message, at->field);
    char *s = block_take(b, n + 1u);
    if (n > 0) memcpy(s, o->via.str.ptr, n);
    s[n] = 0;
    *out = s;
    return K2_OK;
}

static k2_code get_digest(const msgpack_object *o, k2_digest *out, const place *at)
{
    if (o->type != MSGPACK_OBJECT_BIN || o->via.bin.size != 16) return wrong(at, o, "16 bytes");
    k2_digest d = {0, 0};
    for (int i = 0; i < 8; i++) {
        d.hi = d.hi << 8 | (unsigned char)o->via.bin.ptr[i];
        d.lo = d.lo << 8 | (unsigned char)o->via.bin.ptr[8 + i];
    }
    *out = d;
    return K2_OK;
}

static k2_code get_tuple(const msgpack_object *o, uint32_t n, const place *at)
{
    if (o->type != MSGPACK_OBJECT_ARRAY) return wrong(at, o, "list");
    if (o->via.array.size != n)
        return k2_error_set(at->err, K2_BAD_INPUT, "%s.%s: item of %u values, %u expected", at->message, at->field,
                            o->via.array.size, n);
    return K2_OK;
}

static k2_code get_metric(const msgpack_object *o, block *b, k2_wire_metric *out, const place *at)
{
    k2_code code = get_tuple(o, 2, at);
    if (code == K2_OK) code = get_str(&o->via.array.ptr[0], K2_WIRE_NAME_MAX, b, &out->name, at);
    if (code == K2_OK) code = get_f64(&o->via.array.ptr[1], &out->value, at);
    return code;
}

static k2_code get_engine(const msgpack_object *o, block *b, k2_wire_engine *out, const place *at)
{
    k2_code code = get_tuple(o, 5, at);
    if (code != K2_OK) return code;
    const msgpack_object *v = o->via.array.ptr;
    code = get_u64(&v[0], &out->id, at);
    if (code == K2_OK) code = get_u64(&v[1], &out->incarnation, at);
    if (code == K2_OK) code = get_str(&v[2], K2I_ITEM_MAX, b, &out->url, at);
    if (code == K2_OK) code = get_digest(&v[3], &out->digest, at);
    if (code == K2_OK) code = get_str(&v[4], K2_WIRE_NAME_MAX, b, &out->state, at);
    return code;
}

static k2_code get_list(const msgpack_object *o, const k2i_field *f, block *b, void *out, const place *at)
{
    static const size_t item_bytes[] = {[K2I_STRS] = sizeof(const char *),
                                        [K2I_U64S] = sizeof(uint64_t),
                                        [K2I_METRICS] = sizeof(k2_wire_metric),
                                        [K2I_ENGINES] = sizeof(k2_wire_engine)};
    if (o->type != MSGPACK_OBJECT_ARRAY) return wrong(at, o, "list");
    uint32_t n = o->via.array.size;
    if (n > f->cap) return k2_error_set(at->err, K2_LIMIT, "%s.%s: %u items, at most %u", at->message, at->field, n, f->cap);
    void *items = n ? block_take(b, n * item_bytes[f->kind]) : NULL;
    k2_code code = K2_OK;
    for (uint32_t i = 0; code == K2_OK && i < n; i++) {
        const msgpack_object *item = &o->via.array.ptr[i];
        if (f->kind == K2I_STRS)
            code = get_str(item, K2I_ITEM_MAX, b, (const char **)items + i, at);
        else if (f->kind == K2I_U64S)
            code = get_u64(item, (uint64_t *)items + i, at);
        else if (f->kind == K2I_METRICS)
            code = get_metric(item, b, (k2_wire_metric *)items + i, at);
        else
            code = get_engine(item, b, (k2_wire_engine *)items + i, at);
    }
    /* All list types are a pointer and a count, in this order. */
    *(k2_wire_strs *)out = (k2_wire_strs){.items = items, .count = n};
    return code;
}

static k2_code get_field(const msgpack_object *o, const k2i_field *f, block *b, k2_msg *msg, const place *at)
{
    void *out = (char *)msg + f->offset;
    switch (f->kind) {
    case K2I_U64: return get_u64(o, out, at);
    case K2I_F64: return get_f64(o, out, at);
    case K2I_STR: return get_str(o, f->cap, b, out, at);
    case K2I_DIGEST: return get_digest(o, out, at);
    case K2I_STRS:
    case K2I_U64S:
    case K2I_METRICS:
    case K2I_ENGINES: break;
    }
    return get_list(o, f, b, out, at);
}

static bool str_is(const msgpack_object *o, const char *s)
{
    return o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(s) &&
           (o->via.str.size == 0 || memcmp(o->via.str.ptr, s, o->via.str.size) == 0);
}

static k2_code get_type(const msgpack_object *root, k2_msg *msg, k2_error *err)
{
    if (root->type != MSGPACK_OBJECT_MAP)
        return k2_error_set(err, K2_BAD_INPUT, "message: %s found, map expected", kind_of(root));
    const msgpack_object *type = NULL;
    for (uint32_t i = 0; i < root->via.map.size && !type; i++)
        if (str_is(&root->via.map.ptr[i].key, "type")) type = &root->via.map.ptr[i].val;
    if (!type) return k2_error_set(err, K2_BAD_INPUT, "message: field type is missing");
    for (int t = K2_MSG_NONE + 1; t < K2_MSG_COUNT; t++)
        if (str_is(type, k2_msg_name((k2_msg_type)t))) msg->type = (k2_msg_type)t;
    if (msg->type != K2_MSG_NONE) return K2_OK;
    if (type->type != MSGPACK_OBJECT_STR) return wrong(&(place){"message", "type", err}, type, "string");
    return k2_error_set(err, K2_BAD_INPUT, "message: unknown type %.*s", (int)K2_MIN(type->via.str.size, 64u),
                        type->via.str.ptr);
}

static k2_code get_fields(const msgpack_object *root, block *b, k2_msg *msg, k2_error *err)
{
    const char *name = k2_msg_name(msg->type);
    uint32_t n, seen = 0; /* bit i: field i was there; bit 31: type */
    const k2i_field *fields = k2i_fields(msg->type, &n);
    for (uint32_t i = 0; i < root->via.map.size; i++) {
        const msgpack_object_kv *kv = &root->via.map.ptr[i];
        const k2i_field *f = NULL;
        uint32_t at = 31;
        for (uint32_t k = 0; k < K2I_HEADER_FIELDS + n && !f; k++) {
            const k2i_field *g = k < K2I_HEADER_FIELDS ? &k2i_header[k] : &fields[k - K2I_HEADER_FIELDS];
            if (!str_is(&kv->key, g->name)) continue;
            f = g;
            at = k;
        }
        if (!f && kv->key.type != MSGPACK_OBJECT_STR)
            return k2_error_set(err, K2_BAD_INPUT, "%s: %s found, field name expected", name, kind_of(&kv->key));
        if (!f && !str_is(&kv->key, "type"))
            return k2_error_set(err, K2_BAD_INPUT, "%s: unknown field %.*s", name, (int)K2_MIN(kv->key.via.str.size, 64u),
                                kv->key.via.str.ptr);
        if (seen >> at & 1u) return k2_error_set(err, K2_BAD_INPUT, "%s.%s: given twice", name, f ? f->name : "type");
        seen |= 1u << at;
        k2_code code = f ? get_field(&kv->val, f, b, msg, &(place){name, f->name, err}) : K2_OK;
        if (code != K2_OK) return code;
    }
    for (uint32_t k = 0; k < K2I_HEADER_FIELDS + n; k++)
        if (!(seen >> k & 1u))
            return k2_error_set(err, K2_BAD_INPUT, "%s.%s: missing", name,
                                k < K2I_HEADER_FIELDS ? k2i_header[k].name : fields[k - K2I_HEADER_FIELDS].name);
    return K2_OK;
}

k2_code k2_wire_decode(const void *bytes, size_t n, k2_msg *msg, k2_error *err)
{
    if (n > K2_WIRE_BYTES_MAX) return k2_error_set(err, K2_LIMIT, "message of %zu bytes, at most %u", n, K2_WIRE_BYTES_MAX);
    uint32_t values = 0;
    k2_code code = k2i_wire_skim(bytes, n, &values, err);
    if (code != K2_OK) return code;
    msgpack_unpacked tree;
    msgpack_unpacked_init(&tree);
    size_t used = 0;
    if (msgpack_unpack_next(&tree, bytes, n, &used) != MSGPACK_UNPACK_SUCCESS || used != n) {
        msgpack_unpacked_destroy(&tree);
        return k2_error_set(err, K2_BAD_INPUT, "message: not msgpack");
    }
    /* Each value needs at most one item of a list, or one string with its terminator; both may be padded to 8 bytes. */
    block b = {.size = n + (size_t)values * (sizeof(k2_wire_engine) + 8)};
    b.bytes = k2_realloc_array(NULL, 1, b.size);
    k2_msg result = {.block = b.bytes};
    code = get_type(&tree.data, &result, err);
    if (code == K2_OK) code = get_fields(&tree.data, &b, &result, err);
    msgpack_unpacked_destroy(&tree);
    if (code == K2_OK)
        *msg = result;
    else
        k2_free(b.bytes);
    return code;
}
