#include "kernels/cpu/cpu.h"

void ref_rotate(const kern_tensor *in, int64_t from, const kern_tensor *out, int64_t to, int32_t d_rope,
                const float *cos_sin)
{
    for (int32_t i = 0; i < d_rope; i += 2) {
        float a = cpu_get(in, from + i), b = cpu_get(in, from + i + 1), c = cos_sin[i], s = cos_sin[i + 1];
        cpu_put(out, to + i, cpu_round(in->dtype, a * c - b * s));
        cpu_put(out, to + i + 1, cpu_round(in->dtype, a * s + b * c));
    }
}

void ref_rope_rows(const kern_rope_args *a, int32_t r0, int32_t r1)
{
    for (int32_t r = r0; r < r1; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            int64_t at = r * a->q.stride + (int64_t)h * a->d_head + a->d_head - a->d_rope;
            ref_rotate(&a->q, at, &a->q, at, a->d_rope, a->cos_sin + (int64_t)a->pos[r] * a->d_rope);
        }
}

ltd_status ref_rope(const kern_ctx *ctx, const kern_rope_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_act("rope", "q", &a->q, false));
    ref_rope_rows(a, 0, cpu_rows(a->rows_cap, a->rows));
    return LTD_OK;
}
