/* proxy_list: the proxy's list of requests (GET /k2/requests), so that the wait-for chain knows which engine has what. One
 * question at a time, with a short deadline and a connection of its own: a proxy that is stopped delays nobody. */
#include "master/io_int.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define BODY_MAX    65536u
#define PATIENCE_NS K2_NS_PER_S /* for the connection, and again for the answer */

static bool number(const cJSON *o, const char *name, double max, double *out)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble) || v->valuedouble < 0 || v->valuedouble > max) return false;
    *out = v->valuedouble;
    return true;
}

/* Ids above 2^53 come as decimal strings. */
static bool id_of(const cJSON *o, const char *name, uint64_t *out)
{
    double v;
    const cJSON *s = cJSON_GetObjectItemCaseSensitive(o, name);
    if (cJSON_IsString(s)) return k2_str_u64(s->valuestring, out);
    if (!number(o, name, 9007199254740992.0, &v)) return false;
    *out = (uint64_t)v;
    return true;
}

static bool word_is(const cJSON *o, const char *name, const char *word)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    return cJSON_IsString(v) && strcmp(v->valuestring, word) == 0;
}

static uint64_t ago(uint64_t now_ns, double ms)
{
    uint64_t ns = (uint64_t)(ms * (double)K2_NS_PER_MS);
    return now_ns > ns ? now_ns - ns : 1;
}

/* False: not a request of this run, or not whole. */
static bool read_request(const cJSON *o, const k2m_core *m, uint64_t now_ns, k2m_request *r)
{
    const double day_ms = 86400e3, counts = 4e9;
    double since, heard = 0, left, tokens, attempts;
    uint64_t engine;
    *r = (k2m_request){.worker = K2M_NOBODY, .score = word_is(o, "kind", "score"), .queued = word_is(o, "state", "queued")};
    if (!r->score && !id_of(o, "trajectory", &r->id)) return false;
    if (!number(o, "since_ms", 365 * day_ms, &since) || !number(o, "left_ms", 365 * day_ms, &left) ||
        !number(o, "tokens", counts, &tokens) || !number(o, "attempts", counts, &attempts))
        return false;
    bool answers = number(o, "heard_ms", 365 * day_ms, &heard);
    if (!r->queued && id_of(o, "engine", &engine) && engine >= 1 && engine <= m->worker_count &&
        m->workers[engine - 1].role == K2M_ROLLOUT)
        r->worker = (uint32_t)engine - 1;
    r->since_ns = ago(now_ns, since);
    r->heard_ns = answers ? ago(now_ns, heard) : 0;
    r->deadline_ns = now_ns + (uint64_t)(left * (double)K2_NS_PER_MS);
    r->tokens = (uint32_t)tokens;
    r->attempts = (uint32_t)attempts;
    return true;
}

bool k2m_proxy_list_read(const k2m_core *m, const char *body, size_t n, uint64_t now_ns, k2m_proxy_list *out)
{
    cJSON *root = k2_json_fault(body, n, 8) ? NULL : cJSON_ParseWithLength(body, n);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "requests");
    double running, queued;
    bool ok = cJSON_IsArray(list) && number(root, "running", 4e9, &running) && number(root, "queued", 4e9, &queued);
    if (ok) {
        out->at_ns = now_ns;
        out->running = (uint32_t)running;
        out->queued = (uint32_t)queued;
        out->count = 0;
        for (const cJSON *o = list->child; o && out->count < K2M_LISTED_MAX; o = o->next)
            out->count += read_request(o, m, now_ns, &out->list[out->count]);
    }
    cJSON_Delete(root);
    return ok;
}

static void answered(void *arg, k2_code code, int status, const char *body, size_t n)
{
    k2m_io *io = arg;
    io->list_call = NULL;
    if (k2_loop_ending(io->loop) || code != K2_OK || status != 200) return;
    if (!k2m_proxy_list_read(io->core, body, n, k2_loop_now_ns(io->loop), &io->core->listed))
        K2_LOG_WARN(io->log, "the proxy's /k2/requests is not understood: %.100s", body);
}

void k2m_proxy_list_ask(k2m_io *io)
{
    const k2m_core *m = io->core;
    if (!m->has_proxy || m->workers[m->proxy].state != K2M_UP || io->list_call) return;
    char url[K2M_ENDPOINT_MAX + 32];
    snprintf(url, sizeof url, "%s/k2/requests", m->workers[m->proxy].endpoint);
    k2_http_call_spec spec = {
        .method = "GET", .url = url, .connect_ns = PATIENCE_NS, .first_byte_ns = PATIENCE_NS, .idle_ns = PATIENCE_NS};
    io->list_call = k2_http_fetch(io->list_http, &spec, BODY_MAX, answered, io, NULL);
    io->list_asked_ns = k2_loop_now_ns(io->loop);
}
