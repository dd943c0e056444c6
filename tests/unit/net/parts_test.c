/* net's parts without a network: the memory of replies, tokens, socket paths. */
#include "common/net/net_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static bool known(const k2i_replies *r, uint64_t seq)
{
    size_t n;
    const char *bytes = k2i_replies_get(r, (k2i_key){1, 2, seq}, &n);
    if (!bytes) return false;
    char want[32];
    snprintf(want, sizeof want, "reply %llu", (unsigned long long)seq);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(bytes, want, n);
    return true;
}

static void put(k2i_replies *r, uint64_t seq)
{
    char text[32];
    snprintf(text, sizeof text, "reply %llu", (unsigned long long)seq);
    k2i_replies_put(r, (k2i_key){1, 2, seq}, text, strlen(text));
}

static void the_oldest_reply_gives_way(void **state)
{
    (void)state;
    k2i_replies *r = k2i_replies_new(10, 1000);
    for (uint64_t i = 0; i < 1000; i++) {
        put(r, i);
        for (uint64_t k = i > 12 ? i - 12 : 0; k <= i; k++) assert_int_equal(known(r, k), i - k < 10);
    }
    assert_false(known(r, 5000));
    k2i_replies_free(r);

    r = k2i_replies_new(100, 64);
    put(r, 1);
    put(r, 2);
    char big[60] = "";
    k2i_replies_put(r, (k2i_key){9, 9, 9}, big, sizeof big); /* 60 of 64 bytes: both others go */
    assert_false(known(r, 1) || known(r, 2));
    size_t n;
    assert_non_null(k2i_replies_get(r, (k2i_key){9, 9, 9}, &n));
    char huge[65] = "";
    k2i_replies_put(r, (k2i_key){8, 8, 8}, huge, sizeof huge);
    assert_null(k2i_replies_get(r, (k2i_key){8, 8, 8}, &n));
    assert_non_null(k2i_replies_get(r, (k2i_key){9, 9, 9}, &n));
    k2i_replies_free(r);
}

static void tokens(void **state)
{
    (void)state;
    char a[K2_NET_TOKEN_BYTES], b[K2_NET_TOKEN_BYTES];
    k2_net_token_make(a);
    k2_net_token_make(b);
    assert_int_equal(strlen(a), K2_NET_TOKEN_BYTES - 1);
    assert_string_not_equal(a, b);
    assert_true(k2_net_token_equal(a, a));
    assert_false(k2_net_token_equal(a, b));
    assert_false(k2_net_token_equal(a, NULL));
    assert_false(k2_net_token_equal(a, ""));
    assert_false(k2_net_token_equal("", ""));
    assert_false(k2_net_token_equal(NULL, "x"));
    char twice[2 * K2_NET_TOKEN_BYTES];
    snprintf(twice, sizeof twice, "%s%s", a, a);
    assert_false(k2_net_token_equal(a, twice));
    a[10] = 0;
    assert_false(k2_net_token_equal(twice, a));
}

static void urls_fit_into_a_socket_address(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2_net_XXXXXX", url[K2_NET_URL_MAX], want[K2_NET_URL_MAX];
    assert_non_null(mkdtemp(dir));
    k2_error err;
    assert_int_equal(k2_net_url_for_dir(dir, url, &err), K2_OK);
    snprintf(want, sizeof want, "ipc://%s/master.sock", dir);
    assert_string_equal(url, want);

    char *deep = k2_asprintf("%s/%0100d", dir, 7), again[K2_NET_URL_MAX];
    assert_int_equal(k2_dir_make(deep, &err), K2_OK);
    assert_int_equal(k2_net_url_for_dir(deep, url, &err), K2_OK);
    assert_true(strlen(url) <= strlen("ipc://") + 100);
    assert_int_equal(k2_net_url_for_dir(deep, again, &err), K2_OK);
    assert_string_equal(url, again);
    char *parent = k2_strdup(url + strlen("ipc://"));
    *strrchr(parent, '/') = 0;
    struct stat st;
    assert_int_equal(stat(parent, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    k2_free(parent);
    k2_free(deep);

    assert_int_equal(k2_net_url_for_dir("/tmp/no such directory", url, &err), K2_NOT_FOUND);
    assert_int_equal(k2_dir_remove(dir, &err), K2_OK);
    assert_int_equal(k2i_net_url_check("http://127.0.0.1:1", &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "URL 'http://127.0.0.1:1' found, ipc:///path or tcp://address:port expected");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_reply_gives_way),
        cmocka_unit_test(tokens),
        cmocka_unit_test(urls_fit_into_a_socket_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
