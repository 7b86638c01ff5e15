/* kernels.h - the device interface: what a forward pass asks of a device.
 * A backend is a table of operations; `kernels/cpu` has the definitions (<op>_ref.c) and the fast CPU versions, `kernels/cuda` the CUDA kernels.
 * Knows tensors, not models.  Threads: no statics; two contexts (lanes) may run at once; one context belongs to one thread.
 *
 * Conventions for every op
 *  - Asynchronous on ctx->stream (the CPU backend's ops are done when they return).  Returns LTD_OK, LTD_UNSUPPORTED (a dtype or dim that
 *    the op does not serve, named in the log) or LTD_DEVICE.
 *  - Row counts: rows_cap sizes the launch; *rows (device memory, NULL = rows_cap) is what is real.  Rows past it are untouched.
 *  - Activations are f32 or bf16, as their tensor says.  Values are computed in f32 and rounded once, to the output's dtype,
 *    where numerics.md says; with f32 tensors nothing is rounded.  So the dtype of the tensors *is* the rounding mode.
 *  - Every output row's bits are a function of that row's inputs alone: not of the number of rows, the thread count or the instruction set.
 *  - Inner dimensions are contiguous; `stride` is in elements between rows.  Outputs do not overlap inputs unless the comment says so.
 */
#ifndef LTD_KERNELS_H
#define LTD_KERNELS_H

#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kern_dtype { KERN_F32, KERN_BF16, KERN_F16, KERN_I32 } kern_dtype;
static inline size_t kern_dtype_bytes(kern_dtype t) { return t == KERN_BF16 || t == KERN_F16 ? 2 : 4; }

typedef struct kern_tensor {
    void *data;          /* device memory */
    const float *scales; /* NULL but for quantised planes */
    kern_dtype dtype;
    int64_t stride;      /* elements from row to row */
} kern_tensor;

typedef struct kern_weight kern_weight;   /* opaque: a matrix, or a stack of matrices, as the backend prepared it */
typedef struct kern_backend kern_backend; /* a device opened */
typedef struct kern_ops kern_ops;

typedef struct kern_ctx {
    const kern_ops *ops;
    kern_backend *backend;
    void *stream;            /* backend's; NULL on the CPU */
    void *workspace;         /* device memory, this lane's own */
    size_t workspace_bytes;
    int lane, rank;
} kern_ctx;

/* ---------------------------------------------------------------- weights
 * A weight is `count` matrices [n][k] (row-major, y = x W^T), each the stack of its parts along n.  Dense: count 1.  Experts: count E.
 * f16 sources become f32 (exact); bf16 stays bf16.  The sources are read during the call only. */
typedef struct kern_weight_part {
    const void *data; /* host; any alignment; rows contiguous */
    kern_dtype dtype;
    int32_t n;        /* rows of this part */
} kern_weight_part;

typedef struct kern_weight_desc {
    const char *name;              /* for messages */
    int32_t count;                 /* matrices */
    int32_t n_parts;               /* parts of one matrix */
    const kern_weight_part *parts; /* [count * n_parts], matrix by matrix */
    int32_t k;
} kern_weight_desc;

/* ---------------------------------------------------------------- argument structs */

/* out[r] = table[ids[r]].   ids i32 [rows], each 0 <= id < n of the weight; -1 (padding): zeros.   out f32|bf16 [rows][k] */
typedef struct kern_embed_args {
    const kern_weight *table;
    const int32_t *ids;
    kern_tensor out;
    int32_t rows_cap;
    const int32_t *rows;
} kern_embed_args;

/* out[r] = norm(x[r]) and, before that, x[r] += delta[r] where delta.data is set (rounded to x's dtype; the norm reads the rounded sum).
 * norm: y = x / sqrt(mean(x^2) + eps) in f32, rounded to out's dtype, times weight, rounded again (as transformers).
 *   x f32|bf16 [rows][d] in, out;  delta as x, or data NULL;  weight f32 [d];  out f32|bf16 [rows][d], or data NULL: only the sum */
typedef struct kern_add_norm_args {
    kern_tensor x, delta, out;
    const float *weight;
    float eps;
    int32_t d;
    int32_t rows_cap;
    const int32_t *rows;
} kern_add_norm_args;

/* out[r][j] = sum_k x[r][k] W[j][k]: one chain in ascending k (numerics.md, rule 1; CPU: 16 lanes).
 *   x f32|bf16 [rows][k];  out f32|bf16 [rows][n].  matrix: which one of the weight's stack (dense: 0). */
typedef struct kern_matmul_args {
    const kern_weight *w;
    int32_t matrix;
    kern_tensor x, out;
    int32_t rows_cap;
    const int32_t *rows;
} kern_matmul_args;

/* Grouped matmul: rows sorted by group; group e owns rows offsets[e] .. offsets[e+1] of out and uses matrix e.
 * Input row of output row i is gather ? gather[i] / gather_div : i.
 *   x f32|bf16 [..][k];  out f32|bf16 [rows][n];  offsets i32 [count + 1] on the device;  gather i32 [rows] or NULL */
typedef struct kern_grouped_matmul_args {
    const kern_weight *w;
    const int32_t *offsets;
    const int32_t *gather;
    int32_t gather_div;
    kern_tensor x, out;
    int32_t rows_cap; /* of out; what is real is offsets[count] */
} kern_grouped_matmul_args;

/* Batched over heads against a slice of each head's rows of kv_b_proj (weight of n = n_heads * head_rows rows, k = d_c), rows row0 .. row0 + d of each head:
 *   KERN_HEADS_IN:  out[r][h][c] = sum_i x[r][h][i] W[h * head_rows + row0 + i][c],  i < d       (absorb q: d = d_nope, out d_c wide)
 *   KERN_HEADS_OUT: out[r][h][i] = sum_c x[r][h][c] W[h * head_rows + row0 + i][c],  c < d_c     (absorb o: d = d_v)
 *   x f32|bf16, row stride x.stride, head stride x_head;  out f32|bf16, row stride out.stride, head stride out_head. */
typedef enum kern_heads_dir { KERN_HEADS_IN, KERN_HEADS_OUT } kern_heads_dir;
typedef struct kern_heads_matmul_args {
    const kern_weight *w;
    kern_heads_dir dir;
    int32_t n_heads, head_rows, row0, d;
    kern_tensor x, out;
    int64_t x_head, out_head;
    int32_t rows_cap;
    const int32_t *rows;
} kern_heads_matmul_args;

/* Rotates pairs (2i, 2i+1) of the last d_rope elements of each head, in place: y[2i] = a cos - b sin, y[2i+1] = a sin + b cos.
 *   q f32|bf16 [rows][n_heads][d_head];  pos i32 [rows];  cos_sin f32 [max_pos][d_rope / 2][2] (mscale folded in) */
typedef struct kern_rope_args {
    kern_tensor q;
    int32_t n_heads, d_head, d_rope;
    const int32_t *pos;
    const float *cos_sin;
    int32_t rows_cap;
    const int32_t *rows;
} kern_rope_args;

/* The latent and the shared rope key of each row, from kv_a_proj's output, to row i or, with slots, to row slot[i]:
 *   kv_a f32|bf16 [rows][d_c + d_rope];  latent = norm(kv_a[:d_c]) as kern_add_norm;  rope = rotated kv_a[d_c:]
 *   latent [..][d_c], rope [..][d_rope] f32|bf16 (the cache's dtype; the values are first rounded to kv_a's dtype).  slots i32 [rows] or NULL */
typedef struct kern_latent_args {
    kern_tensor kv_a;
    const float *norm_weight;
    float eps;
    int32_t d_c, d_rope;
    const int32_t *pos;
    const float *cos_sin;
    const int32_t *slots;
    kern_tensor latent, rope;
    int32_t rows_cap;
    const int32_t *rows;
} kern_latent_args;

/* dst[dst_index ? dst_index[i] : i][0..d) = src[src_index ? src_index[i] : i][0..d), converting dtype (f32 to bf16 rounds to nearest even).
 * Gathers slots into a workspace, scatters rows to slots, picks the rows to sample. */
typedef struct kern_copy_rows_args {
    kern_tensor src, dst;
    const int32_t *src_index, *dst_index;
    int32_t d;
    int32_t rows_cap;
    const int32_t *rows;
} kern_copy_rows_args;

/* The same into the MHA pool from kv_b_proj's output: k[slot[i]][h] = (kv[i][h][0..d_nope), k_pe[i][0..d_rope)), v[slot[i]][h] = kv[i][h][d_nope .. + d_v).
 *   kv f32|bf16 [rows][n_heads][d_nope + d_v];  k_pe f32|bf16 [rows][d_rope];  k [..][n_heads][d_nope + d_rope];  v [..][n_heads][d_v] */
typedef struct kern_mha_write_args {
    kern_tensor kv, k_pe, k, v;
    int32_t n_heads, d_nope, d_rope, d_v;
    const int32_t *slots;
    int32_t rows_cap;
    const int32_t *rows;
} kern_mha_write_args;

/* Attention of single rows over token slots (absorbed rows over the MLA pool, generated rows over the MHA pool), each a fold of units of U positions
 * (numerics.md, rule 2; U = kern_decode_unit).  Row r attends positions 0 .. len[r]-1 of sequence seq[r]; position p's slot is table[seq[r] * table_stride + p].
 *   score[h][p] = (q0[r][h] . k0[slot][h] + q1[r][h] . k1[slot][h]) * scale;   out[r][h] = sum_p softmax(score)[p] v[slot][h][0..d_v)
 *   q0 [rows][n_heads][d0], head stride q0_head;  q1 likewise with d1 (0: absent);  k0, k1, v: cache planes [slots], head strides k0_head.. (0 = all heads share the row)
 *   MLA: d0 = d_v = d_c, d1 = d_rope, v = k0's plane, head strides 0.   MHA: d0 = d_nope + d_rope, d1 = 0.
 *   out [rows][n_heads][d_v], head stride d_v;  lse f32 [rows][n_heads] natural log, or NULL.
 * P is rounded to v's dtype (against the running max).  len 0: out 0, lse -inf, never NaN.  Slots past len are never read. */
typedef struct kern_attn_decode_args {
    kern_tensor q0, q1, k0, k1, v, out;
    int64_t q0_head, q1_head, k0_head, k1_head, v_head;
    int32_t n_heads, d0, d1, d_v;
    float scale;
    const int32_t *seq, *len;   /* [rows] on the device */
    int32_t len_cap;            /* host bound on len */
    const int32_t *table;
    int64_t table_stride;
    float *lse;
    int32_t rows_cap;
    const int32_t *rows;
} kern_attn_decode_args;

/* U of rule 2: positions of one unit, a fixed function of the row's own length and the heads a rank has. */
static inline int32_t kern_decode_unit(int32_t len, int32_t n_heads)
{
    if (n_heads > 32) return 2048;
    return len <= 4096 ? 64 : len <= 16384 ? 128 : len <= 65536 ? 256 : 512;
}

/* Attention of prompt rows over one context block of decompressed keys: a fold in ascending 128-key tiles from the block's start (rule 3).
 * Query i stands at position q_pos0 + i, key j at k_pos0 + j (k_pos0: a multiple of the context block); key j is seen where its position <= the query's.
 *   q f32|bf16 [rows][n_heads][d0 + d1];   k0 [n_keys] rows, head stride k0_head, d0 wide;   k1 likewise, d1 wide (0: absent; k1_head 0 = shared by all heads);   v head stride v_head, d_v wide
 *   out f32 [rows][n_heads][d_v];   lse f32 [rows][n_heads] natural log.   A row that sees no key: out 0, lse -inf.
 * P is rounded to v's dtype (against the running max). */
enum { KERN_PREFILL_TILE = 128 };
typedef struct kern_attn_prefill_args {
    kern_tensor q, k0, k1, v, out;
    int64_t k0_head, k1_head, v_head;
    int32_t n_heads, d0, d1, d_v;
    float scale;
    int32_t q_pos0, k_pos0, n_keys;
    float *lse;
    int32_t rows_cap;
    const int32_t *rows;
} kern_attn_prefill_args;

/* Merge of attention parts, a left fold in ascending order per row: m = max(lse), out = sum exp(lse_i - m) part_i / sum exp(lse_i - m), pairwise.
 *   acc f32 [rows][n_heads][d_v], acc_lse f32 [rows][n_heads]: in, out (the fold so far)
 *   part, part_lse: likewise; data NULL: nothing is merged, only `out` is written
 *   out f32|bf16 [rows][n_heads][d_v] or data NULL: the merged value rounded to its dtype (the last block's merge writes it).
 * An empty part (0, -inf) merges to exactly the other; two empty ones to (0, -inf). */
typedef struct kern_merge_args {
    kern_tensor acc, part, out;
    float *acc_lse;
    const float *part_lse;
    int32_t n_heads, d_v;
    int32_t rows_cap;
    const int32_t *rows;
} kern_merge_args;

/* out[r][j] = silu(x[r][j]) * x[r][d + j]: gate first, then up, both already rounded to x's dtype.  silu(z) = z / (1 + exp(-z)). */
typedef struct kern_silu_mul_args {
    kern_tensor x, out; /* [rows][2 d] -> [rows][d] */
    int32_t d;
    int32_t rows_cap;
    const int32_t *rows; /* real rows; or, for expert rows, offsets + count */
} kern_silu_mul_args;

/* Chooses experts.  Sheet section 4; ties to the lower id.
 *   logits f32 [rows][n_experts];  bias f32 [n_experts] (noaux_tc) or NULL;  ids i32 [rows][top_k] best first;  weights f32 [rows][top_k]
 *   GREEDY: s = softmax.  GROUP_LIMITED: s = softmax, groups ranked by their maximum, others out.  NOAUX_TC: s = sigmoid, choice by s + bias, groups by the sum of their two best; weights unbiased.
 *   normalize: w /= sum(w) + 1e-20;  then w *= scale.  Rows past *rows up to rows_cap: ids -1. */
typedef enum kern_route_method { KERN_ROUTE_GREEDY, KERN_ROUTE_GROUP_LIMITED, KERN_ROUTE_NOAUX_TC } kern_route_method;
typedef struct kern_route_args {
    kern_tensor logits;
    const float *bias;
    kern_route_method method;
    int32_t n_experts, top_k, n_group, topk_group;
    bool normalize;
    float scale;
    int32_t *ids;
    float *weights;
    int32_t rows_cap;
    const int32_t *rows;
} kern_route_args;

/* Sorts the (row, k) pairs by expert, stable: perm[i] = row * top_k + k of sorted position i, inverse[row * top_k + k] = i (-1 where the id is -1),
 * offsets[e] = first sorted position of expert e, offsets[n_experts] = pairs in all.   perm, inverse i32 [rows_cap * top_k];  offsets i32 [n_experts + 1] */
typedef struct kern_moe_sort_args {
    const int32_t *ids;
    int32_t n_experts, top_k;
    int32_t *perm, *inverse, *offsets;
    int32_t rows_cap;
    const int32_t *rows;
} kern_moe_sort_args;

/* out[r] = sum over k ascending of weights[r][k] * expert[inverse[r * top_k + k]], in f32, then + shared[r]; rounded once.
 *   expert f32|bf16 [..][d];  shared f32|bf16 [rows][d] or data NULL;  out f32|bf16 [rows][d] */
typedef struct kern_moe_combine_args {
    kern_tensor expert, shared, out;
    const int32_t *inverse;
    const float *weights;
    int32_t top_k, d;
    int32_t rows_cap;
    const int32_t *rows;
} kern_moe_combine_args;

/* One row of logits to one token, and log-probabilities.  Parameters of one row: */
enum { KERN_MAX_TOP_LOGPROBS = 20 };
typedef struct kern_sample_params {
    float temperature;        /* below 1e-4 = greedy: as hot as that, only near-ties are a matter of chance */
    float top_p, min_p;       /* top_p 0 = the top one, 1 = off; min_p 0 = off */
    int32_t top_k;            /* 0 = off */
    uint64_t seed;            /* noise is a function of (seed, position, token id) alone */
    int32_t position;         /* of the token to be drawn, in the sequence */
    int32_t target;           /* >= 0: draw nothing, score this id */
    int32_t n_logprobs;       /* -1 none, 0 the token's own, 1..20 alternatives too */
    float repetition, presence, frequency; /* 1, 0, 0 = off; need counts */
    int32_t bias_first, n_bias;     /* entries of bias_ids / bias_values */
    int32_t counts_first, n_counts; /* entries of count_ids / counts */
    int32_t mask_row;               /* row of masks, -1 = none */
} kern_sample_params;

/* Steps, in this order: mask (bit 0 = -inf), penalties (repetition on every listed id; frequency and presence by count > 0), bias -> these are the logits that log-probabilities are of;
 * greedy = highest, lowest id on ties; else divide by temperature; keep top_k; keep the smallest set whose probability reaches top_p (in descending order, ties by id; always one);
 * (top_p counts within what top_k kept); keep p >= min_p * p_max (p before top_p, after temperature); draw by the Gumbel maximum over what is kept: logit / t - log(-log(u(seed, position, id))).
 * -inf logits are never drawn while another is finite.  All -inf, any NaN or +inf: token -1, logprob -inf, top_ids -1.  logprobs are always written; entries of the top lists past n_logprobs are -1 and -inf.
 *   logits f32 [rows][vocab] (changed in place);  tokens i32 [rows];  logprobs f32 [rows];  top_ids i32, top_logprobs f32 [rows][20], best first.
 * numerics.md: log-sum-exp and every sum run in one order, independent of rows and threads. */
typedef struct kern_sample_args {
    kern_tensor logits;
    int32_t vocab;
    const kern_sample_params *params; /* [rows] on the device */
    const int32_t *bias_ids;
    const float *bias_values;
    const int32_t *count_ids; /* ids seen; counts: low 31 bits output count; all listed ids were seen in prompt or output */
    const int32_t *counts;
    const uint32_t *masks;    /* [mask rows][(vocab + 31) / 32] */
    int32_t *tokens;
    float *logprobs;
    int32_t *top_ids;
    float *top_logprobs;
    int32_t rows_cap;
    const int32_t *rows;
} kern_sample_args;

/* ---------------------------------------------------------------- the table */
struct kern_ops {
    const char *name; /* "cpu-ref", "cpu", "cuda" */

    /* Memory.  alloc: 256-byte aligned, contents undefined; LTD_NO_MEMORY with the size in the log. */
    ltd_status (*alloc)(kern_backend *b, size_t bytes, void **out);
    void (*free)(kern_backend *b, void *p);
    ltd_status (*upload)(const kern_ctx *ctx, void *dst, const void *src, size_t bytes);   /* host to device, ordered on the stream; src may change once it returns */
    ltd_status (*download)(const kern_ctx *ctx, void *dst, const void *src, size_t bytes); /* device to host; valid after sync */
    ltd_status (*fill_zero)(const kern_ctx *ctx, void *dst, size_t bytes);
    ltd_status (*sync)(const kern_ctx *ctx);
    ltd_status (*weight_create)(kern_backend *b, const kern_weight_desc *d, kern_weight **out, ltd_err *err);
    void (*weight_destroy)(kern_backend *b, kern_weight *w);
    size_t (*weight_bytes)(const kern_weight *w);
    /* Contexts: a stream and a workspace each. */
    ltd_status (*ctx_create)(kern_backend *b, size_t workspace_bytes, int lane, int rank, kern_ctx **out, ltd_err *err);
    void (*ctx_destroy)(kern_ctx *ctx);

    /* Narrow ops: always there. */
    ltd_status (*embed)(const kern_ctx *, const kern_embed_args *);
    ltd_status (*add_norm)(const kern_ctx *, const kern_add_norm_args *);
    ltd_status (*matmul)(const kern_ctx *, const kern_matmul_args *);
    ltd_status (*grouped_matmul)(const kern_ctx *, const kern_grouped_matmul_args *);
    ltd_status (*heads_matmul)(const kern_ctx *, const kern_heads_matmul_args *);
    ltd_status (*rope)(const kern_ctx *, const kern_rope_args *);
    ltd_status (*latent)(const kern_ctx *, const kern_latent_args *);
    ltd_status (*copy_rows)(const kern_ctx *, const kern_copy_rows_args *);
    ltd_status (*mha_write)(const kern_ctx *, const kern_mha_write_args *);
    ltd_status (*attn_decode)(const kern_ctx *, const kern_attn_decode_args *);
    ltd_status (*attn_prefill)(const kern_ctx *, const kern_attn_prefill_args *);
    ltd_status (*merge)(const kern_ctx *, const kern_merge_args *);
    ltd_status (*silu_mul)(const kern_ctx *, const kern_silu_mul_args *);
    ltd_status (*route)(const kern_ctx *, const kern_route_args *);
    ltd_status (*moe_sort)(const kern_ctx *, const kern_moe_sort_args *);
    ltd_status (*moe_combine)(const kern_ctx *, const kern_moe_combine_args *);
    ltd_status (*sample)(const kern_ctx *, const kern_sample_args *);
};

/* ---------------------------------------------------------------- backends (registry.c) */
typedef struct kern_backend_options {
    int32_t n_threads;      /* CPU: 0 = all that the process may use */
    const char *isa;        /* CPU: NULL = the best that the machine runs; "v2", "v3", "v4", "base" to force one (tests) */
    int device;             /* CUDA: index */
} kern_backend_options;

struct kern_backend {
    const kern_ops *ops;
    char description[128];   /* "cpu x86-64-v4, 2 threads" */
    size_t memory_total, memory_free; /* bytes, at opening */
    void *impl;
};

/* name: "cpu" (fast), "cpu-ref" (the definitions, single-threaded, for tests), "cuda".  LTD_UNSUPPORTED, with the reason, where this build or machine has none. */
ltd_status kern_backend_open(const char *name, const kern_backend_options *o, kern_backend **out, ltd_err *err);
void kern_backend_close(kern_backend *b);
/* Whether kern_backend_open could work here; reason (may be NULL) says why not. */
bool kern_backend_can(const char *name, ltd_err *reason);

/* bf16 helpers, round to nearest even; NaN stays NaN.  The one definition for host code. */
static inline float kern_bf16_to_f32(uint16_t b)
{
    union { uint32_t u; float f; } x = {(uint32_t)b << 16};
    return x.f;
}
static inline uint16_t kern_f32_to_bf16(float f)
{
    union { float f; uint32_t u; } x = {f};
    if ((x.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((x.u >> 16) | 0x40u);
    return (uint16_t)((x.u + 0x7fffu + ((x.u >> 16) & 1u)) >> 16);
}

#ifdef __cplusplus
}
#endif
#endif
