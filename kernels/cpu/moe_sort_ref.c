#include "kernels/cpu/cpu.h"

ltd_status ref_moe_sort(const kern_ctx *ctx, const kern_moe_sort_args *a)
{
    (void)ctx;
    int32_t pairs = cpu_rows(a->rows_cap, a->rows) * a->top_k, *offsets = a->offsets;
    for (int32_t e = 0; e <= a->n_experts; e++) offsets[e] = 0;
    for (int32_t i = 0; i < pairs; i++) {
        LTD_DCHECK(a->ids[i] < a->n_experts, "moe_sort: pair %d has expert %d of %d", (int)i, (int)a->ids[i],
                   (int)a->n_experts);
        if (a->ids[i] >= 0) offsets[a->ids[i] + 1]++;
    }
    for (int32_t e = 0; e < a->n_experts; e++) offsets[e + 1] += offsets[e];
    /* offsets[e] is now where expert e starts; counting up while placing makes it where e + 1 starts: shifted
     * back at the end */
    for (int32_t i = 0; i < pairs; i++) {
        a->inverse[i] = a->ids[i] < 0 ? -1 : offsets[a->ids[i]]++;
        if (a->inverse[i] >= 0) a->perm[a->inverse[i]] = i;
    }
    for (int32_t e = a->n_experts; e > 0; e--) offsets[e] = offsets[e - 1];
    offsets[0] = 0;
    return LTD_OK;
}
