#include "kernels/cpu/cpu.h"

ltd_status cpu_check_attn_prefill(const kern_attn_prefill_args *a)
{
    CPU_TRY(cpu_check_act("attn_prefill", "q", &a->q, false));
    CPU_TRY(cpu_check_act("attn_prefill", "k0", &a->k0, false));
    CPU_TRY(cpu_check_act("attn_prefill", "k1", &a->k1, !a->d1));
    CPU_TRY(cpu_check_act("attn_prefill", "v", &a->v, false));
    CPU_TRY(cpu_check_f32("attn_prefill", "out", &a->out));
    return cpu_check_attn_dims("attn_prefill", a->d0, a->d1, a->d_v);
}

ltd_status ref_attn_prefill(const kern_ctx *ctx, const kern_attn_prefill_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_attn_prefill(a));
    int32_t rows = cpu_rows(a->rows_cap, a->rows);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            ref_fold f;
            int32_t seen = cpu_keys_seen(a, r);
            int64_t q = r * a->q.stride + (int64_t)h * (a->d0 + a->d1);
            ref_fold_begin(&f, a->d_v);
            for (int32_t t = 0; t < seen; t += KERN_PREFILL_TILE) {
                float s[KERN_PREFILL_TILE];
                int64_t iv[KERN_PREFILL_TILE];
                int32_t n = seen - t < KERN_PREFILL_TILE ? seen - t : KERN_PREFILL_TILE;
                for (int32_t j = 0; j < n; j++) {
                    int64_t key = t + j;
                    s[j] = a->scale * ref_score(&a->q, q, &a->k0, key * a->k0.stride + h * a->k0_head, a->d0,
                                                &a->q, q + a->d0, &a->k1, key * a->k1.stride + h * a->k1_head,
                                                a->d1);
                    iv[j] = key * a->v.stride + h * a->v_head;
                }
                ref_fold_tile(&f, s, n, &a->v, iv, a->d_v);
            }
            a->lse[(int64_t)r * a->n_heads + h] =
                ref_fold_end(&f, &a->out, r * a->out.stride + (int64_t)h * a->d_v, a->d_v);
        }
    return LTD_OK;
}
