/* The table of rotations: in double, with the C library's cos and sin, rounded once. It is made once at the start. */
#include "common/kernel/kernel_int.h"

#include <math.h>

#define K2I_PI 3.14159265358979323846

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* The (fractional) pair that turns `turns` times over the original context. */
static double correction_dim(const k2_dims *d, double turns)
{
    double positions = (double)d->yarn.original_max_position_embeddings;
    return d->qk_rope_head_dim * log(positions / (turns * 2.0 * K2I_PI)) / (2.0 * log(d->rope_theta));
}

/* Radians per position of pair i. YaRN leaves fast pairs as they are, divides slow ones by its factor and blends between. */
static double frequency(const k2_dims *d, uint32_t i)
{
    double plain = pow(d->rope_theta, -2.0 * i / d->qk_rope_head_dim);
    if (d->yarn.factor == 0) return plain;
    double low = fmax(floor(correction_dim(d, d->yarn.beta_fast)), 0.0);
    double high = fmin(ceil(correction_dim(d, d->yarn.beta_slow)), d->qk_rope_head_dim - 1.0);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
    return plain / d->yarn.factor * ramp + plain * (1.0 - ramp);
}

/* What YaRN multiplies cos and sin by. Where both mscales are given they cancel down to their ratio. */
static double amplitude(const k2_dims *d)
{
    const k2_yarn *y = &d->yarn;
    if (y->factor == 0) return 1.0;
    if (y->mscale != 0 && y->mscale_all_dim != 0)
        return yarn_mscale(y->factor, y->mscale) / yarn_mscale(y->factor, y->mscale_all_dim);
    return yarn_mscale(y->factor, 1.0);
}

void k2_kern_rope_table(const k2_dims *d, size_t positions, float *table)
{
    uint32_t pairs = d->qk_rope_head_dim / 2;
    double by = amplitude(d);
    for (uint32_t i = 0; i < pairs; i++) {
        double f = frequency(d, i);
        for (size_t p = 0; p < positions; p++) {
            double angle = (double)p * f;
            table[(p * pairs + i) * 2] = (float)(cos(angle) * by);
            table[(p * pairs + i) * 2 + 1] = (float)(sin(angle) * by);
        }
    }
}

float k2_kern_attn_scale(const k2_dims *d)
{
    double scale = 1.0 / sqrt((double)(d->qk_nope_head_dim + d->qk_rope_head_dim));
    if (d->yarn.factor != 0 && d->yarn.mscale_all_dim != 0) {
        double m = yarn_mscale(d->yarn.factor, d->yarn.mscale_all_dim);
        scale *= m * m;
    }
    return (float)scale;
}
