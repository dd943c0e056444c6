/* shape - length terms of a reward. See shape_int.h. */
#include "trainer/shape_int.h"

static double length_term(const k2i_shape *shape, double reward, uint32_t tokens, uint32_t least, uint32_t most)
{
    if (shape->length_weight == 0 || least == most) return 0;
    double l = 0.5 - (double)(tokens - least) / (double)(most - least);
    return shape->length_weight * (reward >= shape->correct || l < 0 ? l : 0);
}

static double overlong_term(const k2i_shape *shape, uint32_t tokens)
{
    if (shape->overlong == 0 || tokens + shape->overlong <= shape->longest) return 0;
    double over = (double)(tokens + shape->overlong - shape->longest) / (double)shape->overlong;
    return over < 1 ? -over : -1;
}

void k2i_shape_group(const k2i_shape *shape, uint32_t n, const double *reward, const uint32_t *tokens, double *shaped)
{
    uint32_t least = tokens[0], most = tokens[0];
    for (uint32_t i = 1; i < n; i++) {
        least = K2_MIN(least, tokens[i]);
        most = K2_MAX(most, tokens[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        shaped[i] = reward[i] + length_term(shape, reward[i], tokens[i], least, most) + overlong_term(shape, tokens[i]);
}
