/* msgpack-c reserves memory for a declared count as soon as it has read the count. So the bones are checked first: every
 * declared size against the bytes that are there, the number of values and the depth against their caps. */
#include "common/wire/skim_int.h"

#include "common/wire/wire.h"

typedef struct head {
    uint32_t skip;     /* bytes behind the head that belong to the value itself */
    uint32_t children; /* values that follow as its members */
    size_t head_bytes;
    bool container;
} head;

static uint32_t load_be(const unsigned char *p, size_t n)
{
    uint32_t v = 0;
    for (size_t i = 0; i < n; i++) v = v << 8 | p[i];
    return v;
}

/* Sizes of the types 0xc0 to 0xdf: how many bytes of length follow, how many fixed bytes. */
typedef struct shape {
    enum { SHAPE_FIXED, SHAPE_BYTES, SHAPE_ARRAY, SHAPE_MAP, SHAPE_BAD } kind;
    uint8_t n;
} shape;

static const shape shapes[32] = {
    {SHAPE_FIXED, 0}, {SHAPE_BAD, 0},   {SHAPE_FIXED, 0}, {SHAPE_FIXED, 0}, /* nil, never used, false, true */
    {SHAPE_BYTES, 1}, {SHAPE_BYTES, 2}, {SHAPE_BYTES, 4}, {SHAPE_BAD, 0},   /* bin 8 16 32, ext 8 */
    {SHAPE_BAD, 0},   {SHAPE_BAD, 0},   {SHAPE_FIXED, 4}, {SHAPE_FIXED, 8}, /* ext 16 32, float 32 64 */
    {SHAPE_FIXED, 1}, {SHAPE_FIXED, 2}, {SHAPE_FIXED, 4}, {SHAPE_FIXED, 8}, /* uint */
    {SHAPE_FIXED, 1}, {SHAPE_FIXED, 2}, {SHAPE_FIXED, 4}, {SHAPE_FIXED, 8}, /* int */
    {SHAPE_BAD, 0},   {SHAPE_BAD, 0},   {SHAPE_BAD, 0},   {SHAPE_BAD, 0},   /* fixext */
    {SHAPE_BAD, 0},   {SHAPE_BYTES, 1}, {SHAPE_BYTES, 2}, {SHAPE_BYTES, 4}, /* fixext 16, str 8 16 32 */
    {SHAPE_ARRAY, 2}, {SHAPE_ARRAY, 4}, {SHAPE_MAP, 2},   {SHAPE_MAP, 4},
};

static k2_code read_head(const unsigned char *p, size_t left, head *h, k2_error *err)
{
    unsigned char b = p[0];
    *h = (head){.head_bytes = 1};
    if (b <= 0x7f || b >= 0xe0) return K2_OK;
    if (b <= 0x8f) {
        h->children = (b & 15u) * 2;
        h->container = true;
        return K2_OK;
    }
    if (b <= 0x9f) {
        h->children = b & 15u;
        h->container = true;
        return K2_OK;
    }
    if (b <= 0xbf) {
        h->skip = b & 31u;
        return K2_OK;
    }
    const shape *s = &shapes[b - 0xc0];
    if (s->kind == SHAPE_BAD) return k2_error_set(err, K2_BAD_INPUT, "byte 0x%02x found, a plain msgpack value expected", b);
    if (s->kind == SHAPE_FIXED) {
        h->skip = s->n;
        return K2_OK;
    }
    if (left < 1u + s->n) return K2_INCOMPLETE;
    uint32_t size = load_be(p + 1, s->n);
    h->head_bytes += s->n;
    if (s->kind == SHAPE_BYTES) {
        h->skip = size;
        return K2_OK;
    }
    h->container = true;
    if (size > K2_WIRE_VALUES_MAX)
        return k2_error_set(err, K2_LIMIT, "a list of %u items, at most %u", size, K2_WIRE_VALUES_MAX);
    h->children = s->kind == SHAPE_MAP ? size * 2 : size;
    return K2_OK;
}

static k2_code incomplete(size_t n, k2_error *err)
{
    return k2_error_set(err, K2_INCOMPLETE, "the message ends after %zu bytes", n);
}

k2_code k2i_wire_skim(const unsigned char *bytes, size_t n, uint32_t *values, k2_error *err)
{
    uint32_t open[K2_WIRE_DEPTH_MAX] = {0}; /* members still to come, per level */
    uint32_t depth = 0, count = 0;
    size_t at = 0;
    do {
        if (at >= n) return incomplete(n, err);
        head h;
        k2_code code = read_head(bytes + at, n - at, &h, err);
        if (code == K2_INCOMPLETE) return incomplete(n, err);
        if (code != K2_OK) return code;
        at += h.head_bytes;
        /* Every member takes at least one byte. */
        if (h.skip > n - at || h.children > n - at) return incomplete(n, err);
        at += h.skip;
        if (++count > K2_WIRE_VALUES_MAX) return k2_error_set(err, K2_LIMIT, "more than %u values", K2_WIRE_VALUES_MAX);
        if (depth > 0) open[depth - 1]--;
        if (h.container && h.children > 0) {
            if (depth == K2_WIRE_DEPTH_MAX) return k2_error_set(err, K2_LIMIT, "nested deeper than %u", K2_WIRE_DEPTH_MAX);
            open[depth++] = h.children;
        }
        while (depth > 0 && open[depth - 1] == 0) depth--;
    } while (depth > 0);
    if (at != n) return k2_error_set(err, K2_BAD_INPUT, "%zu bytes behind the message", n - at);
    *values = count;
    return K2_OK;
}
