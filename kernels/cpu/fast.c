/* fast.c - the table of backend "cpu". */
#include "kernels/cpu/cpu.h"
#include <stdio.h>

const kern_ops cpu_ops = {
    .name = "cpu",
    CPU_MEMORY_OPS,
    .embed = ref_embed,
    .add_norm = ref_add_norm,
    .matmul = ref_matmul,
    .grouped_matmul = ref_grouped_matmul,
    .heads_matmul = ref_heads_matmul,
    .rope = ref_rope,
    .latent = ref_latent,
    .copy_rows = ref_copy_rows,
    .mha_write = ref_mha_write,
    .attn_decode = ref_attn_decode,
    .attn_prefill = ref_attn_prefill,
    .merge = ref_merge,
    .silu_mul = ref_silu_mul,
    .route = ref_route,
    .moe_sort = ref_moe_sort,
    .moe_combine = ref_moe_combine,
    .sample = ref_sample,
};

ltd_status cpu_fast_init(cpu_backend *b, const kern_backend_options *o, ltd_err *err)
{
    (void)o, (void)err;
    b->base.ops = &cpu_ops;
    snprintf(b->base.description, sizeof b->base.description, "cpu: 1 thread");
    return LTD_OK;
}

void cpu_fast_deinit(cpu_backend *b) { (void)b; }
