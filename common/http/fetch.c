/* fetch.c - a call whose whole answer is wanted at once: collects the pieces under a cap. */
#include "common/http/http.h"

#include <string.h>

typedef struct fetch {
    k2_http_call *call;
    k2_buf body;
    int status;
    void (*on_done)(void *arg, k2_code code, int status, const char *body, size_t n);
    void *arg;
} fetch;

static void fetch_end(fetch *f, k2_code code, int status, const char *body, size_t n)
{
    f->on_done(f->arg, code, status, body, n);
}

static void on_gone(void *arg)
{
    fetch *f = arg;
    k2_buf_fini(&f->body);
    k2_free(f);
}

static void on_head(void *arg, int status, const char *content_type)
{
    (void)content_type;
    ((fetch *)arg)->status = status;
}

static void on_data(void *arg, const char *data, size_t n)
{
    fetch *f = arg;
    k2_buf_append(&f->body, data, n); /* overflow stays noted and is told at the end */
}

static void on_done(void *arg, k2_code code, const char *text)
{
    fetch *f = arg;
    if (code == K2_OK && f->body.overflow) code = K2_LIMIT, text = "the answer is larger than expected";
    if (code == K2_OK)
        fetch_end(f, K2_OK, f->status, f->body.data ? f->body.data : "", f->body.len);
    else
        fetch_end(f, code, 0, text, strlen(text));
}

static const k2_http_call_ops fetch_ops = {.on_head = on_head, .on_data = on_data, .on_done = on_done, .on_gone = on_gone};

k2_http_call *k2_http_fetch(k2_http_client *c, const k2_http_call_spec *spec, size_t body_bytes_max,
                            void (*done)(void *arg, k2_code code, int status, const char *body, size_t n), void *arg,
                            k2_error *err)
{
    fetch *f = k2_alloc(sizeof *f);
    f->on_done = done;
    f->arg = arg;
    k2_buf_init(&f->body, body_bytes_max);
    f->call = k2_http_request(c, spec, &fetch_ops, f, err);
    if (!f->call) {
        k2_free(f);
        return NULL;
    }
    return f->call;
}
