/* Rings from a run's directory, and from anywhere, as one trace. */
#include "common/flight/trace.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- processes -------------------------------------------------------------------------------------------------------- */

static bool read_line(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    bool read = fgets(out, (int)size, f) != NULL;
    fclose(f);
    if (read) out[strcspn(out, "\n")] = 0;
    return read;
}

/* State letter of a process of this machine if it is the one that started at these ticks, else 0. */
static char process_state(uint64_t pid, uint64_t ticks)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    if (!read_line(path, line, sizeof line)) return 0;
    const char *p = strrchr(line, ')');
    if (p == NULL || p[1] != ' ') return 0;
    char state = p[2];
    for (int field = 2; p != NULL && field < 22; field++) {
        p = strchr(p, ' ');
        if (p != NULL) p++;
    }
    return p != NULL && strtoull(p, NULL, 10) == ticks ? state : 0;
}

static void life_find(k2_flight_ring *r, const char *host, const char *boot, uint64_t now_ns)
{
    if (r->closed || strcmp(r->host, host) != 0 || strcmp(r->boot, boot) != 0) return;
    char state = process_state(r->pid, r->ticks);
    if (state == 0 || state == 'Z' || state == 'X') {
        r->life = K2_FLIGHT_DEAD;
        return;
    }
    r->life = state == 'T' || state == 't' ? K2_FLIGHT_STOPPED : K2_FLIGHT_ALIVE;
    if (now_ns <= r->end_ns) return;
    r->end_ns = now_ns; /* what is open is so until now */
    for (size_t i = 0; i < r->count; i++)
        if (r->events[i].kind == K2_FLIGHT_IS_OPEN) r->events[i].end_ns = now_ns;
}

/* ---- a trace ---------------------------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const k2_flight_ring *x = *(k2_flight_ring *const *)a, *y = *(k2_flight_ring *const *)b;
    int roles = strcmp(x->role, y->role);
    if (roles != 0) return roles;
    if (x->index != y->index) return x->index < y->index ? -1 : 1;
    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

k2_flight_trace *k2_flight_trace_of(k2_flight_ring **rings, uint32_t count)
{
    k2_flight_trace *t = k2_alloc(sizeof *t);
    K2_ASSERT(count <= K2_FLIGHT_RINGS_MAX);
    t->count = count;
    t->begin_ns = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        t->rings[i] = rings[i];
        t->begin_ns = K2_MIN(t->begin_ns, rings[i]->start_ns);
        t->end_ns = K2_MAX(t->end_ns, rings[i]->end_ns);
    }
    if (count == 0) t->begin_ns = 0;
    t->zero_ns = t->begin_ns;
    qsort(t->rings, count, sizeof(t->rings[0]), by_place);
    return t;
}

void k2_flight_trace_free(k2_flight_trace *trace)
{
    if (trace == NULL) return;
    for (uint32_t i = 0; i < trace->count; i++) k2_flight_ring_free(trace->rings[i]);
    k2_free(trace);
}

void k2_flight_trace_last(k2_flight_trace *trace, double seconds)
{
    double length = (double)(trace->end_ns - trace->begin_ns);
    if (seconds * 1e9 < length) trace->begin_ns = trace->end_ns - (uint64_t)(seconds * 1e9);
}

/* ---- a directory ------------------------------------------------------------------------------------------------------- */

static k2_flight_ring *ring_load(const char *path, k2_error *err)
{
    char *bytes;
    size_t n;
    k2_flight_ring *ring = NULL;
    if (k2_file_read(path, K2_FLIGHT_KIB_MAX * 1024ull, &bytes, &n, err) != K2_OK) return NULL;
    if (k2_flight_ring_parse(bytes, n, &ring, err) != K2_OK) k2_error_prefix(err, "%s", path);
    k2_free(bytes);
    return ring;
}

static bool is_ring(const char *name)
{
    size_t n = strlen(name);
    return name[0] != '.' && n > 5 && strcmp(name + n - 5, ".ring") == 0;
}

k2_code k2_flight_trace_load(const char *run_dir, void (*skipped)(void *arg, const char *text), void *arg,
                             k2_flight_trace **out, k2_error *err)
{
    char host[64] = "", boot[40] = "";
    uint32_t count = 0;
    char *dir = k2_asprintf("%s/flight", run_dir);
    DIR *d = opendir(dir);
    if (d == NULL) {
        k2_error_errno(err, errno, "%s: cannot open (a run with run.flight_kib above 0 leaves its rings there)", dir);
        k2_free(dir);
        return err != NULL ? err->code : K2_NOT_FOUND;
    }
    (void)gethostname(host, sizeof host - 1);
    (void)read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    k2_flight_ring **rings = k2_alloc_array(K2_FLIGHT_RINGS_MAX, sizeof(k2_flight_ring *));
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (!is_ring(e->d_name)) continue;
        k2_error why;
        char *path = k2_asprintf("%s/%s", dir, e->d_name);
        k2_flight_ring *ring = count < K2_FLIGHT_RINGS_MAX ? ring_load(path, &why) : NULL;
        if (count == K2_FLIGHT_RINGS_MAX) k2_error_set(&why, K2_LIMIT, "%s: %u rings are read already", path, count);
        k2_free(path);
        if (ring == NULL) {
            if (skipped != NULL) skipped(arg, why.text);
            continue;
        }
        life_find(ring, host, boot, k2_wall_us() * 1000);
        rings[count++] = ring;
    }
    closedir(d);
    k2_code code = count > 0 ? K2_OK : k2_error_set(err, K2_NOT_FOUND, "%s: no ring is there", dir);
    if (code == K2_OK) *out = k2_flight_trace_of(rings, count);
    k2_free(rings);
    k2_free(dir);
    return code;
}
