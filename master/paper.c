/* paper: see paper_int.h. */
#include "master/paper_int.h"

#include "common/metrics/metrics.h"
#include "common/wire/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct scalar {
    char tag[2 * K2_WIRE_NAME_MAX];
    uint64_t step;
    double value, wall_s;
} scalar;

typedef struct sheet {
    k2_buf lines;
    scalar *scalars;
    uint32_t count, capacity;
} sheet;

struct k2m_paper {
    k2_loop *loop;
    k2_log *log;
    k2_tb *tb;
    int fd;
    sheet sheets[2];
    sheet *filling, *writing;       /* the loop's; the pool's while busy */
    bool busy, dropped;             /* busy: one is at the pool */
    k2_error lines_error, tb_error; /* the pool's while busy: of the last write */
    bool lines_told, tb_told;
};

/* ---- the pool -------------------------------------------------------------------------------------------------------- */

static void write_lines(k2m_paper *p, const k2_buf *lines)
{
    off_t whole = lseek(p->fd, 0, SEEK_END);
    size_t at = 0;
    while (at < lines->len) {
        ssize_t n = write(p->fd, lines->data + at, lines->len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            k2_error_errno(&p->lines_error, errno, "metrics.jsonl");
            if (whole >= 0) (void)!ftruncate(p->fd, whole);
            return;
        }
        at += (size_t)n;
    }
}

static void work(void *arg)
{
    k2m_paper *p = arg;
    sheet *s = p->writing;
    p->lines_error.code = p->tb_error.code = K2_OK;
    write_lines(p, &s->lines);
    for (uint32_t i = 0; i < s->count; i++)
        k2_tb_scalar(p->tb, s->scalars[i].tag, (int64_t)s->scalars[i].step, s->scalars[i].value, s->scalars[i].wall_s);
    (void)k2_tb_flush(p->tb, &p->tb_error);
}

/* ---- the loop -------------------------------------------------------------------------------------------------------- */

/* The run goes on: its result is in the journal and the checkpoints. */
static void tell(k2m_paper *p, const k2_error *err, bool *told)
{
    if (err->code != K2_OK && !*told) K2_LOG_WARN(p->log, "%s; the run goes on", err->text);
    *told = err->code != K2_OK;
}

static void empty(sheet *s)
{
    k2_buf_clear(&s->lines);
    s->count = 0;
}

static void done(void *arg)
{
    k2m_paper *p = arg;
    p->busy = false;
    tell(p, &p->lines_error, &p->lines_told);
    tell(p, &p->tb_error, &p->tb_told);
    empty(p->writing);
    k2m_paper_send(p);
}

void k2m_paper_send(k2m_paper *p)
{
    if (p->busy || (p->filling->lines.len == 0 && p->filling->count == 0)) return;
    sheet *s = p->filling;
    p->filling = p->writing;
    p->writing = s;
    p->busy = true;
    k2_loop_work_surely(p->loop, work, done, p);
}

static void drop(k2m_paper *p, const char *what)
{
    if (!p->dropped) K2_LOG_WARN(p->log, "%s: the disk is too slow, some is left out", what);
    p->dropped = true;
}

void k2m_paper_line(k2m_paper *p, const char *line, size_t n)
{
    k2_buf *b = &p->filling->lines;
    if (b->len + n <= K2M_PAPER_BYTES_MAX)
        k2_buf_append(b, line, n);
    else
        drop(p, "metrics.jsonl");
}

void k2m_paper_scalar(k2m_paper *p, const char *group, const char *name, uint64_t step, double value)
{
    sheet *s = p->filling;
    if (s->count == K2M_PAPER_SCALARS_MAX) {
        drop(p, "tensorboard");
        return;
    }
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 256;
        s->scalars = k2_realloc_array(s->scalars, s->capacity, sizeof *s->scalars);
    }
    scalar *x = &s->scalars[s->count++];
    *x = (scalar){.step = step, .value = value, .wall_s = (double)k2_wall_us() / 1e6};
    snprintf(x->tag, sizeof x->tag, "%s/%s", group, name);
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

k2_code k2m_paper_open(const char *run_dir, const char *config_json, k2_loop *loop, k2_log *log, k2m_paper **out, k2_error *err)
{
    char *dir = k2_asprintf("%s/tensorboard", run_dir), *path = k2_asprintf("%s/metrics.jsonl", run_dir);
    k2m_paper *p = k2_alloc(sizeof *p);
    *p = (k2m_paper){.loop = loop, .log = log, .fd = -1, .filling = &p->sheets[0], .writing = &p->sheets[1]};
    for (size_t i = 0; i < K2_COUNT(p->sheets); i++) k2_buf_init(&p->sheets[i].lines, K2M_PAPER_BYTES_MAX);
    k2_code code = k2_tb_open(dir, &p->tb, err);
    if (code == K2_OK) code = k2_file_append_lines(path, &p->fd, err);
    if (code == K2_OK) {
        k2_tb_text(p->tb, "config", 0, config_json, (double)k2_wall_us() / 1e6);
        *out = p;
    } else {
        k2m_paper_close(p);
    }
    k2_free(dir);
    k2_free(path);
    return code;
}

void k2m_paper_close(k2m_paper *p)
{
    if (!p) return;
    K2_ASSERT(!p->busy);
    k2_tb_close(p->tb);
    if (p->fd >= 0) close(p->fd);
    for (size_t i = 0; i < K2_COUNT(p->sheets); i++) {
        k2_buf_fini(&p->sheets[i].lines);
        k2_free(p->sheets[i].scalars);
    }
    k2_free(p);
}
