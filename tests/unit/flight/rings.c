#include "rings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <dirent.h>
#include <string.h>

#include <cmocka.h>

char rings_dir[] = "/tmp/k2_flight_XXXXXX";

int rings_setup(void **state)
{
    static bool made;
    (void)state;
    if (made) {
        char *path = k2_asprintf("%s/flight", rings_dir);
        k2_code code = k2_dir_remove(path, NULL);
        k2_free(path);
        return code == K2_OK ? 0 : -1;
    }
    made = true;
    return mkdtemp(rings_dir) != NULL ? 0 : -1;
}

int rings_teardown(void **state)
{
    (void)state;
    k2_flight_close();
    return k2_dir_remove(rings_dir, NULL) == K2_OK ? 0 : -1;
}

void rings_open(const char *role, uint32_t index)
{
    k2_error err = {0};
    k2_flight_config config = {.dir = rings_dir, .role = role, .index = index, .incarnation = 7, .run_id = "test", .kib = 64};
    if (k2_flight_open(&config, &err) != K2_OK) fail_msg("%s", err.text);
    k2_flight_thread("main");
}

static void skipped(void *arg, const char *text)
{
    (void)arg;
    fail_msg("%s", text);
}

k2_flight_trace *rings_load(void)
{
    k2_flight_trace *trace;
    k2_error err = {0};
    if (k2_flight_trace_load(rings_dir, skipped, NULL, &trace, &err) != K2_OK) fail_msg("%s", err.text);
    return trace;
}

char *rings_file(char **bytes, size_t *n)
{
    char *dir = k2_asprintf("%s/flight", rings_dir), *path = NULL;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        assert_null(path);
        path = k2_asprintf("%s/%s", dir, e->d_name);
    }
    closedir(d);
    k2_free(dir);
    assert_non_null(path);
    assert_int_equal(k2_file_read(path, 1 << 24, bytes, n, NULL), K2_OK);
    return path;
}

void rings_collective(uint64_t group, uint64_t seq, uint32_t op, uint64_t bytes, uint32_t rank, uint32_t ranks, bool leave)
{
    uint32_t span = k2_flight_begin(K2_FLIGHT_COLLECTIVE, group, seq, bytes, k2_flight_coll(op, rank, ranks));
    assert_true(span != 0);
    if (leave) k2_flight_end(span);
}
