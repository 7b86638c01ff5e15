#include "kernels/cpu/cpu.h"

float ref_dot(const kern_tensor *x, int64_t at, const kern_weight *w, int64_t row)
{
    float lane[LANES] = {0};
    for (int32_t i = 0; i < w->k; i++) lane[i % LANES] += cpu_get(x, at + i) * cpu_weight_get(w, row, i);
    return lanes_tree(lane);
}

ltd_status ref_matmul(const kern_ctx *ctx, const kern_matmul_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_act("matmul", "x", &a->x, false));
    CPU_TRY(cpu_check_act("matmul", "out", &a->out, false));
    int32_t rows = cpu_rows(a->rows_cap, a->rows);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t j = 0; j < a->w->n; j++)
            cpu_put(&a->out, r * a->out.stride + j,
                    ref_dot(&a->x, r * a->x.stride, a->w, (int64_t)a->matrix * a->w->n + j));
    return LTD_OK;
}
