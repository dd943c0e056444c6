/* Threads that share a tokenizer, and so its cache of words. */
#include "common/token/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <string.h>

#define FOLDER  K2_SOURCE_DIR "/tests/unit/token/vectors"
#define THREADS 4

typedef struct worker {
    const k2_tokenizer *t;
    const char *text;
    const k2_tokens *want;
    size_t wrong;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    k2_tokens ids;
    k2_tokens_init(&ids, 1u << 20);
    for (int round = 0; round < 6; round++) {
        k2_tokens_clear(&ids);
        if (k2_tokenizer_encode(w->t, w->text, strlen(w->text), &ids, NULL) != K2_OK || ids.count != w->want->count ||
            memcmp(ids.ids, w->want->ids, ids.count * sizeof *ids.ids) != 0)
            w->wrong++;
    }
    k2_tokens_fini(&ids);
    return NULL;
}

/* More words than the cache has room for, so that its slots change under the readers. */
static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    k2_tokenizer *alone = NULL, *shared = NULL;
    k2_tokens want;
    k2_buf text;
    pthread_t threads[THREADS];
    worker workers[THREADS];
    k2_tokens_init(&want, 1u << 20);
    k2_buf_init(&text, 1u << 20);
    for (uint64_t i = 0; i < 20000; i++) {
        char word[9] = " ";
        for (size_t k = 1; k < 8; k++) word[k] = (char)('a' + k2_rand_below(3, K2_STREAM_TEST, i % 15000, k, 26));
        k2_buf_puts(&text, word);
    }
    assert_int_equal(k2_tokenizer_open("json", FOLDER "/llama3.json", &alone, NULL), K2_OK);
    assert_int_equal(k2_tokenizer_open("json", FOLDER "/llama3.json", &shared, NULL), K2_OK);
    assert_int_equal(k2_tokenizer_encode(alone, text.data, text.len, &want, NULL), K2_OK);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.t = shared, .text = text.data, .want = &want};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    k2_tokenizer_close(alone);
    k2_tokenizer_close(shared);
    k2_tokens_fini(&want);
    k2_buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share_a_tokenizer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
