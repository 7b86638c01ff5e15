#include "kernels/cpu/cpu.h"

void ref_mha_write_rows(const kern_mha_write_args *a, int32_t r0, int32_t r1)
{
    int32_t d_k = a->d_nope + a->d_rope, d_kv = a->d_nope + a->d_v;
    for (int32_t r = r0; r < r1; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            int64_t kv = r * a->kv.stride + (int64_t)h * d_kv;
            int64_t k = a->slots[r] * a->k.stride + (int64_t)h * d_k,
                    v = a->slots[r] * a->v.stride + (int64_t)h * a->d_v;
            for (int32_t i = 0; i < a->d_nope; i++) cpu_put(&a->k, k + i, cpu_get(&a->kv, kv + i));
            for (int32_t i = 0; i < a->d_rope; i++)
                cpu_put(&a->k, k + a->d_nope + i, cpu_get(&a->k_pe, r * a->k_pe.stride + i));
            for (int32_t i = 0; i < a->d_v; i++) cpu_put(&a->v, v + i, cpu_get(&a->kv, kv + a->d_nope + i));
        }
}

ltd_status ref_mha_write(const kern_ctx *ctx, const kern_mha_write_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_act("mha_write", "kv", &a->kv, false));
    CPU_TRY(cpu_check_act("mha_write", "k_pe", &a->k_pe, false));
    CPU_TRY(cpu_check_act("mha_write", "k", &a->k, false));
    CPU_TRY(cpu_check_act("mha_write", "v", &a->v, false));
    ref_mha_write_rows(a, 0, cpu_rows(a->rows_cap, a->rows));
    return LTD_OK;
}
