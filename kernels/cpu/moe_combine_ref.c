#include "kernels/cpu/cpu.h"

ltd_status ref_moe_combine(const kern_ctx *ctx, const kern_moe_combine_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_act("moe_combine", "expert", &a->expert, false));
    CPU_TRY(cpu_check_act("moe_combine", "shared", &a->shared, true));
    CPU_TRY(cpu_check_act("moe_combine", "out", &a->out, false));
    int32_t n = cpu_rows(a->rows_cap, a->rows);
    for (int32_t r = 0; r < n; r++)
        for (int32_t i = 0; i < a->d; i++) {
            float sum = 0;
            for (int32_t k = 0; k < a->top_k; k++) {
                int32_t at = a->inverse[r * a->top_k + k];
                if (at >= 0)
                    sum += a->weights[r * a->top_k + k] * cpu_get(&a->expert, at * a->expert.stride + i);
            }
            if (a->shared.data) sum += cpu_get(&a->shared, r * a->shared.stride + i);
            cpu_put(&a->out, r * a->out.stride + i, sum);
        }
    return LTD_OK;
}
