/* fast.h - shared by the threaded drivers of backend "cpu". */
#ifndef LTD_KERNELS_CPU_FAST_H
#define LTD_KERNELS_CPU_FAST_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vec.h"
#include <string.h>

/* Multiply-adds below which nobody is woken: some 3 us of one core.  A function of size alone. */
enum { FAST_INLINE_MACS = 1 << 16 };

static inline const cpu_vec *fast_vec(const kern_ctx *ctx)
{
    return ((const cpu_backend *)ctx->backend->impl)->vec;
}
static inline int32_t fast_threads(const kern_ctx *ctx)
{
    return cpu_pool_threads(((const cpu_backend *)ctx->backend->impl)->pool);
}

/* Runs tasks 0 .. n, on several threads where they are worth it. */
static inline void fast_run(const kern_ctx *ctx, int64_t macs, int32_t n, cpu_task *task, const void *arg)
{
    void *scratch = ((const cpu_ctx *)ctx)->scratch;
    if (macs >= FAST_INLINE_MACS) {
        cpu_pool_run(((cpu_backend *)ctx->backend->impl)->pool, scratch, n, task, arg);
        return;
    }
    for (int32_t i = 0; i < n; i++) task(arg, i, scratch);
}

static inline int32_t fast_pad(int32_t d)
{
    return (d + LANES - 1) & ~(LANES - 1);
}
static inline int32_t fast_min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}
static inline void *fast_at(const kern_tensor *t, int64_t i)
{
    return (char *)t->data + i * (int64_t)kern_dtype_bytes(t->dtype);
}

/* n elements at `at` as f32: in place where they are f32 already, else in buffer. */
static inline const float *fast_read(const cpu_vec *v, const kern_tensor *t, int64_t at, int64_t n,
                                     float *buffer)
{
    if (t->dtype == KERN_F32) return fast_at(t, at);
    v->widen(fast_at(t, at), n, buffer);
    return buffer;
}
/* The same into dst always, followed by zeros up to padded elements. */
static inline void fast_read_padded(const cpu_vec *v, const kern_tensor *t, int64_t at, int32_t n,
                                    int32_t padded, float *dst)
{
    if (t->dtype == KERN_F32)
        memcpy(dst, fast_at(t, at), (size_t)n * 4);
    else
        v->widen(fast_at(t, at), n, dst);
    for (int32_t i = n; i < padded; i++) dst[i] = 0;
}
static inline void fast_write(const cpu_vec *v, const kern_tensor *t, int64_t at, int64_t n, const float *src)
{
    if (t->dtype == KERN_BF16)
        v->narrow(src, n, fast_at(t, at));
    else if (src != fast_at(t, at))
        memcpy(fast_at(t, at), src, (size_t)n * 4);
}
/* n elements from tensor to tensor, f32 and bf16 in any pairing (and any dtype to itself). */
static inline void fast_convert(const cpu_vec *v, const kern_tensor *src, int64_t from,
                                const kern_tensor *dst, int64_t to, int64_t n)
{
    if (src->dtype == dst->dtype)
        memcpy(fast_at(dst, to), fast_at(src, from), (size_t)n * kern_dtype_bytes(src->dtype));
    else if (dst->dtype == KERN_BF16)
        v->narrow(fast_at(src, from), n, fast_at(dst, to));
    else
        v->widen(fast_at(src, from), n, fast_at(dst, to));
}

ltd_status fast_embed(const kern_ctx *ctx, const kern_embed_args *a);
ltd_status fast_add_norm(const kern_ctx *ctx, const kern_add_norm_args *a);
ltd_status fast_matmul(const kern_ctx *ctx, const kern_matmul_args *a);
ltd_status fast_grouped_matmul(const kern_ctx *ctx, const kern_grouped_matmul_args *a);
ltd_status fast_heads_matmul(const kern_ctx *ctx, const kern_heads_matmul_args *a);
ltd_status fast_rope(const kern_ctx *ctx, const kern_rope_args *a);
ltd_status fast_latent(const kern_ctx *ctx, const kern_latent_args *a);
ltd_status fast_copy_rows(const kern_ctx *ctx, const kern_copy_rows_args *a);
ltd_status fast_mha_write(const kern_ctx *ctx, const kern_mha_write_args *a);
ltd_status fast_attn_decode(const kern_ctx *ctx, const kern_attn_decode_args *a);
ltd_status fast_attn_prefill(const kern_ctx *ctx, const kern_attn_prefill_args *a);
ltd_status fast_merge(const kern_ctx *ctx, const kern_merge_args *a);
ltd_status fast_silu_mul(const kern_ctx *ctx, const kern_silu_mul_args *a);
ltd_status fast_route(const kern_ctx *ctx, const kern_route_args *a);
ltd_status fast_moe_combine(const kern_ctx *ctx, const kern_moe_combine_args *a);
ltd_status fast_sample(const kern_ctx *ctx, const kern_sample_args *a);

#endif
