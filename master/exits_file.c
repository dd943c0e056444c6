/* exits_file: logs/exits.jsonl, one line for each process that ended. The master appends, `k2rl why` reads its end. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "master/exits_int.h"
#include "master/words_int.h"

#define TAIL_BYTES (64u << 10) /* more than K2M_EXITS_KEPT lines */

static void put_text(k2_buf *out, const char *key, const char *value)
{
    k2_buf_printf(out, ", \"%s\": ", key);
    k2_buf_json_string(out, value, strlen(value));
}

void k2m_exit_json(const k2m_exit *e, k2_buf *out)
{
    char name[K2_SIGNAL_NAME_MAX];
    k2_buf_printf(
        out, "{\"at_us\": %llu, \"incarnation\": %llu, \"pid\": %llu, \"lived_ms\": %llu, \"exit_code\": %d, \"signal\": %d",
        (unsigned long long)(e->at_ns / 1000), (unsigned long long)e->incarnation, (unsigned long long)e->pid,
        (unsigned long long)(e->lived_ns / K2_NS_PER_MS), e->exit_code, e->signal);
    put_text(out, "signal_name", e->signal ? k2_signal_name(e->signal, name) : "");
    k2_buf_printf(out, ", \"oom_kills\": %llu, \"expected\": %s", (unsigned long long)e->oom_kills,
                  e->expected ? "true" : "false");
    put_text(out, "worker", e->name);
    put_text(out, "killed", e->killed);
    put_text(out, "last", e->last);
    k2_buf_puts(out, "}");
}

static bool number(const cJSON *j, const char *key, double max, double *out)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(j, key);
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble <= max)) return false;
    *out = v->valuedouble;
    return true;
}

static bool string(const cJSON *j, const char *key, char *out, size_t n)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(j, key);
    if (!cJSON_IsString(v)) return false;
    snprintf(out, n, "%.*s", (int)n - 1, v->valuestring);
    return true;
}

bool k2m_exit_parse(const char *line, size_t n, k2m_exit *out)
{
    const double whole = 9007199254740992.0; /* 2^53: beyond, a double skips numbers */
    double at, incarnation, pid, lived, code, signum, oom;
    k2m_exit e = {.over = true};
    cJSON *j = k2_json_fault(line, n, 4) ? NULL : cJSON_ParseWithLength(line, n);
    bool good = number(j, "at_us", whole, &at) && number(j, "incarnation", whole, &incarnation) &&
                number(j, "pid", whole, &pid) && number(j, "lived_ms", whole / 1e6, &lived) &&
                number(j, "exit_code", 255, &code) && number(j, "signal", 128, &signum) &&
                number(j, "oom_kills", whole, &oom) && string(j, "worker", e.name, sizeof e.name) &&
                string(j, "killed", e.killed, sizeof e.killed) && string(j, "last", e.last, sizeof e.last);
    if (good) {
        e.at_ns = (uint64_t)at * 1000;
        e.incarnation = (uint64_t)incarnation;
        e.pid = (uint64_t)pid;
        e.lived_ns = (uint64_t)lived * K2_NS_PER_MS;
        e.exit_code = (int)code;
        e.signal = (int)signum;
        e.oom_kills = (uint64_t)oom;
        e.expected = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(j, "expected"));
        *out = e;
    }
    cJSON_Delete(j);
    return good;
}

void k2m_exits_append(const char *run_dir, const k2m_exit *e)
{
    k2_buf b;
    k2_buf_init(&b, 8192);
    k2m_exit_json(e, &b);
    k2_buf_puts(&b, "\n");
    char *path = k2_asprintf("%s/logs/exits.jsonl", run_dir);
    int fd;
    if (k2_file_append_lines(path, &fd, NULL) == K2_OK) {
        (void)!write(fd, b.data, b.len); /* like the log: on a full disk the line is lost, and the run goes on */
        close(fd);
    }
    k2_free(path);
    k2_buf_fini(&b);
}

void k2m_exits_load(const char *run_dir, k2m_exits *out)
{
    char *path = k2_asprintf("%s/logs/exits.jsonl", run_dir), *bytes = k2_alloc(TAIL_BYTES + 1);
    size_t n = k2m_words_read(path, bytes, TAIL_BYTES);
    *out = (k2m_exits){0};
    for (char *line = bytes, *end; (end = memchr(line, '\n', (size_t)(bytes + n - line))); line = end + 1) {
        k2m_exit e; /* the first line may be cut, and is none then */
        if (k2m_exit_parse(line, (size_t)(end - line), &e)) *k2m_exits_add(out, e.name, e.incarnation, e.at_ns) = e;
    }
    k2_free(bytes);
    k2_free(path);
}

static void show_one(const k2m_exit *e, bool first, bool alone, k2_buf *out)
{
    char text[K2M_EXIT_TEXT_MAX];
    time_t at = (time_t)(e->at_ns / K2_NS_PER_S);
    struct tm tm;
    gmtime_r(&at, &tm);
    k2m_exit_text(e, text, sizeof text);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?'; /* a worker's words may hold anything */
    k2_buf_printf(out, "  %s %04d-%02d-%02dT%02d:%02d:%02dZ %s%s\n", first ? "last exit:" : "     then:", tm.tm_year + 1900,
                  tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, text,
                  first && !alone ? "  <== first cause" : "");
}

void k2m_exits_show(const char *run_dir, bool json, k2_buf *out)
{
    static k2m_exits exits; /* large */
    k2m_incident x;
    k2m_words words;
    char *path = k2_asprintf("%s/logs/master-0.log", run_dir), *bytes = k2_alloc(TAIL_BYTES + 1);
    k2m_words_find(bytes, k2m_words_read(path, bytes, TAIL_BYTES), true, &words);
    const char *master = words.report ? words.last : "";
    k2m_exits_load(run_dir, &exits);
    k2m_exits_incident(&exits, &x);
    if (json) k2_buf_puts(out, ", \"exits\": [");
    for (uint32_t i = 0; i < x.count; i++) {
        if (json && i) k2_buf_puts(out, ", ");
        if (json)
            k2m_exit_json(x.list[i], out);
        else
            show_one(x.list[i], i == 0, x.count == 1, out);
    }
    if (json) {
        k2_buf_puts(out, "]");
        put_text(out, "master_crash", master);
    } else if (master[0]) {
        k2_buf_printf(out, "  the master crashed: %s\n", master);
    }
    k2_free(bytes);
    k2_free(path);
}
