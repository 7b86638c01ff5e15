#include "kernels/cpu/cpu.h"

void ref_latent_rows(const kern_latent_args *a, int32_t r0, int32_t r1)
{
    kern_dtype in = a->kv_a.dtype;
    for (int32_t r = r0; r < r1; r++) {
        int64_t from = r * a->kv_a.stride, to = a->slots ? a->slots[r] : r;
        float lane[LANES] = {0};
        for (int32_t i = 0; i < a->d_c; i++)
            lane[i % LANES] += cpu_get(&a->kv_a, from + i) * cpu_get(&a->kv_a, from + i);
        float factor = ref_norm_factor(lane, a->d_c, a->eps);
        for (int32_t i = 0; i < a->d_c; i++) {
            float y = cpu_round(in, cpu_get(&a->kv_a, from + i) * factor);
            cpu_put(&a->latent, to * a->latent.stride + i, cpu_round(in, y * a->norm_weight[i]));
        }
        ref_rotate(&a->kv_a, from + a->d_c, &a->rope, to * a->rope.stride, a->d_rope,
                   a->cos_sin + (int64_t)a->pos[r] * a->d_rope);
    }
}

ltd_status ref_latent(const kern_ctx *ctx, const kern_latent_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_act("latent", "kv_a", &a->kv_a, false));
    CPU_TRY(cpu_check_act("latent", "latent", &a->latent, false));
    CPU_TRY(cpu_check_act("latent", "rope", &a->rope, false));
    ref_latent_rows(a, 0, cpu_rows(a->rows_cap, a->rows));
    return LTD_OK;
}
