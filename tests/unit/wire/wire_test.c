/* wire: every message there and back, every cut and every flipped byte, every refusal by name.
 *
 * Run as `wire_test --corpus DIR` it writes one encoded message of each type: the seeds of tests/fuzz/wire. */
#include "common/wire/wire.h"

#include <msgpack.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- one filled message of each type, made from the table ---------------------------------------------------------- */

static const char *const strs[] = {"shm:1:2:3:4", "", "tcp:host:1:2:3:4"};
static const uint64_t u64s[] = {0, 127, 128, 65536, UINT64_MAX};
static const k2_wire_metric metrics[] = {{"loss", -0.125}, {"load_max_vio.0", 1e300}, {"zero", 0.0}};
static const k2_wire_engine engines[] = {{7, UINT64_MAX, "http://127.0.0.1:1", {1, 2}, "up"}, {8, 1, "", {0, 0}, "gone"}};

static uint64_t counter;

#define FILL_U64(x)     ((x) = ++counter * 0x9e3779b97f4a7c15u)
#define FILL_F64(x)     ((x) = (double)++counter / 3)
#define FILL_STR(x)     ((x) = strs[++counter % 3])
#define FILL_DIGEST(x)  ((x) = (k2_digest){++counter, ~counter})
#define FILL_STRS(x)    ((x) = (k2_wire_strs){strs, 3})
#define FILL_U64S(x)    ((x) = (k2_wire_u64s){u64s, 5})
#define FILL_METRICS(x) ((x) = (k2_wire_metrics){metrics, 3})
#define FILL_ENGINES(x) ((x) = (k2_wire_engines){engines, 2})

#define SAME_U64(a, b)    assert_true((a) == (b))
#define SAME_F64(a, b)    assert_true((a) == (b))
#define SAME_STR(a, b)    assert_string_equal((a), (b))
#define SAME_DIGEST(a, b) assert_true(k2_digest_equal((a), (b)))
#define SAME_STRS(a, b)                                                                                                        \
    do {                                                                                                                       \
        assert_int_equal((a).count, (b).count);                                                                                \
        for (uint32_t i = 0; i < (a).count; i++) SAME_STR((a).items[i], (b).items[i]);                                         \
    } while (0)
#define SAME_U64S(a, b)                                                                                                        \
    do {                                                                                                                       \
        assert_int_equal((a).count, (b).count);                                                                                \
        for (uint32_t i = 0; i < (a).count; i++) SAME_U64((a).items[i], (b).items[i]);                                         \
    } while (0)
#define SAME_METRICS(a, b)                                                                                                     \
    do {                                                                                                                       \
        assert_int_equal((a).count, (b).count);                                                                                \
        for (uint32_t i = 0; i < (a).count; i++) SAME_STR((a).items[i].name, (b).items[i].name);                               \
        for (uint32_t i = 0; i < (a).count; i++) SAME_F64((a).items[i].value, (b).items[i].value);                             \
    } while (0)
#define SAME_ENGINES(a, b)                                                                                                     \
    do {                                                                                                                       \
        assert_int_equal((a).count, (b).count);                                                                                \
        for (uint32_t i = 0; i < (a).count; i++) {                                                                             \
            SAME_U64((a).items[i].id, (b).items[i].id);                                                                        \
            SAME_U64((a).items[i].incarnation, (b).items[i].incarnation);                                                      \
            SAME_STR((a).items[i].url, (b).items[i].url);                                                                      \
            SAME_DIGEST((a).items[i].digest, (b).items[i].digest);                                                             \
            SAME_STR((a).items[i].state, (b).items[i].state);                                                                  \
        }                                                                                                                      \
    } while (0)

static k2_msg filled(k2_msg_type type)
{
    k2_msg m = {.type = type, .worker = 3, .incarnation = 1u << 20, .seq = UINT64_MAX, .cmd = 200};
    switch (type) {
#define K2_F(kind, name, cap) FILL_##kind(body->name);
#define K2_X(name, member, class)                                                                                              \
    case K2_MSG_##name: {                                                                                                      \
        k2_msg_##member *body = &m.member;                                                                                     \
        (void)body;                                                                                                            \
        K2_WIRE_FIELDS_##member(K2_F) break;                                                                                   \
    }
        K2_WIRE_MESSAGES(K2_X)
#undef K2_X
#undef K2_F
    default: fail();
    }
    return m;
}

static void same(const k2_msg *p, const k2_msg *q)
{
    assert_int_equal(p->type, q->type);
    assert_true(p->worker == q->worker && p->incarnation == q->incarnation && p->seq == q->seq && p->cmd == q->cmd);
    switch (p->type) {
#define K2_F(kind, name, cap) SAME_##kind(a->name, b->name);
#define K2_X(name, member, class)                                                                                              \
    case K2_MSG_##name: {                                                                                                      \
        const k2_msg_##member *a = &p->member, *b = &q->member;                                                                \
        (void)a;                                                                                                               \
        (void)b;                                                                                                               \
        K2_WIRE_FIELDS_##member(K2_F) break;                                                                                   \
    }
        K2_WIRE_MESSAGES(K2_X)
#undef K2_X
#undef K2_F
    default: fail();
    }
}

static void encode(const k2_msg *m, k2_buf *out)
{
    k2_error err = {0};
    k2_buf_init(out, K2_WIRE_BYTES_MAX);
    if (k2_wire_encode(m, out, &err) != K2_OK) fail_msg("%s", err.text);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void every_message_comes_back(void **state)
{
    (void)state;
    for (int t = K2_MSG_NONE + 1; t < K2_MSG_COUNT; t++) {
        k2_msg m = filled((k2_msg_type)t), back, copy;
        k2_buf b;
        encode(&m, &b);
        k2_error err = {0};
        if (k2_wire_decode(b.data, b.len, &back, &err) != K2_OK) fail_msg("%s: %s", k2_msg_name(m.type), err.text);
        same(&m, &back);
        k2_msg_copy(&copy, &back);
        k2_msg_free(&back);
        assert_int_equal(back.type, K2_MSG_NONE);
        same(&m, &copy);
        k2_msg_free(&copy);
        k2_buf_fini(&b);
    }
    assert_int_equal(k2_msg_class_of(K2_MSG_HELLO), K2_MSG_CLASS_REQUEST);
    assert_int_equal(k2_msg_class_of(K2_MSG_NOP), K2_MSG_CLASS_REPLY);
    assert_int_equal(k2_msg_class_of(K2_MSG_TRAIN), K2_MSG_CLASS_COMMAND);
    k2_msg empty = {.type = K2_MSG_DONE}, back;
    k2_msg_copy(&back, &empty); /* NULL strings become "" */
    assert_string_equal(back.done.text, "");
    assert_int_equal(back.done.metrics.count, 0);
    k2_msg_free(&back);
    k2_msg_free(&empty);
}

static void every_cut_is_incomplete(void **state)
{
    (void)state;
    for (int t = K2_MSG_NONE + 1; t < K2_MSG_COUNT; t++) {
        k2_msg m = filled((k2_msg_type)t), back;
        k2_buf b;
        encode(&m, &b);
        for (size_t n = 0; n < b.len; n++) {
            void *exact = k2_alloc(n); /* so that a sanitizer sees a step too far */
            memcpy(exact, b.data, n);
            assert_int_equal(k2_wire_decode(exact, n, &back, NULL), K2_INCOMPLETE);
            k2_free(exact);
        }
        k2_buf_append(&b, "\xc0", 1);
        k2_error err;
        assert_int_equal(k2_wire_decode(b.data, b.len, &back, &err), K2_BAD_INPUT);
        assert_string_equal(err.text, "1 bytes behind the message");
        k2_buf_fini(&b);
    }
}

static void flipped_bytes_never_crash(void **state)
{
    (void)state;
    uint64_t draw = 0;
    for (int t = K2_MSG_NONE + 1; t < K2_MSG_COUNT; t++) {
        k2_msg m = filled((k2_msg_type)t), back;
        k2_buf b;
        encode(&m, &b);
        for (size_t i = 0; i < b.len; i++) {
            char was = b.data[i];
            for (int k = 0; k < 24; k++) {
                b.data[i] = (char)k2_rand_below(1, K2_STREAM_TEST, 0, draw++, 256);
                k2_error err = {0};
                k2_code code = k2_wire_decode(b.data, b.len, &back, &err);
                if (code == K2_OK)
                    k2_msg_free(&back);
                else
                    assert_true(err.text[0] && (code == K2_BAD_INPUT || code == K2_LIMIT || code == K2_INCOMPLETE));
            }
            b.data[i] = was;
        }
        k2_buf_fini(&b);
    }
}

/* ---- refusals by name -------------------------------------------------------------------------------------------- */

static int put(void *out, const char *bytes, size_t n)
{
    return k2_buf_append(out, bytes, n) ? 0 : -1;
}

typedef struct hand {
    msgpack_packer pk;
    k2_buf buf;
} hand;

static void hand_str(hand *h, const char *s)
{
    msgpack_pack_str(&h->pk, strlen(s));
    msgpack_pack_str_body(&h->pk, s, strlen(s));
}

/* An ACK made by hand: type and header, room for `more` further pairs. */
static void hand_begin(hand *h, uint32_t more)
{
    k2_buf_init(&h->buf, 1 << 20);
    msgpack_packer_init(&h->pk, &h->buf, put);
    msgpack_pack_map(&h->pk, 5 + more);
    hand_str(h, "type");
    hand_str(h, "ACK");
    static const char *const header[] = {"worker", "incarnation", "seq", "cmd"};
    for (int i = 0; i < 4; i++) {
        hand_str(h, header[i]);
        msgpack_pack_uint64(&h->pk, 1);
    }
}

static void refused(hand *h, k2_code code, const char *text)
{
    k2_msg back;
    k2_error err = {0};
    assert_int_equal(k2_wire_decode(h->buf.data, h->buf.len, &back, &err), code);
    assert_string_equal(err.text, text);
    k2_buf_fini(&h->buf);
}

static void refusals_name_the_place(void **state)
{
    (void)state;
    hand h;
    hand_begin(&h, 1);
    hand_str(&h, "text");
    hand_str(&h, "x");
    refused(&h, K2_BAD_INPUT, "ACK: unknown field text");

    hand_begin(&h, 1);
    hand_str(&h, "seq");
    msgpack_pack_uint64(&h.pk, 1);
    refused(&h, K2_BAD_INPUT, "ACK.seq: given twice");

    hand_begin(&h, 1);
    hand_str(&h, "type");
    hand_str(&h, "NOP");
    refused(&h, K2_BAD_INPUT, "ACK.type: given twice");

    hand_begin(&h, 1);
    msgpack_pack_nil(&h.pk);
    msgpack_pack_nil(&h.pk);
    refused(&h, K2_BAD_INPUT, "ACK: nil found, field name expected");

    hand_begin(&h, 0);
    memcpy(strstr(h.buf.data, "ACK"), "HUH", 3);
    refused(&h, K2_BAD_INPUT, "message: unknown type HUH");

    hand_begin(&h, 0);
    char *seq = strstr(h.buf.data, "seq");
    seq[3] = (char)0xff; /* -1 */
    refused(&h, K2_BAD_INPUT, "ACK.seq: negative number found, unsigned number expected");

    hand_begin(&h, 0);
    strstr(h.buf.data, "cmd")[3] = (char)0xc0;
    refused(&h, K2_BAD_INPUT, "ACK.cmd: nil found, unsigned number expected");

    k2_buf_init(&h.buf, 100);
    k2_buf_append(&h.buf, "\x93\x01\x02\x03", 4);
    refused(&h, K2_BAD_INPUT, "message: list found, map expected");

    k2_buf_init(&h.buf, 100);
    k2_buf_append(&h.buf, "\x80", 1);
    refused(&h, K2_BAD_INPUT, "message: field type is missing");

    k2_buf_init(&h.buf, 100);
    k2_buf_append(&h.buf, "\xc7\x01\x01\x01", 4);
    refused(&h, K2_BAD_INPUT, "byte 0xc7 found, a plain msgpack value expected");

    k2_buf_init(&h.buf, 100);
    k2_buf_append(&h.buf, "\xdd\xff\xff\xff\xff", 5); /* a list that declares four thousand million items */
    refused(&h, K2_LIMIT, "a list of 4294967295 items, at most 65536");

    k2_buf_init(&h.buf, 100);
    k2_buf_append(&h.buf, "\xdc\xff\xff\x01", 4); /* more items than bytes: said before anything is reserved */
    refused(&h, K2_INCOMPLETE, "the message ends after 4 bytes");

    k2_buf_init(&h.buf, 100);
    k2_buf_append(&h.buf, "\x91\x91\x91\x91\x91\x01", 6);
    refused(&h, K2_LIMIT, "nested deeper than 4");
}

static void caps_hold_on_both_sides(void **state)
{
    (void)state;
    char text[2001];
    memset(text, 'x', sizeof text - 1);
    text[2000] = 0;
    k2_msg m = {.type = K2_MSG_DONE, .done = {.text = text}};
    k2_buf b;
    k2_buf_init(&b, K2_WIRE_BYTES_MAX);
    k2_buf_puts(&b, "before");
    k2_error err;
    assert_int_equal(k2_wire_encode(&m, &b, &err), K2_LIMIT);
    assert_string_equal(err.text, "DONE.text: 2000 bytes, at most 1024");
    assert_string_equal(b.data, "before");
    assert_int_equal(b.len, 6);

    m = (k2_msg){.type = K2_MSG_PREPARE, .prepare = {.sources = {strs, K2_PEERS_MAX + 1}}};
    assert_int_equal(k2_wire_encode(&m, &b, &err), K2_LIMIT);
    assert_string_equal(err.text, "PREPARE.sources: 16385 items, at most 16384");
    k2_buf_fini(&b);

    k2_buf_init(&b, 40);
    m = (k2_msg){.type = K2_MSG_ACK};
    assert_int_equal(k2_wire_encode(&m, &b, &err), K2_LIMIT);
    assert_false(b.overflow);
    k2_buf_fini(&b);

    /* A longer string in the bytes than the field may have: 0xda is a string with a 16-bit size. */
    m = (k2_msg){.type = K2_MSG_STOP, .stop = {.text = text + 976}};
    encode(&m, &b);
    char *at = (char *)memmem(b.data, b.len, "text", 4) + 4;
    assert_int_equal((unsigned char)at[0], 0xda);
    k2_buf longer;
    k2_buf_init(&longer, 10000);
    k2_buf_append(&longer, b.data, (size_t)(at - b.data));
    k2_buf_append(&longer, "\xda\x07\xd0", 3);
    k2_buf_append(&longer, text, 2000);
    k2_msg back;
    assert_int_equal(k2_wire_decode(longer.data, longer.len, &back, &err), K2_LIMIT);
    assert_string_equal(err.text, "STOP.text: 2000 bytes, at most 1024");
    at[3] = 0;
    assert_int_equal(k2_wire_decode(b.data, b.len, &back, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "STOP.text: a 0 byte inside a string");
    k2_buf_fini(&longer);
    k2_buf_fini(&b);
}

static int write_corpus(const char *dir)
{
    for (int t = K2_MSG_NONE + 1; t < K2_MSG_COUNT; t++) {
        k2_msg m = filled((k2_msg_type)t);
        k2_buf b;
        k2_buf_init(&b, K2_WIRE_BYTES_MAX);
        char *path = k2_asprintf("%s/%s", dir, k2_msg_name(m.type));
        k2_error err;
        k2_code code = k2_wire_encode(&m, &b, &err);
        if (code == K2_OK) code = k2_file_write_atomic(path, b.data, b.len, &err);
        if (code != K2_OK) fprintf(stderr, "%s\n", err.text);
        k2_buf_fini(&b);
        k2_free(path);
        if (code != K2_OK) return k2_code_exit(code);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--corpus") == 0) return write_corpus(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back),  cmocka_unit_test(every_cut_is_incomplete),
        cmocka_unit_test(flipped_bytes_never_crash), cmocka_unit_test(refusals_name_the_place),
        cmocka_unit_test(caps_hold_on_both_sides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
