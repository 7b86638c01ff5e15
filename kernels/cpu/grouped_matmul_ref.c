#include "kernels/cpu/cpu.h"

ltd_status ref_grouped_matmul(const kern_ctx *ctx, const kern_grouped_matmul_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_act("grouped_matmul", "x", &a->x, false));
    CPU_TRY(cpu_check_act("grouped_matmul", "out", &a->out, false));
    for (int32_t e = 0; e < a->w->count; e++) {
        LTD_DCHECK(a->offsets[e] <= a->offsets[e + 1] && a->offsets[e + 1] <= a->rows_cap,
                   "grouped_matmul: group %d ends at %d of %d", (int)e, (int)a->offsets[e + 1],
                   (int)a->rows_cap);
        for (int32_t r = a->offsets[e]; r < a->offsets[e + 1]; r++) {
            int64_t from = a->gather ? a->gather[r] / a->gather_div : r;
            for (int32_t j = 0; j < a->w->n; j++)
                cpu_put(&a->out, r * a->out.stride + j,
                        ref_dot(&a->x, from * a->x.stride, a->w, (int64_t)e * a->w->n + j));
        }
    }
    return LTD_OK;
}
