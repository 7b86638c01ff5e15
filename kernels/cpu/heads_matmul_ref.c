#include "kernels/cpu/cpu.h"

ltd_status ref_heads_matmul(const kern_ctx *ctx, const kern_heads_matmul_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_act("heads_matmul", "x", &a->x, false));
    CPU_TRY(cpu_check_act("heads_matmul", "out", &a->out, false));
    int32_t rows = cpu_rows(a->rows_cap, a->rows);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            int64_t x = r * a->x.stride + h * a->x_head, y = r * a->out.stride + h * a->out_head,
                    w0 = (int64_t)h * a->head_rows + a->row0;
            if (a->dir == KERN_HEADS_OUT) {
                for (int32_t i = 0; i < a->d; i++) cpu_put(&a->out, y + i, ref_dot(&a->x, x, a->w, w0 + i));
                continue;
            }
            for (int32_t c = 0; c < a->w->k; c++) {
                float sum = 0;
                for (int32_t i = 0; i < a->d; i++)
                    sum += cpu_get(&a->x, x + i) * cpu_weight_get(a->w, w0 + i, c);
                cpu_put(&a->out, y + c, sum);
            }
        }
    return LTD_OK;
}
