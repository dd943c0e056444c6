/* gauges: what workers say of themselves with POLL, kept by name, and the rates of what counts up. */
#include "master/look_int.h"

#include <math.h>
#include <string.h>

static double rate(double from, double to, uint64_t ns)
{
    return to >= from ? (to - from) / ((double)ns / (double)K2_NS_PER_S) : 0;
}

void k2m_gauges_take(k2m_gauges *g, const k2_wire_metrics *said, uint64_t now_ns)
{
    static const char *const names[K2M_G_COUNT] = {
#define K2M_G(name, text) [K2M_G_##name] = text,
        K2M_GAUGE_NAMES(K2M_G)
#undef K2M_G
    };
    for (uint32_t i = 0; i < said->count; i++)
        for (size_t k = 0; k < K2M_G_COUNT; k++)
            if (isfinite(said->items[i].value) && strcmp(said->items[i].name, names[k]) == 0)
                g->value[k] = said->items[i].value;
    g->at_ns = now_ns;
    double tokens = g->value[K2M_G_TOKENS], done = g->value[K2M_G_DONE];
    uint64_t ns = now_ns - g->from_ns;
    if (g->from_ns != 0 && ns < K2M_RATE_NS) return;
    if (g->from_ns != 0) {
        g->tokens_per_s = rate(g->from_tokens, tokens, ns);
        g->done_per_s = rate(g->from_done, done, ns);
    }
    g->from_ns = now_ns;
    g->from_tokens = tokens;
    g->from_done = done;
}
