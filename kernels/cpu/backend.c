/* backend.c - opens and closes the CPU backend; its contexts; the checks that both tables make; the table of
 * the definitions. */
#include "kernels/cpu/cpu.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------- checks */

ltd_status cpu_check_act(const char *op, const char *what, const kern_tensor *t, bool may_be_absent)
{
    if (!t->data && may_be_absent) return LTD_OK;
    if (t->dtype == KERN_F32 || t->dtype == KERN_BF16) return LTD_OK;
    log_error("kernels", "op=%s tensor=%s dtype=%d: only f32 and bf16", op, what, (int)t->dtype);
    return LTD_UNSUPPORTED;
}

ltd_status cpu_check_f32(const char *op, const char *what, const kern_tensor *t)
{
    if (t->dtype == KERN_F32) return LTD_OK;
    log_error("kernels", "op=%s tensor=%s dtype=%d: only f32", op, what, (int)t->dtype);
    return LTD_UNSUPPORTED;
}

ltd_status cpu_check_attn_dims(const char *op, int32_t d0, int32_t d1, int32_t d_v)
{
    if (d_v <= CPU_MAX_DV && d0 <= CPU_MAX_DQ - d1) return LTD_OK;
    log_error("kernels", "op=%s d0=%d d1=%d d_v=%d: at most %d for d0 + d1, %d for d_v", op, (int)d0, (int)d1,
              (int)d_v, CPU_MAX_DQ, CPU_MAX_DV);
    return LTD_UNSUPPORTED;
}

ltd_status cpu_check_sample(const kern_sample_args *a)
{
    CPU_TRY(cpu_check_f32("sample", "logits", &a->logits));
    if (a->vocab <= CPU_MAX_VOCAB) return LTD_OK;
    log_error("kernels", "op=sample vocab=%d: at most %d", (int)a->vocab, CPU_MAX_VOCAB);
    return LTD_UNSUPPORTED;
}

/* ---------------------------------------------------------------- contexts */

ltd_status cpu_ctx_create(kern_backend *b, size_t workspace_bytes, int lane, int rank, kern_ctx **out,
                          ltd_err *err)
{
    cpu_ctx *c = ltd_calloc(1, sizeof *c);
    c->base = (kern_ctx){
        .ops = b->ops, .backend = b, .workspace_bytes = workspace_bytes, .lane = lane, .rank = rank};
    if (workspace_bytes && !(c->base.workspace = cpu_mem_take(workspace_bytes))) goto no_memory;
    if (!(c->scratch = cpu_mem_take(CPU_SCRATCH_BYTES))) goto no_memory;
    *out = &c->base;
    return LTD_OK;
no_memory:
    cpu_ctx_destroy(&c->base);
    return ltd_fail(err, LTD_NO_MEMORY, "no memory for a context of %zu bytes",
                    workspace_bytes + CPU_SCRATCH_BYTES);
}

void cpu_ctx_destroy(kern_ctx *ctx)
{
    if (!ctx) return;
    cpu_ctx *c = (cpu_ctx *)ctx;
    cpu_mem_give(c->scratch);
    cpu_mem_give(ctx->workspace);
    ltd_free(c);
}

/* ---------------------------------------------------------------- opening */

/* The first number of a file after `key`; 0 when there is none. */
static uint64_t number_in_file(const char *path, const char *key)
{
    char text[4096];
    uint64_t n = 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    const char *at = strstr(text, key);
    if (!at || sscanf(at + strlen(key), "%" SCNu64, &n) != 1) return 0;
    return n;
}

static void read_memory(kern_backend *b)
{
    uint64_t total = number_in_file("/proc/meminfo", "MemTotal:") * 1024,
             available = number_in_file("/proc/meminfo", "MemAvailable:") * 1024;
    uint64_t limit = number_in_file("/sys/fs/cgroup/memory.max", ""),
             used = number_in_file("/sys/fs/cgroup/memory.current", "");
    if (limit && limit < total) {
        total = limit;
        if (limit - (used < limit ? used : limit) < available)
            available = limit - (used < limit ? used : limit);
    }
    b->memory_total = total;
    b->memory_free = available;
}

ltd_status cpu_backend_open(const char *name, const kern_backend_options *o, kern_backend **out, ltd_err *err)
{
    cpu_backend *c = ltd_calloc(1, sizeof *c);
    c->base.impl = c;
    read_memory(&c->base);
    c->base.ops = &cpu_ref_ops;
    snprintf(c->base.description, sizeof c->base.description, "cpu-ref: the definitions, 1 thread");
    if (strcmp(name, "cpu") == 0) {
        ltd_status st = cpu_fast_init(c, o, err);
        if (st != LTD_OK) {
            ltd_free(c);
            return st;
        }
    }
    *out = &c->base;
    return LTD_OK;
}

void cpu_backend_close(kern_backend *b)
{
    cpu_backend *c = b->impl;
    if (c->pool) cpu_fast_deinit(c);
    ltd_free(c);
}

const kern_ops cpu_ref_ops = {
    .name = "cpu-ref",
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
