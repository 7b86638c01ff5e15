/* rope.c - inverse frequencies and the table of cosines and sines.
 * Pair i of a head's rotary part is its elements 2i and 2i + 1; its angle at position p is p * inv_freq(i).
 * The angle is a product of f32 numbers, as in the references, since at large positions its rounding is
 * larger than anything that follows; cosine and sine of that angle are exact to f32. */
#include "model/model_private.h"

#include <math.h>

/* The dimension whose wavelength turns r times over the original length. */
static double yarn_dim(const model_config *c, double r)
{
    return c->d_rope * log(c->rope_original / (r * 2 * M_PI)) / (2 * log(c->rope_theta));
}

void model_rope_inv_freq(const model_config *c, double *inv_freq)
{
    int32_t half = c->d_rope / 2;
    for (int32_t i = 0; i < half; i++) inv_freq[i] = pow(c->rope_theta, -2.0 * i / c->d_rope);
    if (c->rope != ROPE_YARN) return;

    double low = yarn_dim(c, c->beta_fast), high = yarn_dim(c, c->beta_slow);
    if (c->rope_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, c->d_rope - 1); /* not half - 1: so it is in all references */
    if (low == high) high += 0.001;
    for (int32_t i = 0; i < half;
         i++) { /* fast pairs keep their frequency, slow ones are stretched, those between are blended */
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        inv_freq[i] = inv_freq[i] / c->rope_factor * ramp + inv_freq[i] * (1 - ramp);
    }
}

void model_rope_table(const model_config *c, int32_t n_pos, float *out)
{
    int32_t half = c->d_rope / 2;
    double *inv_freq = ltd_alloc((size_t)half * sizeof *inv_freq);
    float factor = (float)c->rope_cos_factor;
    model_rope_inv_freq(c, inv_freq);
    for (int32_t p = 0; p < n_pos; p++)
        for (int32_t i = 0; i < half; i++) {
            float angle = (float)p * (float)inv_freq[i];
            double sine, cosine;
            sincos(angle, &sine, &cosine);
            *out++ = (float)cosine * factor;
            *out++ = (float)sine * factor;
        }
    ltd_free(inv_freq);
}
