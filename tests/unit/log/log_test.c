/* log: the shape of a line, hostile text, levels, many threads, a full disk, the ring. */
#include "common/log/log.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/k2_log_XXXXXX";
static char path[64];

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/a.log", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return k2_dir_remove(dir, NULL) == K2_OK ? 0 : -1;
}

static char *content(void)
{
    char *text;
    size_t n;
    assert_int_equal(k2_file_read(path, 1 << 24, &text, &n, NULL), K2_OK);
    return text;
}

static k2_log *fresh(k2_log_level level)
{
    unlink(path);
    k2_log *log = k2_log_open(path, "rollout", 2, level, NULL);
    assert_non_null(log);
    return log;
}

static void a_line_has_time_level_name_text(void **state)
{
    (void)state;
    k2_log *log = fresh(K2_LOG_INFO);
    errno = ERANGE;
    K2_LOG_WARN(log, "engine %d is gone", 7);
    assert_int_equal(errno, ERANGE);
    k2_log_close(log);
    char *text = content();
    int year, month, day, hour, minute, second, ms, used = 0;
    assert_int_equal(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &year, &month, &day, &hour, &minute, &second, &ms, &used),
                     7);
    assert_true(year >= 2024);
    assert_string_equal(text + used, "WARN  rollout-2  engine 7 is gone\n");
    k2_free(text);
}

static void hostile_text_stays_one_line(void **state)
{
    (void)state;
    k2_log *log = fresh(K2_LOG_INFO);
    K2_LOG_INFO(log, "x%sy", "\n2026 forged\r\x1b[31m\xc2\x9b\x7f");
    k2_log_close(log);
    char *text = content();
    assert_non_null(strstr(text, "x?2026 forged??[31m???y\n"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    k2_free(text);
}

static void long_text_is_cut_and_says_so(void **state)
{
    (void)state;
    k2_log *log = fresh(K2_LOG_INFO);
    char big[2 * K2_LOG_LINE_MAX];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = 0;
    K2_LOG_INFO(log, "%s", big);
    k2_log_close(log);
    char *text = content();
    assert_true(strlen(text) <= K2_LOG_LINE_MAX);
    assert_string_equal(text + strlen(text) - 4, "...\n");
    k2_free(text);
}

static void levels_are_kept(void **state)
{
    (void)state;
    k2_log *log = fresh(K2_LOG_WARN);
    K2_LOG_INFO(log, "quiet");
    K2_LOG_WARN(log, "loud");
    assert_false(k2_log_on(log, K2_LOG_INFO));
    assert_true(k2_log_on(log, K2_LOG_ERROR));
    assert_false(k2_log_on(NULL, K2_LOG_ERROR));
    K2_LOG_ERROR(NULL, "nobody");
    k2_log_set_level(log, K2_LOG_DEBUG);
    K2_LOG_DEBUG(log, "whisper");
    k2_buf tail;
    k2_buf_init(&tail, 1 << 20);
    k2_log_tail(log, &tail);
    assert_non_null(strstr(tail.data, "quiet"));
    assert_non_null(strstr(tail.data, "whisper"));
    k2_buf_fini(&tail);
    k2_log_close(log);
    char *text = content();
    assert_null(strstr(text, "quiet"));
    assert_non_null(strstr(text, "loud"));
    assert_non_null(strstr(text, "whisper"));
    k2_free(text);

    k2_log_level level;
    for (int i = K2_LOG_DEBUG; i <= K2_LOG_OFF; i++) {
        assert_true(k2_log_level_parse(k2_log_level_name((k2_log_level)i), &level));
        assert_int_equal(level, i);
    }
    assert_false(k2_log_level_parse("loud", &level));
}

static void values_are_quoted_where_needed(void **state)
{
    (void)state;
    char v[16];
    assert_string_equal(k2_log_value(v, sizeof v, "plain"), "plain");
    assert_string_equal(k2_log_value(v, sizeof v, "two words"), "\"two words\"");
    assert_string_equal(k2_log_value(v, sizeof v, "a\"b\\"), "\"a\\\"b\\\\\"");
    assert_string_equal(k2_log_value(v, sizeof v, ""), "\"\"");
    assert_string_equal(k2_log_value(v, sizeof v, NULL), "\"\"");
    const char *cut = k2_log_value(v, sizeof v, "a long value with words");
    assert_int_equal(cut[strlen(cut) - 1], '"');
    assert_true(strlen(cut) < sizeof v);
}

enum { THREADS = 4, LINES = 2000 };

static void *chatter(void *arg)
{
    for (int i = 0; i < LINES; i++) K2_LOG_INFO((k2_log *)arg, "line of a thread %d end", i);
    return NULL;
}

static void threads_do_not_mix_lines(void **state)
{
    (void)state;
    k2_log *log = fresh(K2_LOG_INFO);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, chatter, log), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(k2_log_dropped(log), 0);
    k2_buf tail;
    k2_buf_init(&tail, 1 << 20);
    k2_log_tail(log, &tail);
    int kept = 0;
    for (char *p = tail.data; (p = strstr(p, "end\n")); p++) kept++;
    assert_int_equal(kept, K2_LOG_RING_MAX);
    k2_buf_fini(&tail);
    k2_log_close(log);
    char *text = content(), *rest = text;
    int lines = 0;
    for (char *line; (line = strsep(&rest, "\n")) && *line; lines++) {
        assert_non_null(strstr(line, "INFO  rollout-2  line of a thread "));
        assert_string_equal(line + strlen(line) - 4, " end");
    }
    assert_int_equal(lines, THREADS * LINES);
    k2_free(text);
}

static void a_full_disk_is_counted_not_fatal(void **state)
{
    (void)state;
    k2_error err;
    assert_null(k2_log_open("/tmp/no such directory/x.log", NULL, -1, K2_LOG_INFO, &err));
    assert_non_null(strstr(err.text, "/tmp/no such directory/x.log"));
    k2_log *log = k2_log_open("/dev/full", NULL, -1, K2_LOG_INFO, &err);
    if (!log) skip();
    K2_LOG_INFO(log, "gone");
    assert_int_equal(k2_log_dropped(log), 1);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    k2_log_tail_fd(log, ends[1]);
    close(ends[1]);
    char got[256] = "";
    assert_true(read(ends[0], got, sizeof got - 1) > 0);
    close(ends[0]);
    assert_non_null(strstr(got, "INFO  gone\n"));
    k2_log_close(log);
    k2_log_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_name_text),  cmocka_unit_test(hostile_text_stays_one_line),
        cmocka_unit_test(long_text_is_cut_and_says_so),     cmocka_unit_test(levels_are_kept),
        cmocka_unit_test(values_are_quoted_where_needed),   cmocka_unit_test(threads_do_not_mix_lines),
        cmocka_unit_test(a_full_disk_is_counted_not_fatal),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
