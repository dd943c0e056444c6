/* The fuzz target of a family: every input goes to every parser, whole, and for streams cut in pieces too. */
#include <stdio.h>
#include <stdlib.h>

#include "guard.h"
#include "parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[256];
    if (size > K2_GUARD_BYTES / 2) return 0;
    for (size_t i = 0; i < k2_parsers_count; i++) {
        const k2_parser *p = &k2_parsers[i];
        k2_parser_whole(p, true, data, size);
        if (!p->stream || size < 2) continue;
        const uint64_t draw = k2_hash64(data, size, 0); /* where to cut is a function of the input, so that findings repeat */
        const size_t first = 1 + draw % (size - 1);
        const bool same =
            k2_parser_same(p, data, size, first, size, why) && k2_parser_same(p, data, size, 0, 1 + (draw >> 32) % 16, why);
        if (!same) {
            fprintf(stderr, "cutting the input changed what was read: %s\n", why);
            abort();
        }
    }
    return 0;
}
