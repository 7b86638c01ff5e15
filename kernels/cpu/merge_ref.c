#include "kernels/cpu/cpu.h"

ltd_status ref_merge(const kern_ctx *ctx, const kern_merge_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_f32("merge", "acc", &a->acc));
    if (a->part.data) CPU_TRY(cpu_check_f32("merge", "part", &a->part));
    CPU_TRY(cpu_check_act("merge", "out", &a->out, true));
    int32_t n = cpu_rows(a->rows_cap, a->rows);
    for (int32_t r = 0; r < n; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            int64_t at = (int64_t)h * a->d_v, i_lse = (int64_t)r * a->n_heads + h;
            float *acc = (float *)a->acc.data + r * a->acc.stride + at;
            if (a->part.data) {
                const float *part = (const float *)a->part.data + r * a->part.stride + at;
                float wa, wb, m = lanes_pair(a->acc_lse[i_lse], a->part_lse[i_lse], &wa, &wb), sum = wa + wb;
                bool keep = a->part_lse[i_lse] == -KERN_INF,
                     take = !keep &&
                            a->acc_lse[i_lse] ==
                                -KERN_INF; /* an empty part's value counts for nothing, whatever it is */
                for (int32_t i = 0; i < a->d_v; i++)
                    acc[i] = keep ? acc[i] : take ? part[i] : (wa * acc[i] + wb * part[i]) / sum;
                a->acc_lse[i_lse] = keep ? a->acc_lse[i_lse] : take ? a->part_lse[i_lse] : m + kern_log(sum);
            }
            if (a->out.data)
                for (int32_t i = 0; i < a->d_v; i++) cpu_put(&a->out, r * a->out.stride + at + i, acc[i]);
        }
    return LTD_OK;
}
