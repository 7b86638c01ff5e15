#include "kernels/cpu/cpu.h"

ltd_status ref_silu_mul(const kern_ctx *ctx, const kern_silu_mul_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_act("silu_mul", "x", &a->x, false));
    CPU_TRY(cpu_check_act("silu_mul", "out", &a->out, false));
    int32_t n = cpu_rows(a->rows_cap, a->rows);
    for (int32_t r = 0; r < n; r++)
        for (int32_t i = 0; i < a->d; i++)
            cpu_put(&a->out, r * a->out.stride + i,
                    kern_silu(cpu_get(&a->x, r * a->x.stride + i)) *
                        cpu_get(&a->x, r * a->x.stride + a->d + i));
    return LTD_OK;
}
