/* cpu.h - inside the CPU backend: its types, the definitions (ref_*), and helpers shared by definitions and
 * fast versions. "cpu-ref" runs the definitions on the caller's thread; "cpu" runs vectorised code on a pool
 * of threads and gives the same bits. */
#ifndef LTD_KERNELS_CPU_CPU_H
#define LTD_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"
#include "kernels/kernels_private.h"
#include "kernels/cpu/lanes.h"
#include <math.h>

enum { CPU_MAX_EXPERTS = 1024, CPU_MAX_DV = 4096, CPU_MAX_DQ = 8192, CPU_MAX_VOCAB = 1 << 19 };

/* Rows start 64-byte aligned and are padded with zeros to whole vectors of lanes. */
struct kern_weight {
    int32_t count, n, k;
    int64_t stride;   /* elements from row to row */
    kern_dtype dtype; /* F32 or BF16 */
    void *data;
    size_t bytes;
};

struct cpu_pool;
struct cpu_vec;

typedef struct cpu_backend {
    kern_backend base;     /* base.impl points back here */
    struct cpu_pool *pool; /* NULL: definitions only */
    const struct cpu_vec *vec;
} cpu_backend;

extern const kern_ops cpu_ref_ops, cpu_ops;
/* fast.c: what "cpu" has over "cpu-ref". */
ltd_status cpu_fast_init(cpu_backend *b, const kern_backend_options *o, ltd_err *err);
void cpu_fast_deinit(cpu_backend *b);

/* Every thread that may run tasks has scratch of this size, a context's own for the calling thread.  Ops cut
 * their work to fit; only pages that are used cost memory.  The largest user is sample: 20 bytes a vocabulary
 * entry. */
#define CPU_SCRATCH_BYTES ((size_t)CPU_MAX_VOCAB * 24)

typedef struct cpu_ctx {
    kern_ctx base;
    void *scratch;
} cpu_ctx;

/* Device memory, here host memory: 256-byte aligned, NULL when there is none.  Counted in nobody's budget. */
void *cpu_mem_take(size_t bytes);
void cpu_mem_give(void *p);

/* memory.c: the ops that both tables share. */
ltd_status cpu_alloc(kern_backend *b, size_t bytes, void **out);
void cpu_free(kern_backend *b, void *p);
ltd_status cpu_upload(const kern_ctx *ctx, void *dst, const void *src, size_t bytes);
ltd_status cpu_fill_zero(const kern_ctx *ctx, void *dst, size_t bytes);
ltd_status cpu_sync(const kern_ctx *ctx);
ltd_status cpu_weight_create(kern_backend *b, const kern_weight_desc *d, kern_weight **out, ltd_err *err);
void cpu_weight_destroy(kern_backend *b, kern_weight *w);
size_t cpu_weight_bytes(const kern_weight *w);
ltd_status cpu_ctx_create(kern_backend *b, size_t workspace_bytes, int lane, int rank, kern_ctx **out,
                          ltd_err *err);
void cpu_ctx_destroy(kern_ctx *ctx);

#define CPU_MEMORY_OPS                                                                                       \
    .alloc = cpu_alloc, .free = cpu_free, .upload = cpu_upload, .download = cpu_upload,                      \
    .fill_zero = cpu_fill_zero, .sync = cpu_sync, .weight_create = cpu_weight_create,                        \
    .weight_destroy = cpu_weight_destroy, .weight_bytes = cpu_weight_bytes, .ctx_create = cpu_ctx_create,    \
    .ctx_destroy = cpu_ctx_destroy

/* LTD_OK when the tensor is an activation (f32 or bf16), or absent where that is allowed; else logs op and
 * tensor. */
ltd_status cpu_check_act(const char *op, const char *what, const kern_tensor *t, bool may_be_absent);
ltd_status cpu_check_f32(const char *op, const char *what, const kern_tensor *t);
#define CPU_TRY(expr)                                                                                        \
    do {                                                                                                     \
        ltd_status st_ = (expr);                                                                             \
        if (st_ != LTD_OK) return st_;                                                                       \
    } while (0)

static inline int32_t cpu_rows(int32_t cap, const int32_t *rows)
{
    return !rows || *rows > cap ? cap : *rows;
}

/* Element i of a tensor; i counts from data, over rows.  Stores round to nearest even where the tensor is
 * bf16. */
static inline float cpu_get(const kern_tensor *t, int64_t i)
{
    return t->dtype == KERN_BF16 ? kern_bf16_to_f32(((const uint16_t *)t->data)[i])
                                 : ((const float *)t->data)[i];
}
static inline void cpu_put(const kern_tensor *t, int64_t i, float v)
{
    if (t->dtype == KERN_BF16)
        ((uint16_t *)t->data)[i] = kern_f32_to_bf16(v);
    else
        ((float *)t->data)[i] = v;
}
static inline float cpu_round(kern_dtype t, float v)
{
    return t == KERN_BF16 ? kern_bf16_to_f32(kern_f32_to_bf16(v)) : v;
}

/* Row `row` of a weight, counted over all its matrices. */
static inline const void *cpu_weight_row(const kern_weight *w, int64_t row)
{
    return (const char *)w->data + (size_t)(row * w->stride) * kern_dtype_bytes(w->dtype);
}
static inline float cpu_weight_get(const kern_weight *w, int64_t row, int32_t i)
{
    const void *p = cpu_weight_row(w, row);
    return w->dtype == KERN_BF16 ? kern_bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static inline bool cpu_bit(const uint32_t *mask, int32_t i)
{
    return (mask[i >> 5] >> (i & 31)) & 1;
}

/* ---------------------------------------------------------------- limits and checks, the same for both
 * tables */
#define CPU_GREEDY_BELOW 1e-4f /* temperatures below divide a gap of 0.002 beyond all noise: taken as 0 */

ltd_status cpu_check_attn_dims(const char *op, int32_t d0, int32_t d1, int32_t d_v);
ltd_status cpu_check_attn_decode(const kern_attn_decode_args *a);
ltd_status cpu_check_attn_prefill(const kern_attn_prefill_args *a);
ltd_status cpu_check_route(const kern_route_args *a);
ltd_status cpu_check_sample(const kern_sample_args *a);

/* Keys of the block that query r sees: the first so many. */
static inline int32_t cpu_keys_seen(const kern_attn_prefill_args *a, int32_t r)
{
    int32_t n = a->q_pos0 + r - a->k_pos0 + 1;
    return n < 0 ? 0 : n > a->n_keys ? a->n_keys : n;
}

/* Pieces of sample that both versions use. */
void cpu_sample_adjust(const kern_sample_args *a, const kern_sample_params *p,
                       float *x); /* mask, penalties, bias */
void cpu_sample_fail(const kern_sample_args *a, int32_t r);
bool cpu_sample_is_greedy(const kern_sample_params *p);
static inline void cpu_sample_top(const kern_sample_args *a, int32_t r, int32_t k, int32_t id, float logprob)
{
    a->top_ids[(int64_t)r * KERN_MAX_TOP_LOGPROBS + k] = id;
    a->top_logprobs[(int64_t)r * KERN_MAX_TOP_LOGPROBS + k] = logprob;
}

/* ---------------------------------------------------------------- the definitions */

/* Attention's running state (lanes.h): begin, tiles of n scores with the places of their v rows, joins in
 * ascending order, end. end writes out at `at` and returns the log-sum-exp. */
typedef struct ref_fold {
    float m, l, o[CPU_MAX_DV];
} ref_fold;
void ref_fold_begin(ref_fold *f, int32_t d_v);
void ref_fold_tile(ref_fold *f, const float *s, int32_t n, const kern_tensor *v, const int64_t *iv,
                   int32_t d_v);
void ref_fold_join(ref_fold *f, const ref_fold *unit, int32_t d_v);
float ref_fold_end(const ref_fold *f, const kern_tensor *out, int64_t at, int32_t d_v);
/* q0 . k0 + q1 . k1 through one set of lanes. */
float ref_score(const kern_tensor *q0, int64_t iq0, const kern_tensor *k0, int64_t ik0, int32_t d0,
                const kern_tensor *q1, int64_t iq1, const kern_tensor *k1, int64_t ik1, int32_t d1);

/* Rows r0 .. r1 of an op: what ref_<op> is made of, where the fast backend uses it as it stands. */
void ref_embed_rows(const kern_embed_args *a, int32_t r0, int32_t r1);
void ref_latent_rows(const kern_latent_args *a, int32_t r0, int32_t r1);
void ref_rope_rows(const kern_rope_args *a, int32_t r0, int32_t r1);
void ref_mha_write_rows(const kern_mha_write_args *a, int32_t r0, int32_t r1);
void ref_route_rows(const kern_route_args *a, int32_t r0, int32_t r1);
void ref_copy_rows_rows(const kern_copy_rows_args *a, int32_t r0, int32_t r1);
/* 1 / sqrt(mean of squares + eps), from the squares' lanes. */
float ref_norm_factor(const float *lane, int32_t d, float eps);
/* x[at ..] . row of w, in lanes. */
float ref_dot(const kern_tensor *x, int64_t at, const kern_weight *w, int64_t row);
/* Rotates d_rope elements from `from` of in to `to` of out (may be the same place); rounds to in's dtype,
 * then to out's. */
void ref_rotate(const kern_tensor *in, int64_t from, const kern_tensor *out, int64_t to, int32_t d_rope,
                const float *cos_sin);

ltd_status ref_embed(const kern_ctx *ctx, const kern_embed_args *a);
ltd_status ref_add_norm(const kern_ctx *ctx, const kern_add_norm_args *a);
ltd_status ref_matmul(const kern_ctx *ctx, const kern_matmul_args *a);
ltd_status ref_grouped_matmul(const kern_ctx *ctx, const kern_grouped_matmul_args *a);
ltd_status ref_heads_matmul(const kern_ctx *ctx, const kern_heads_matmul_args *a);
ltd_status ref_rope(const kern_ctx *ctx, const kern_rope_args *a);
ltd_status ref_latent(const kern_ctx *ctx, const kern_latent_args *a);
ltd_status ref_copy_rows(const kern_ctx *ctx, const kern_copy_rows_args *a);
ltd_status ref_mha_write(const kern_ctx *ctx, const kern_mha_write_args *a);
ltd_status ref_attn_decode(const kern_ctx *ctx, const kern_attn_decode_args *a);
ltd_status ref_attn_prefill(const kern_ctx *ctx, const kern_attn_prefill_args *a);
ltd_status ref_merge(const kern_ctx *ctx, const kern_merge_args *a);
ltd_status ref_silu_mul(const kern_ctx *ctx, const kern_silu_mul_args *a);
ltd_status ref_route(const kern_ctx *ctx, const kern_route_args *a);
ltd_status ref_moe_sort(const kern_ctx *ctx, const kern_moe_sort_args *a);
ltd_status ref_moe_combine(const kern_ctx *ctx, const kern_moe_combine_args *a);
ltd_status ref_sample(const kern_ctx *ctx, const kern_sample_args *a);

#endif
