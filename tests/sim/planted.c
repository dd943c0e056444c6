/* planted: the names of the mistakes, and which one is made. In the ordinary binary there are none to make. */
#include "planted_int.h"

#include <string.h>

static const char *const names[K2_PLANTED_COUNT][2] = {{"NONE", "no mistake"},
#define K2_X(name, text) {#name, text},
                                                       K2_PLANTED_LIST(K2_X)
#undef K2_X
};

#ifdef K2_PLANTED_BUILD
k2_planted k2_planted_now;
#else
static const k2_planted k2_planted_now = K2_PLANTED_NONE;
#endif

k2_planted sim_planted_now(void)
{
    return k2_planted_now;
}

const char *sim_planted_name(k2_planted p)
{
    return names[p][0];
}

const char *sim_planted_text(k2_planted p)
{
    return names[p][1];
}

bool sim_planted_find(const char *name, k2_planted *out)
{
    for (uint32_t p = 1; p < K2_PLANTED_COUNT; p++)
        if (strcmp(name, names[p][0]) == 0) *out = (k2_planted)p;
    return *out != K2_PLANTED_NONE;
}
