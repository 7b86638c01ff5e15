#include "kernels/cpu/cpu.h"

void ref_embed_rows(const kern_embed_args *a, int32_t r0, int32_t r1)
{
    for (int32_t r = r0; r < r1; r++) {
        LTD_DCHECK(a->ids[r] < a->table->n, "embed: row %d has id %d of %d", (int)r, (int)a->ids[r],
                   (int)a->table->n);
        for (int32_t i = 0; i < a->table->k; i++)
            cpu_put(&a->out, r * a->out.stride + i,
                    a->ids[r] < 0 ? 0.0f : cpu_weight_get(a->table, a->ids[r], i));
    }
}

ltd_status ref_embed(const kern_ctx *ctx, const kern_embed_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_act("embed", "out", &a->out, false));
    ref_embed_rows(a, 0, cpu_rows(a->rows_cap, a->rows));
    return LTD_OK;
}
