/* forward.h - one rank's forward pass: its buffers and the pieces that forward.c strings together.
 * Private to model/.  Threads: everything here runs on the rank's own thread once it has started. */
#ifndef LTD_MODEL_FORWARD_H
#define LTD_MODEL_FORWARD_H

#include "model/model_private.h"

/* Device buffers of one rank, in one allocation (workspace.c).  R = max_rows, A = absorbed rows at a time, B = context block, act = f32 or bf16. */
typedef struct fwd_buffers {
    /* the plan's row arrays, laid out as in the plan */
    char *plan;
    int32_t *len;         /* i32 [R]  absorbed rows: position + 1 */
    int32_t *index_a, *index_b; /* i32 [R]  index lists for gathers */
    int32_t *last_token;  /* i32 [n_req_rows]  the token last sampled of each request row */
    /* the residual stream and its neighbours, act [R][hidden] */
    void *x, *h, *delta;
    void *qkv;            /* act [R][q_a or q width + d_c + d_rope] */
    void *q_norm;         /* act [R][q_lora] */
    void *q;              /* act [R][heads][d_nope + d_rope], where q_lora */
    void *head_out;       /* act [R][heads][d_v] */
    /* absorbed */
    void *q_latent, *o_latent; /* act [A][heads][d_c] */
    /* decompressed: one context block of keys and values, and the fold over blocks */
    void *block_latent, *block_rope; /* act [max(B, R)][d_c], [d_rope] */
    void *block_kv;       /* act [max(B, R)][heads][d_nope + d_v];  MHA: K rows, then V rows */
    float *acc, *part;    /* f32 [R][heads][d_v] */
    float *acc_lse, *part_lse; /* f32 [R][heads] */
    /* ffn */
    void *gate_up, *inner;     /* act [R][2 inter], [R][inter] */
    void *shared;              /* act [R][hidden] */
    float *router;             /* f32 [R][experts] */
    int32_t *expert_ids;       /* i32 [R][top_k] */
    float *expert_weights;     /* f32 [R][top_k] */
    int32_t *perm, *inverse, *offsets;
    void *expert_gate_up, *expert_inner, *expert_out; /* act [R * top_k][2 moe_inter], [moe_inter], [hidden] */
    /* sampling: S = rows of logits at a time, N = max_samples */
    void *sample_h;            /* act [S][hidden] */
    float *logits;             /* f32 [S][vocab] */
    kern_sample_params *params;
    int32_t *tokens, *top_ids; /* [N], [N][20] */
    float *logprobs, *top_logprobs;
} fwd_buffers;

/* One rank. */
typedef struct fwd {
    const model_config *c;
    const model_weights *w;
    kern_ctx *ctx;
    kern_backend *backend;
    pool_tokens *pool;
    pool_req_mirror *mirror;
    const float *cos_sin;      /* device f32 [context][d_rope / 2][2] */
    kern_dtype act;            /* dtype of activations */
    bool mha;
    int32_t context, context_block;
    model_limits limits;
    int32_t cap_absorbed;      /* A */
    int32_t cap_logits;        /* S */
    int64_t qkv_stride;        /* elements of a qkv row */
    void *arena;
    fwd_buffers b;
    int32_t *host_scratch;     /* host i32 [3][R]: two index lists and the lengths, alive during the step */
    kern_sample_params *host_params;
    float *capture;            /* tests: host f32 [max_samples][vocab], receives each step's logits before sampling; NULL = no */
    /* of the step that runs */
    const model_plan *plan;
    const int32_t *tokens, *pos, *slots, *req; /* device, [n_rows] */
} fwd;

typedef struct fwd_out { int32_t *tokens, *top_ids; float *logprobs, *top_logprobs; } fwd_out; /* host arrays of a result */

/* workspace.c: how many bytes the buffers take, and their one allocation. */
size_t fwd_buffers_bytes(const fwd *f);
ltd_status fwd_buffers_create(fwd *f, ltd_err *err);
void fwd_buffers_destroy(fwd *f);

/* forward.c: runs the plan: edits, forward pass, sampling; results in out when it returns. */
ltd_status fwd_run(fwd *f, const model_plan *p, const fwd_out *out);

/* mla.c: attention of layer l over the normed rows b.h; result in b.delta. */
ltd_status fwd_attention(fwd *f, int32_t l);
/* moe.c: dense or expert FFN of layer l over b.h; result in b.delta. */
ltd_status fwd_ffn(fwd *f, int32_t l);
/* sampling.c: logits and tokens of the plan's samples from the final hidden rows b.h. */
ltd_status fwd_sample(fwd *f, const fwd_out *out);

/* A tensor of the rank's activation dtype; at: elements into it. */
static inline kern_tensor fwd_act(const fwd *f, void *data, int64_t stride, int64_t at)
{
    return (kern_tensor){.data = (char *)data + at * (int64_t)kern_dtype_bytes(f->act), .dtype = f->act, .stride = stride};
}
static inline kern_tensor fwd_f32(float *data, int64_t stride)
{
    return (kern_tensor){.data = data, .dtype = KERN_F32, .stride = stride};
}
static inline kern_tensor fwd_i32(int32_t *data)
{
    return (kern_tensor){.data = data, .dtype = KERN_I32, .stride = 1};
}

/* One dense product of the first n_rows rows. */
static inline ltd_status fwd_matmul(const fwd *f, const kern_weight *w, kern_tensor x, kern_tensor out, int32_t n_rows)
{
    return f->ctx->ops->matmul(f->ctx, &(kern_matmul_args){.w = w, .x = x, .out = out, .rows_cap = n_rows});
}

#define FWD_TRY(call)                                                                                        \
    do {                                                                                                     \
        ltd_status fwd_st_ = (call);                                                                         \
        if (fwd_st_ != LTD_OK) return fwd_st_;                                                               \
    } while (0)

#endif
