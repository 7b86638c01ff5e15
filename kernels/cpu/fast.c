/* fast.c - backend "cpu": its instruction set, its threads, its table. */
#include "kernels/cpu/fast.h"
#include <stdio.h>

#if defined(__x86_64__)
extern const cpu_vec cpu_vec_v2, cpu_vec_v3, cpu_vec_v4;

/* Best first. */
static const cpu_vec *const isas[] = {&cpu_vec_v4, &cpu_vec_v3, &cpu_vec_v2};

static bool machine_runs(const cpu_vec *v)
{
    __builtin_cpu_init();
    if (v == &cpu_vec_v4)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") &&
               __builtin_cpu_supports("bmi2");
    if (v == &cpu_vec_v3)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
               __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") &&
           __builtin_cpu_supports("popcnt");
}
#else
extern const cpu_vec cpu_vec_base;
static const cpu_vec *const isas[] = {&cpu_vec_base};
static bool machine_runs(const cpu_vec *v) { return v == &cpu_vec_base; }
#endif

static const cpu_vec *pick(const char *isa, ltd_err *err)
{
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        if ((!isa || strcmp(isa, isas[i]->isa) == 0) && machine_runs(isas[i])) return isas[i];
    ltd_fail(err, LTD_UNSUPPORTED, "this machine or build cannot run the CPU kernels for %s",
             isa ? isa : "any instruction set that they are built for (x86-64-v2 at least)");
    return NULL;
}

ltd_status cpu_fast_init(cpu_backend *b, const kern_backend_options *o, ltd_err *err)
{
    int32_t n = o->n_threads > 0 ? o->n_threads : cpu_count();
    b->vec = pick(o->isa, err);
    if (!b->vec) return LTD_UNSUPPORTED;
    b->pool = cpu_pool_create(n, CPU_SCRATCH_BYTES);
    if (!b->pool)
        return ltd_fail(err, LTD_NO_MEMORY, "cannot start %d CPU threads: lower --cpu-threads", (int)n);
    b->base.ops = &cpu_ops;
#if defined(__x86_64__)
    snprintf(b->base.description, sizeof b->base.description, "cpu x86-64-%s, %d thread%s", b->vec->isa,
             (int)n, n == 1 ? "" : "s");
#else
    snprintf(b->base.description, sizeof b->base.description, "cpu %s, %d thread%s", b->vec->isa, (int)n,
             n == 1 ? "" : "s");
#endif
    return LTD_OK;
}

void cpu_fast_deinit(cpu_backend *b) { cpu_pool_destroy(b->pool); }

const kern_ops cpu_ops = {
    .name = "cpu",
    CPU_MEMORY_OPS,
    .embed = fast_embed,
    .add_norm = fast_add_norm,
    .matmul = fast_matmul,
    .grouped_matmul = fast_grouped_matmul,
    .heads_matmul = fast_heads_matmul,
    .rope = fast_rope,
    .latent = fast_latent,
    .copy_rows = fast_copy_rows,
    .mha_write = fast_mha_write,
    .attn_decode = fast_attn_decode,
    .attn_prefill = fast_attn_prefill,
    .merge = fast_merge,
    .silu_mul = fast_silu_mul,
    .route = fast_route,
    .moe_sort = ref_moe_sort, /* a few hundred integers */
    .moe_combine = fast_moe_combine,
    .sample = fast_sample,
};
