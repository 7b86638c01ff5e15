#include "kernels/cpu/cpu.h"

ltd_status cpu_check_attn_decode(const kern_attn_decode_args *a)
{
    CPU_TRY(cpu_check_act("attn_decode", "q0", &a->q0, false));
    CPU_TRY(cpu_check_act("attn_decode", "k0", &a->k0, false));
    CPU_TRY(cpu_check_act("attn_decode", "q1", &a->q1, !a->d1));
    CPU_TRY(cpu_check_act("attn_decode", "k1", &a->k1, !a->d1));
    CPU_TRY(cpu_check_act("attn_decode", "v", &a->v, false));
    CPU_TRY(cpu_check_act("attn_decode", "out", &a->out, false));
    return cpu_check_attn_dims("attn_decode", a->d0, a->d1, a->d_v);
}

/* Positions p0 .. p1 of row r, head h: one unit, folded in tiles. */
static void unit_fold(const kern_attn_decode_args *a, int32_t r, int32_t h, int32_t p0, int32_t p1,
                      ref_fold *f)
{
    const int32_t *table = a->table + a->seq[r] * a->table_stride;
    ref_fold_begin(f, a->d_v);
    for (int32_t t = p0; t < p1; t += DECODE_TILE) {
        float s[DECODE_TILE];
        int64_t iv[DECODE_TILE];
        int32_t n = p1 - t < DECODE_TILE ? p1 - t : DECODE_TILE;
        for (int32_t j = 0; j < n; j++) {
            int64_t slot = table[t + j];
            s[j] = a->scale * ref_score(&a->q0, r * a->q0.stride + h * a->q0_head, &a->k0,
                                        slot * a->k0.stride + h * a->k0_head, a->d0, &a->q1,
                                        r * a->q1.stride + h * a->q1_head, &a->k1,
                                        slot * a->k1.stride + h * a->k1_head, a->d1);
            iv[j] = slot * a->v.stride + h * a->v_head;
        }
        ref_fold_tile(f, s, n, &a->v, iv, a->d_v);
    }
}

ltd_status ref_attn_decode(const kern_ctx *ctx, const kern_attn_decode_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_attn_decode(a));
    int32_t rows = cpu_rows(a->rows_cap, a->rows);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            ref_fold f, unit;
            int32_t len = a->len[r], u = kern_decode_unit(len, a->n_heads);
            ref_fold_begin(&f, a->d_v);
            for (int32_t p = 0; p < len; p += u) {
                unit_fold(a, r, h, p, p + u < len ? p + u : len, p ? &unit : &f);
                if (p) ref_fold_join(&f, &unit, a->d_v);
            }
            float lse = ref_fold_end(&f, &a->out, r * a->out.stride + (int64_t)h * a->d_v, a->d_v);
            if (a->lse) a->lse[(int64_t)r * a->n_heads + h] = lse;
        }
    return LTD_OK;
}
