#include "kernels/cpu/cpu.h"

float ref_norm_factor(const float *lane, int32_t d, float eps)
{
    return 1.0f / sqrtf(lanes_tree(lane) / (float)d + eps);
}

ltd_status ref_add_norm(const kern_ctx *ctx, const kern_add_norm_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_act("add_norm", "x", &a->x, false));
    CPU_TRY(cpu_check_act("add_norm", "delta", &a->delta, true));
    CPU_TRY(cpu_check_act("add_norm", "out", &a->out, true));
    int32_t n = cpu_rows(a->rows_cap, a->rows);
    for (int32_t r = 0; r < n; r++) {
        int64_t x0 = r * a->x.stride;
        float lane[LANES] = {0};
        for (int32_t i = 0; i < a->d; i++) {
            if (a->delta.data)
                cpu_put(&a->x, x0 + i, cpu_get(&a->x, x0 + i) + cpu_get(&a->delta, r * a->delta.stride + i));
            float x = cpu_get(&a->x, x0 + i);
            lane[i % LANES] += x * x;
        }
        if (!a->out.data) continue;
        float factor = ref_norm_factor(lane, a->d, a->eps);
        for (int32_t i = 0; i < a->d; i++) {
            float y = cpu_round(a->out.dtype, cpu_get(&a->x, x0 + i) * factor);
            cpu_put(&a->out, r * a->out.stride + i, y * a->weight[i]);
        }
    }
    return LTD_OK;
}
