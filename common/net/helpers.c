/* Small helpers of net: launch tokens, socket paths. */
#include "common/net/net.h"

#include <string.h>

bool k2_net_token_equal(const char *expected, const char *got)
{
    if (!expected || !expected[0] || !got) return false;
    size_t n = strlen(expected), m = strlen(got);
    unsigned diff = n != m;
    for (size_t i = 0; i < m; i++) diff |= (unsigned char)expected[i % n] ^ (unsigned char)got[i];
    return diff == 0;
}
