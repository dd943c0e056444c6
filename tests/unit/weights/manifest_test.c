/* Manifests and segments: layout, digests that depend on values alone, and damage that is found wherever it is. */
#include "common/weights/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float a[100], b[1], c[64];

static const k2_weights_slot three[] = {
    {.name = "model.a", .shape = {.rank = 2, .size = {10, 10}}, .data = a},
    {.name = "model.b", .shape = {.rank = 0}, .data = b},
    {.name = "c", .shape = {.rank = 1, .size = {64}}, .data = c},
};

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) a[i] = (float)i / 3;
    b[0] = 42;
    for (int i = 0; i < 64; i++) c[i] = (float)-i;
    return 0;
}

/* A filled segment; the manifest is the caller's too. */
static unsigned char *fill(const k2_weights_slot *slots, size_t count, uint64_t version, uint32_t chunk,
                           k2_weights_manifest **m, uint64_t *bytes)
{
    k2_error err = {0};
    k2_weights_segment s;
    if (k2_weights_manifest_plan(slots, count, version, chunk, m, &err) != K2_OK) fail_msg("%s", err.text);
    *bytes = k2_weights_segment_plan(*m, &s);
    unsigned char *memory = k2_alloc(*bytes);
    memset(memory, 0xee, *bytes);
    k2_weights_segment_fill(*m, slots, count, memory, *bytes);
    return memory;
}

static void a_segment_travels(void **state)
{
    (void)state;
    k2_weights_manifest *sent = NULL, *got = NULL;
    k2_weights_segment s;
    k2_error err = {0};
    uint64_t bytes = 0;
    unsigned char *memory = fill(three, 3, 12, 4096, &sent, &bytes);
    assert_int_equal(sent->data_bytes, 512 + 256 + 256);
    assert_int_equal(sent->chunk_count, 1);
    /* The reader sees bytes only. */
    assert_int_equal(k2_weights_segment_decode(memory, bytes, &s, &err), K2_OK);
    assert_int_equal(s.version, 12);
    assert_int_equal(s.data_offset, 4096);
    assert_int_equal(s.data_bytes, 1024);
    const char *json = (const char *)memory + K2_WEIGHTS_SEGMENT_HEADER_BYTES;
    assert_true(k2_digest_equal(s.manifest_digest, k2_digest_of(json, s.manifest_bytes)));
    if (k2_weights_manifest_decode(json, s.manifest_bytes, &got, &err) != K2_OK) fail_msg("%s", err.text);
    assert_int_equal(got->version, 12);
    assert_int_equal(got->count, 3);
    assert_string_equal(got->entries[1].name, "model.b");
    assert_int_equal(got->entries[1].offset, 512);
    assert_int_equal(got->entries[2].offset, 768);
    assert_true(k2_digest_equal(got->digest, k2_weights_digest(three, 3)));
    for (uint64_t i = 256 + s.manifest_bytes; i < s.data_offset; i++) assert_int_equal(memory[i], 0);
    for (uint64_t i = 400; i < 512; i++) assert_int_equal(memory[s.data_offset + i], 0);
    assert_int_equal(k2_weights_manifest_verify(got, memory + s.data_offset, &err), K2_OK);
    /* Slots in another order. */
    k2_weights_slot other[] = {{.name = "c", .shape = three[2].shape},
                               {.name = "model.a", .shape = three[0].shape},
                               {.name = "model.b", .shape = three[1].shape}};
    assert_int_equal(k2_weights_manifest_check(got, other, 3, &err), K2_OK);
    assert_int_equal(k2_weights_manifest_bind(got, memory + s.data_offset, other, 3, &err), K2_OK);
    assert_memory_equal(a, other[1].data, sizeof a);
    assert_memory_equal(b, other[2].data, sizeof b);
    assert_memory_equal(c, other[0].data, sizeof c);
    assert_true(k2_digest_equal(got->digest, k2_weights_digest(other, 3)));
    k2_weights_manifest_free(sent);
    k2_weights_manifest_free(got);
    k2_free(memory);
}

static void the_digest_depends_on_values_alone(void **state)
{
    (void)state;
    static float big[5000];
    k2_weights_slot slots[] = {three[0], three[1], {.name = "big", .shape = {.rank = 1, .size = {5000}}, .data = big}};
    const k2_weights_slot turned[] = {slots[2], slots[1], slots[0]};
    k2_weights_manifest *m = NULL, *n = NULL;
    uint64_t bytes = 0;
    unsigned char *first = fill(slots, 3, 1, 4096, &m, &bytes), *second = fill(turned, 3, 2, 8192, &n, &bytes);
    const k2_digest d = k2_weights_digest(slots, 3);
    assert_true(k2_digest_equal(m->digest, d));
    assert_true(k2_digest_equal(n->digest, d));
    assert_int_equal(m->chunk_count, 6); /* 20,736 bytes */
    assert_int_equal(n->chunk_count, 3);
    k2_weights_manifest_free(m);
    k2_weights_manifest_free(n);
    k2_free(first);
    k2_free(second);
    /* A value, a name and a shape each change it. */
    big[4999] = 1e-45f;
    assert_false(k2_digest_equal(d, k2_weights_digest(slots, 3)));
    big[4999] = 0;
    assert_true(k2_digest_equal(d, k2_weights_digest(slots, 3)));
    slots[2].name = "bih";
    assert_false(k2_digest_equal(d, k2_weights_digest(slots, 3)));
    slots[2].name = "big";
    slots[2].shape = (k2_shape){.rank = 2, .size = {1, 5000}};
    assert_false(k2_digest_equal(d, k2_weights_digest(slots, 3)));
}

/* Every byte of the data flipped in turn: the gap between tensors counts for its chunk. */
static void every_damaged_byte_is_found(void **state)
{
    (void)state;
    k2_weights_manifest *m = NULL;
    k2_weights_segment s;
    k2_error err;
    uint64_t bytes = 0;
    unsigned char *memory = fill(three, 3, 7, 4096, &m, &bytes), *data;
    assert_int_equal(k2_weights_segment_decode(memory, bytes, &s, &err), K2_OK);
    data = memory + s.data_offset;
    for (uint64_t i = 0; i < s.data_bytes; i++) {
        data[i] ^= 0x10;
        assert_int_equal(k2_weights_manifest_verify(m, data, &err), K2_CORRUPT);
        data[i] ^= 0x10;
    }
    assert_string_equal(err.text, "version 7: the hash of chunk 0 (from byte 0) does not match");
    m->entries[1].digest.lo ^= 1;
    assert_int_equal(k2_weights_manifest_verify(m, data, &err), K2_CORRUPT);
    assert_string_equal(err.text, "version 7: the digest of tensor model.b does not match");
    m->entries[1].digest.lo ^= 1;
    assert_int_equal(k2_weights_manifest_verify(m, data, &err), K2_OK);
    /* The JSON too: a flipped byte is never taken for the same manifest. */
    char *json = (char *)memory + K2_WEIGHTS_SEGMENT_HEADER_BYTES;
    for (uint64_t i = 0; i < s.manifest_bytes; i++) {
        json[i] = (char)(json[i] ^ 1);
        assert_false(k2_digest_equal(s.manifest_digest, k2_digest_of(json, s.manifest_bytes)));
        k2_weights_manifest *got = NULL;
        k2_weights_manifest_decode(json, s.manifest_bytes, &got, &err);
        k2_weights_manifest_free(got);
        json[i] = (char)(json[i] ^ 1);
    }
    k2_weights_manifest_free(m);
    k2_free(memory);
}

static void other_models_are_refused(void **state)
{
    (void)state;
    k2_weights_manifest *m = NULL;
    k2_error err;
    uint64_t bytes = 0;
    unsigned char *memory = fill(three, 3, 7, 4096, &m, &bytes);
    k2_weights_slot other[3] = {three[0], three[1], three[2]};
    assert_int_equal(k2_weights_manifest_check(m, three, 2, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "3 tensors, but this model has 2");
    other[1].name = "model.d";
    assert_int_equal(k2_weights_manifest_bind(m, memory, other, 3, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "tensor model.b is not one of this model's");
    other[1].name = "model.b";
    other[0].shape.size[0] = 5;
    assert_int_equal(k2_weights_manifest_check(m, other, 3, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "tensor model.a has the shape [10,10], expected [5,10]");
    k2_weights_manifest_free(m);
    k2_weights_manifest_free(NULL);
    k2_free(memory);
    m = NULL;
    assert_int_equal(k2_weights_manifest_plan(three, 3, 0, 4095, &m, &err), K2_BAD_INPUT);
    assert_int_equal(k2_weights_manifest_plan(three, 3, 0, 5000, &m, &err), K2_BAD_INPUT);
    assert_int_equal(k2_weights_manifest_plan(three, 3, 0, 0, &m, &err), K2_BAD_INPUT);
    assert_null(m);
}

static void hostile_headers(void **state)
{
    (void)state;
    k2_weights_manifest *m = NULL;
    k2_weights_segment s;
    k2_error err;
    uint64_t bytes = 0;
    unsigned char *memory = fill(three, 3, 7, 4096, &m, &bytes);
    static const struct {
        size_t at;
        uint64_t value;
        const char *text;
    } cases[] = {
        {0, 0, "does not begin with K2WSEG1"},
        {16, 0, "a manifest of 0 bytes"},
        {16, UINT64_MAX, "a manifest of"},
        {16, 10000, "data at byte 4096, expected 12288"},
        {24, 0, "data at byte 0, expected 4096"},
        {24, UINT64_MAX, "data at byte"},
        {32, 1023, "do not make a segment of 5120 bytes"},
        {32, UINT64_MAX - 4095, "do not make a segment of 5120 bytes"},
        {56, 1, "header byte 56 is not 0"},
        {248, 1ull << 56, "header byte 255 is not 0"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        unsigned char header[K2_WEIGHTS_SEGMENT_HEADER_BYTES];
        memcpy(header, memory, sizeof header);
        k2_store_u64le(header + cases[i].at, cases[i].value);
        assert_int_equal(k2_weights_segment_decode(header, bytes, &s, &err), K2_BAD_INPUT);
        if (!strstr(err.text, cases[i].text)) fail_msg("case %zu: \"%s\"", i, err.text);
    }
    assert_int_equal(k2_weights_segment_decode(memory, bytes - 1, &s, &err), K2_BAD_INPUT);
    assert_int_equal(k2_weights_segment_decode(memory, 100, &s, &err), K2_BAD_INPUT);
    k2_weights_manifest_free(m);
    k2_free(memory);
}

/* The JSON of a right manifest, one piece replaced at a time. */
static void hostile_manifests(void **state)
{
    (void)state;
    static const struct {
        const char *old, *new;
        k2_code code;
        const char *text;
    } cases[] = {
        {"\"format\":1", "\"format\":2", K2_UNSUPPORTED, "\"format\" is 2, expected 1"},
        {"\"format\":1", "\"former\":1", K2_BAD_INPUT, "unknown key \"former\""},
        {"\"format\":1", "\"format\":1,\"format\":1", K2_BAD_INPUT, "\"format\" is there twice"},
        {"\"version\":9", "\"version\":-9", K2_BAD_INPUT, "\"version\" is -9, expected a whole number"},
        {"\"version\":9", "\"version\":9.5", K2_BAD_INPUT, "\"version\" is 9.5"},
        {"\"version\":9", "\"version\":\"9\"", K2_BAD_INPUT, "\"version\" is a string, expected a number"},
        {"\"version\":9,", "", K2_BAD_INPUT, "\"version\" is missing"},
        {"\"data_bytes\":1024", "\"data_bytes\":1000", K2_BAD_INPUT, "tensors[2] ends past the 1000 bytes of data"},
        {"\"data_bytes\":1024", "\"data_bytes\":2048", K2_BAD_INPUT, "\"data_bytes\" is 2048, but the tensors take 1024"},
        {"\"data_bytes\":1024", "\"data_bytes\":1e18", K2_BAD_INPUT, "\"data_bytes\" is"},
        {"\"chunk_bytes\":4096", "\"chunk_bytes\":0", K2_BAD_INPUT, "chunk_bytes: 0, expected a multiple of 4096"},
        {"\"chunk_bytes\":4096", "\"chunk_bytes\":4294971392", K2_BAD_INPUT, "chunk_bytes: 4294971392"},
        {"\"name\":\"model.a\"", "\"name\":\"\"", K2_BAD_INPUT, "tensors[0]: \"name\" has 0 bytes"},
        {"\"name\":\"model.a\"", "\"name\":\"c\"", K2_BAD_INPUT, "tensor c is there twice"},
        {"\"name\":\"model.a\"", "\"name\":\"model.e\"", K2_CORRUPT, "\"digest\" is not the one that follows"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"BF16\"", K2_UNSUPPORTED, "tensors[0]: \"dtype\" is \"BF16\", expected F32"},
        {"[10,10]", "[100]", K2_CORRUPT, "\"digest\" is not the one that follows"},
        {"[10,10]", "[10,11]", K2_BAD_INPUT, "tensors[0]: \"bytes\" is 400, which is not what its shape takes"},
        {"[10,10]", "[1,1,1,1,100]", K2_LIMIT, "more than 4 dimensions"},
        {"[10,10]", "[10,-10]", K2_BAD_INPUT, "holds something that is no size"},
        {"[10,10]", "[4294967296,4294967296]", K2_BAD_INPUT, "which is not what its shape takes"},
        {"\"offset\":512", "\"offset\":511", K2_BAD_INPUT, "tensors[1]: \"offset\" is 511, expected 512"},
        {"\"offset\":512", "\"offset\":0", K2_BAD_INPUT, "tensors[1]: \"offset\" is 0, expected 512"},
        {"\"bytes\":4,", "\"bytes\":5,", K2_BAD_INPUT, "tensors[1]: \"bytes\" is 5"},
        {"\"chunks\":[\"", "\"chunks\":[\"0123456789abcdef\",\"", K2_BAD_INPUT, "\"chunks\" holds 2, expected 1"},
        {"\"chunks\":[\"", "\"chunks\":[\"0", K2_BAD_INPUT, "chunks[0] is not 16 hex digits"},
        {"\"chunks\":[", "\"chunks\":[1,", K2_BAD_INPUT, "\"chunks\" holds 2"},
        {"\"tensors\":[", "\"tensors\":[7,", K2_BAD_INPUT, "tensors[0] is a number, expected an object"},
        {"\"digest\":\"", "\"digest\":\"0", K2_BAD_INPUT, "expected 32 hex digits"},
        {"{\"format\"", "[{\"format\"", K2_BAD_INPUT, "is not JSON"},
    };
    k2_weights_manifest *m = NULL, *got = NULL;
    uint64_t bytes = 0;
    k2_free(fill(three, 3, 9, 4096, &m, &bytes));
    k2_buf json;
    k2_buf_init(&json, 1u << 16);
    k2_weights_manifest_encode(m, &json);
    k2_error err;
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        const char *place = strstr(json.data, cases[i].old);
        assert_non_null(place);
        char *text = k2_asprintf("%.*s%s%s", (int)(place - json.data), json.data, cases[i].new, place + strlen(cases[i].old));
        memset(&err, 0, sizeof err);
        k2_code code = k2_weights_manifest_decode(text, strlen(text), &got, &err);
        if (code != cases[i].code || !strstr(err.text, cases[i].text))
            fail_msg("case %zu: %s \"%s\"", i, k2_code_name(code), err.text);
        assert_null(got);
        k2_free(text);
    }
    for (size_t n = 0; n + 1 < json.len; n++) { /* cut anywhere but at the last line end */
        char *cut = memcpy(k2_alloc(n), json.data, n);
        assert_int_equal(k2_weights_manifest_decode(cut, n, &got, &err), K2_BAD_INPUT);
        k2_free(cut);
    }
    assert_int_equal(k2_weights_manifest_decode(json.data, json.len, &got, &err), K2_OK);
    k2_weights_manifest_free(got);
    k2_weights_manifest_free(m);
    k2_buf_fini(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_segment_travels),
        cmocka_unit_test(the_digest_depends_on_values_alone),
        cmocka_unit_test(every_damaged_byte_is_found),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(hostile_headers),
        cmocka_unit_test(hostile_manifests),
    };
    return cmocka_run_group_tests_name("manifest", tests, setup, NULL);
}
