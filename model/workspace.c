/* workspace.c - the device buffers of one rank.
 * One list says what there is and how large; it is walked twice, to count and to place, so that the start-up table and the allocation cannot differ. */
#include "model/forward.h"

typedef void place_fn(void *user, void **where, size_t bytes);

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static int32_t widest_inner(const fwd *f)
{
    const model_config *c = f->c;
    int32_t widest = 0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        int32_t n = !model_layer_is_moe(c, l) ? c->intermediate_size : c->n_shared * c->moe_intermediate_size;
        if (n > widest) widest = n;
    }
    return widest;
}

static void walk_rows(const fwd *f, fwd_buffers *b, place_fn *place, void *user)
{
    const model_config *c = f->c;
    size_t act = kern_dtype_bytes(f->act), r = (size_t)f->limits.max_rows, heads = (size_t)c->n_heads;
    size_t d_qk = (size_t)(c->d_nope + c->d_rope), a = (size_t)f->cap_absorbed;
    size_t block = (size_t)max64(f->context_block, f->mha ? f->limits.max_rows : 0);
    size_t kv_width = heads * (size_t)(f->mha ? d_qk + (size_t)c->d_v : (size_t)(c->d_nope + c->d_v));
    model_plan *layout = model_plan_create(&f->limits);
    place(user, (void **)&b->plan, (size_t)(layout->off_segments - layout->off_tokens));
    ltd_free(layout);
    place(user, (void **)&b->len, 4 * r);
    place(user, (void **)&b->index_a, 4 * r);
    place(user, (void **)&b->index_b, 4 * r);
    place(user, (void **)&b->last_token, 4 * (size_t)f->limits.n_req_rows);
    place(user, &b->x, act * r * (size_t)c->hidden_size);
    place(user, &b->h, act * r * (size_t)c->hidden_size);
    place(user, &b->delta, act * r * (size_t)c->hidden_size);
    place(user, &b->qkv, act * r * (size_t)f->qkv_stride);
    place(user, &b->q_norm, act * r * (size_t)c->q_lora_rank);
    place(user, &b->q, c->q_lora_rank ? act * r * heads * d_qk : 0);
    place(user, &b->head_out, act * r * heads * (size_t)c->d_v);
    place(user, &b->q_latent, f->mha ? 0 : act * a * heads * (size_t)c->kv_lora_rank);
    place(user, &b->o_latent, f->mha ? 0 : act * a * heads * (size_t)c->kv_lora_rank);
    place(user, &b->block_latent, act * block * (size_t)c->kv_lora_rank);
    place(user, &b->block_rope, act * block * (size_t)c->d_rope);
    place(user, &b->block_kv, act * block * kv_width);
    place(user, (void **)&b->acc, 4 * r * heads * (size_t)c->d_v);
    place(user, (void **)&b->part, 4 * r * heads * (size_t)c->d_v);
    place(user, (void **)&b->acc_lse, 4 * r * heads);
    place(user, (void **)&b->part_lse, 4 * r * heads);
}

static void walk_ffn(const fwd *f, fwd_buffers *b, place_fn *place, void *user)
{
    const model_config *c = f->c;
    size_t act = kern_dtype_bytes(f->act), r = (size_t)f->limits.max_rows, inner = (size_t)widest_inner(f);
    size_t e = (size_t)c->n_experts, k = e ? (size_t)c->top_k : 0, m = (size_t)c->moe_intermediate_size;
    place(user, &b->gate_up, act * r * 2 * inner);
    place(user, &b->inner, act * r * inner);
    place(user, &b->shared, c->n_shared ? act * r * (size_t)c->hidden_size : 0);
    place(user, (void **)&b->router, 4 * r * e);
    place(user, (void **)&b->expert_ids, 4 * r * k);
    place(user, (void **)&b->expert_weights, 4 * r * k);
    place(user, (void **)&b->perm, 4 * r * k);
    place(user, (void **)&b->inverse, 4 * r * k);
    place(user, (void **)&b->offsets, 4 * (e + 1));
    place(user, &b->expert_gate_up, act * r * k * 2 * m);
    place(user, &b->expert_inner, act * r * k * m);
    place(user, &b->expert_out, act * r * k * (size_t)c->hidden_size);
}

static void walk_sampling(const fwd *f, fwd_buffers *b, place_fn *place, void *user)
{
    size_t s = (size_t)f->cap_logits, n = (size_t)f->limits.max_samples;
    place(user, &b->sample_h, kern_dtype_bytes(f->act) * s * (size_t)f->c->hidden_size);
    place(user, (void **)&b->logits, 4 * s * (size_t)f->c->vocab_size);
    place(user, (void **)&b->params, sizeof(kern_sample_params) * n);
    place(user, (void **)&b->tokens, 4 * n);
    place(user, (void **)&b->logprobs, 4 * n);
    place(user, (void **)&b->top_ids, 4 * n * KERN_MAX_TOP_LOGPROBS);
    place(user, (void **)&b->top_logprobs, 4 * n * KERN_MAX_TOP_LOGPROBS);
}

static void walk(const fwd *f, fwd_buffers *b, place_fn *place, void *user)
{
    walk_rows(f, b, place, user);
    walk_ffn(f, b, place, user);
    walk_sampling(f, b, place, user);
}

static size_t padded(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

static void count(void *user, void **where, size_t bytes)
{
    (void)where;
    *(size_t *)user += padded(bytes);
}

static void carve(void *user, void **where, size_t bytes)
{
    char **at = user;
    *where = bytes ? *at : NULL;
    *at += padded(bytes);
}

size_t fwd_buffers_bytes(const fwd *f)
{
    fwd_buffers scratch;
    size_t sum = 0;
    walk(f, &scratch, count, &sum);
    return sum;
}

ltd_status fwd_buffers_create(fwd *f, ltd_err *err)
{
    size_t bytes = fwd_buffers_bytes(f);
    if (f->ctx->ops->alloc(f->backend, bytes, &f->arena) != LTD_OK)
        return ltd_fail(err, LTD_NO_MEMORY,
                        "workspaces: no %.1f MiB of device memory; lower --chunked-prefill-size, "
                        "--max-running-requests or --context-block",
                        (double)bytes / (1 << 20));
    char *at = f->arena;
    walk(f, &f->b, carve, &at);
    f->host_scratch = ltd_calloc(3 * (size_t)f->limits.max_rows, sizeof(int32_t));
    f->host_params = ltd_calloc((size_t)f->limits.max_samples, sizeof(kern_sample_params));
    return f->ctx->ops->fill_zero(f->ctx, f->b.last_token, 4 * (size_t)f->limits.n_req_rows);
}

void fwd_buffers_destroy(fwd *f)
{
    if (f->arena) f->ctx->ops->free(f->backend, f->arena);
    ltd_free(f->host_scratch);
    ltd_free(f->host_params);
    f->arena = NULL;
    f->host_scratch = NULL;
    f->host_params = NULL;
}
