/* Locators, frames and the copying hash: all that is pure in xfer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/xfer/xfer_int.h"

#include <stdio.h>
#include <string.h>

#define NONCE "00112233445566778899aabbccddeeff"

static void locators_survive_a_round_trip(void **state)
{
    (void)state;
    static const char *const good[] = {
        "self:1:4096:" NONCE,
        "shm:123:7:1:" NONCE,
        "shm:2147483647:0:70368744177664:" NONCE,
        "tcp:127.0.0.1:65535:18446744073709551615:8:" NONCE,
        "tcp:[::1]:1:0:8:" NONCE,
        "tcp:[1111:2222:3333:4444:5555:6666:7777:8888]:65535:18446744073709551615:70368744177664:" NONCE,
    };
    for (size_t i = 0; i < K2_COUNT(good); i++) {
        k2_xfer_locator l;
        char text[K2_XFER_LOCATOR_MAX];
        k2_error err = {0};
        assert_int_equal(k2_xfer_locator_parse(good[i], &l, &err), K2_OK);
        k2_xfer_locator_format(&l, true, text);
        assert_string_equal(text, good[i]);
        k2_xfer_locator_format(&l, false, text);
        assert_null(strstr(text, NONCE));
        assert_true(strncmp(text, good[i], strlen(text)) == 0);
        /* No beginning of a locator is one. */
        for (size_t n = 0; n < strlen(good[i]); n++) {
            char *part = k2_strndup(good[i], n);
            assert_int_not_equal(k2_xfer_locator_parse(part, &l, NULL), K2_OK);
            k2_free(part);
        }
    }
}

static void bad_locators_are_refused_without_showing_the_nonce(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        ":",
        "self",
        "self:",
        "self::1:" NONCE,
        "self:1:0:" NONCE,
        "self:01:1:" NONCE,
        "self:-1:1:" NONCE,
        "self:1:70368744177665:" NONCE,
        "self:1:1:" NONCE ":",
        "self:1:1:" NONCE "0",
        "self:1:1:" NONCE " ",
        "self:1:1:g0112233445566778899aabbccddeeff",
        "shm:0:1:1:" NONCE,
        "shm:2147483648:1:1:" NONCE,
        "shm:1:2147483648:1:" NONCE,
        "shm:1:1:18446744073709551616:" NONCE,
        "tcp:localhost:1:1:1:" NONCE,
        "tcp:127.0.0.1:0:1:1:" NONCE,
        "tcp:127.0.0.1:65536:1:1:" NONCE,
        "tcp:::1:1:1:1:" NONCE,
        "tcp:[::1:1:1:1:" NONCE,
        "tcp:[::1]1:1:1:" NONCE,
        "tcp:[127.0.0.1]:1:1:1:" NONCE,
        "TCP:127.0.0.1:1:1:1:" NONCE,
        "longname:1:1:" NONCE,
    };
    for (size_t i = 0; i < K2_COUNT(bad); i++) {
        k2_xfer_locator l;
        k2_error err = {0};
        k2_code code = k2_xfer_locator_parse(bad[i], &l, &err);
        if (code != K2_BAD_INPUT && code != K2_UNSUPPORTED) fail_msg("'%s' gave %s", bad[i], k2_code_name(code));
        assert_true(strncmp(err.text, "locator: ", 9) == 0);
        assert_null(strstr(err.text, "8899aabb"));
    }
    char *huge = k2_alloc(100000);
    memset(huge, '1', 99999);
    assert_int_equal(k2_xfer_locator_parse(huge, &(k2_xfer_locator){0}, NULL), K2_BAD_INPUT);
    k2_free(huge);
}

static const k2i_tcp_request sample = {.op = K2I_OP_READ,
                                       .segment = 0x1122334455667788,
                                       .nonce = {{1, 2, 3}},
                                       .offset = UINT64_MAX,
                                       .bytes = K2_XFER_CHUNK_MAX,
                                       .tag = 42};

static void requests_survive_a_round_trip_and_wait_for_their_last_byte(void **state)
{
    (void)state;
    unsigned char frame[K2I_REQUEST_BYTES];
    k2i_tcp_request q;
    k2i_tcp_request_encode(&sample, frame);
    for (size_t n = 0; n < sizeof frame; n++) assert_int_equal(k2i_tcp_request_decode(frame, n, &q, NULL), K2_INCOMPLETE);
    assert_int_equal(k2i_tcp_request_decode(frame, sizeof frame, &q, NULL), K2_OK);
    assert_int_equal(q.op, sample.op);
    assert_true(q.segment == sample.segment && q.offset == sample.offset && q.bytes == sample.bytes && q.tag == sample.tag);
    assert_true(k2i_nonce_equal(&q.nonce, &sample.nonce));
}

static void requests_of_another_protocol_are_refused_at_their_first_byte(void **state)
{
    (void)state;
    k2i_tcp_request q;
    k2_error err;
    assert_int_equal(k2i_tcp_request_decode((const unsigned char *)"GET / HTTP/1.1", 1, &q, &err), K2_PEER_PROTOCOL);
    static const struct {
        size_t at;
        unsigned char byte;
    } wrong[] = {{0, 'k'}, {3, 'A'}, {4, 2}, {5, 1}, {6, 0}, {6, 3}, {7, 1}, {43, 5}, {47, 1}, {48, 1}, {52, 1}, {55, 1}};
    for (size_t i = 0; i < K2_COUNT(wrong); i++) {
        unsigned char frame[K2I_REQUEST_BYTES];
        k2i_tcp_request_encode(&sample, frame);
        frame[wrong[i].at] = wrong[i].byte;
        if (k2i_tcp_request_decode(frame, sizeof frame, &q, &err) != K2_PEER_PROTOCOL) fail_msg("byte %zu", wrong[i].at);
    }
    k2i_tcp_request wait = {.op = K2I_OP_WAIT, .bytes = UINT64_MAX, .timeout_ms = K2I_WAIT_MS_MAX};
    unsigned char frame[K2I_REQUEST_BYTES];
    k2i_tcp_request_encode(&wait, frame);
    assert_int_equal(k2i_tcp_request_decode(frame, sizeof frame, &q, &err), K2_OK);
    wait.timeout_ms++;
    k2i_tcp_request_encode(&wait, frame);
    assert_int_equal(k2i_tcp_request_decode(frame, sizeof frame, &q, &err), K2_PEER_PROTOCOL);
}

static void replies_survive_a_round_trip_and_lies_are_refused(void **state)
{
    (void)state;
    k2i_tcp_reply a = {.status = K2I_STATUS_OK, .tag = 7, .bytes = K2_XFER_CHUNK_MAX, .hash = 9, .word = 11}, b;
    unsigned char frame[K2I_REPLY_BYTES];
    k2i_tcp_reply_encode(&a, frame);
    for (size_t n = 0; n < sizeof frame; n++) assert_int_equal(k2i_tcp_reply_decode(frame, n, &b, NULL), K2_INCOMPLETE);
    assert_int_equal(k2i_tcp_reply_decode(frame, sizeof frame, &b, NULL), K2_OK);
    assert_true(b.tag == 7 && b.bytes == a.bytes && b.hash == 9 && b.word == 11);
    a.bytes++;
    k2i_tcp_reply_encode(&a, frame);
    assert_int_equal(k2i_tcp_reply_decode(frame, sizeof frame, &b, NULL), K2_PEER_PROTOCOL);
    a = (k2i_tcp_reply){.status = K2I_STATUS_REFUSED, .bytes = 1};
    k2i_tcp_reply_encode(&a, frame);
    assert_int_equal(k2i_tcp_reply_decode(frame, sizeof frame, &b, NULL), K2_PEER_PROTOCOL);
    a = (k2i_tcp_reply){.status = K2I_STATUS_COUNT};
    k2i_tcp_reply_encode(&a, frame);
    assert_int_equal(k2i_tcp_reply_decode(frame, sizeof frame, &b, NULL), K2_PEER_PROTOCOL);
}

static void ranges_are_checked_without_overflow(void **state)
{
    (void)state;
    static const struct {
        k2i_tcp_op op;
        uint64_t offset, bytes, segment;
        bool ok;
    } cases[] = {
        {K2I_OP_READ, 0, 100, 100, true},
        {K2I_OP_READ, 100, 0, 100, true},
        {K2I_OP_READ, 0, 101, 100, false},
        {K2I_OP_READ, 101, 0, 100, false},
        {K2I_OP_READ, 1, 100, 100, false},
        {K2I_OP_READ, UINT64_MAX, 1, 100, false},
        {K2I_OP_READ, UINT64_MAX, 64, 63, false},
        {K2I_OP_WAIT, 0, 5, 8, true},
        {K2I_OP_WAIT, 8, 5, 16, true},
        {K2I_OP_WAIT, 8, 5, 15, false},
        {K2I_OP_WAIT, 4, 5, 16, false},
        {K2I_OP_WAIT, 0, 5, 7, false},
        {K2I_OP_WAIT, UINT64_MAX - 7, 5, 8, false},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        k2i_tcp_request q = {.op = cases[i].op, .offset = cases[i].offset, .bytes = cases[i].bytes};
        bool ok = k2i_tcp_request_range(&q, cases[i].segment) == K2I_STATUS_OK;
        if (ok != cases[i].ok) fail_msg("case %zu", i);
    }
}

static void copying_and_hashing_is_copying_then_hashing(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 65536, 65537, 200000, 1 << 20};
    unsigned char *from = k2_alloc(1 << 20), *to = k2_alloc(1 << 20);
    for (size_t i = 0; i < 1 << 20; i++) from[i] = (unsigned char)k2_rand_u64(1, K2_STREAM_TEST, 0, i);
    for (size_t i = 0; i < K2_COUNT(sizes); i++) {
        memset(to, 0, 1 << 20);
        assert_true(k2_xfer_copy_hash(to, from, sizes[i]) == k2_hash64(from, sizes[i], 0));
        assert_memory_equal(to, from, sizes[i]);
    }
    k2_free(from);
    k2_free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(locators_survive_a_round_trip),
        cmocka_unit_test(bad_locators_are_refused_without_showing_the_nonce),
        cmocka_unit_test(requests_survive_a_round_trip_and_wait_for_their_last_byte),
        cmocka_unit_test(requests_of_another_protocol_are_refused_at_their_first_byte),
        cmocka_unit_test(replies_survive_a_round_trip_and_lies_are_refused),
        cmocka_unit_test(ranges_are_checked_without_overflow),
        cmocka_unit_test(copying_and_hashing_is_copying_then_hashing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
