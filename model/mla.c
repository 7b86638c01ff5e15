/* mla.c - multi-head latent attention of one layer: projections, the cache write, and the two ways to attend.
 *   absorbed      generated rows: q_nope goes into latent space (W_UK), attention runs over the latents as stored, W_UV brings the result back
 *   decompressed  prompt rows: the stored latents of one context block at a time become K and V; blocks are merged by their log-sum-exp
 * With the MHA pool K and V are stored decompressed; both kinds of rows then read them (--disable-mla).
 * The invariant: keys and values come from the slots' stored bytes, also those of the step's own rows. */
#include "model/forward.h"

/* Where a layer's queries are after the projections: [row][head][d_nope + d_rope]. */
static kern_tensor queries(const fwd *f, int64_t row, int64_t within)
{
    const model_config *c = f->c;
    int64_t d_q = (int64_t)c->n_heads * (c->d_nope + c->d_rope);
    if (c->q_lora_rank) return fwd_act(f, f->b.q, d_q, row * d_q + within);
    return fwd_act(f, f->b.qkv, f->qkv_stride, row * f->qkv_stride + within);
}

static ltd_status project(fwd *f, const layer_weights *w)
{
    const model_config *c = f->c;
    const kern_ops *ops = f->ctx->ops;
    int32_t n = f->plan->n_rows, d_qk = c->d_nope + c->d_rope;
    FWD_TRY(fwd_matmul(f, w->qkv_a, fwd_act(f, f->b.h, c->hidden_size, 0),
                       fwd_act(f, f->b.qkv, f->qkv_stride, 0), n));
    if (c->q_lora_rank) {
        /* q_a_layernorm's eps is 1e-6 whatever the configuration says, as kv_a_layernorm's (sheet section 3) */
        FWD_TRY(ops->add_norm(f->ctx, &(kern_add_norm_args){.x = fwd_act(f, f->b.qkv, f->qkv_stride, 0),
                                                            .out = fwd_act(f, f->b.q_norm, c->q_lora_rank, 0),
                                                            .weight = w->q_a_norm,
                                                            .eps = 1e-6f,
                                                            .d = c->q_lora_rank,
                                                            .rows_cap = n}));
        FWD_TRY(fwd_matmul(f, w->q_b, fwd_act(f, f->b.q_norm, c->q_lora_rank, 0), queries(f, 0, 0), n));
    }
    return ops->rope(f->ctx, &(kern_rope_args){.q = queries(f, 0, 0),
                                               .n_heads = c->n_heads,
                                               .d_head = d_qk,
                                               .d_rope = c->d_rope,
                                               .pos = f->pos,
                                               .cos_sin = f->cos_sin,
                                               .rows_cap = n});
}

/* Writes every row's KV to its slot. */
static ltd_status write_cache(fwd *f, const layer_weights *w, int32_t l)
{
    const model_config *c = f->c;
    int32_t n = f->plan->n_rows, d_q_a = (int32_t)f->qkv_stride - c->kv_lora_rank - c->d_rope;
    kern_latent_args a = {.kv_a = fwd_act(f, f->b.qkv, f->qkv_stride, d_q_a),
                          .norm_weight = w->kv_a_norm,
                          .eps = 1e-6f,
                          .d_c = c->kv_lora_rank,
                          .d_rope = c->d_rope,
                          .pos = f->pos,
                          .cos_sin = f->cos_sin,
                          .rows_cap = n};
    if (!f->mha) {
        a.slots = f->slots;
        a.latent = pool_tokens_plane(f->pool, POOL_LATENT, l);
        a.rope = pool_tokens_plane(f->pool, POOL_ROPE, l);
        return f->ctx->ops->latent(f->ctx, &a);
    }
    int64_t d_kv = (int64_t)c->n_heads * (c->d_nope + c->d_v);
    a.latent = fwd_act(f, f->b.block_latent, c->kv_lora_rank, 0);
    a.rope = fwd_act(f, f->b.block_rope, c->d_rope, 0);
    FWD_TRY(f->ctx->ops->latent(f->ctx, &a));
    FWD_TRY(fwd_matmul(f, w->kv_b, a.latent, fwd_act(f, f->b.block_kv, d_kv, 0), n));
    return f->ctx->ops->mha_write(f->ctx, &(kern_mha_write_args){.kv = fwd_act(f, f->b.block_kv, d_kv, 0),
                                                                 .k_pe = a.rope,
                                                                 .k = pool_tokens_plane(f->pool, POOL_K, l),
                                                                 .v = pool_tokens_plane(f->pool, POOL_V, l),
                                                                 .n_heads = c->n_heads,
                                                                 .d_nope = c->d_nope,
                                                                 .d_rope = c->d_rope,
                                                                 .d_v = c->d_v,
                                                                 .slots = f->slots,
                                                                 .rows_cap = n});
}

static int32_t longest(const fwd *f, int32_t row0, int32_t n)
{
    int32_t most = 0;
    for (int32_t i = row0; i < row0 + n; i++)
        if (plan_pos(f->plan)[i] + 1 > most) most = plan_pos(f->plan)[i] + 1;
    return most;
}

/* Generated rows row0 .. row0 + n, over the MLA pool. */
static ltd_status attend_absorbed(fwd *f, const layer_weights *w, int32_t l, int32_t row0, int32_t n)
{
    const model_config *c = f->c;
    const kern_ops *ops = f->ctx->ops;
    int64_t d_lat = (int64_t)c->n_heads * c->kv_lora_rank, d_out = (int64_t)c->n_heads * c->d_v;
    int32_t d_qk = c->d_nope + c->d_rope;
    kern_tensor q_latent = fwd_act(f, f->b.q_latent, d_lat, 0),
                o_latent = fwd_act(f, f->b.o_latent, d_lat, 0);
    kern_heads_matmul_args up = {.w = w->kv_b,
                                 .dir = KERN_HEADS_IN,
                                 .n_heads = c->n_heads,
                                 .head_rows = c->d_nope + c->d_v,
                                 .row0 = 0,
                                 .d = c->d_nope,
                                 .x = queries(f, row0, 0),
                                 .x_head = d_qk,
                                 .out = q_latent,
                                 .out_head = c->kv_lora_rank,
                                 .rows_cap = n};
    FWD_TRY(ops->heads_matmul(f->ctx, &up));
    kern_attn_decode_args a = {.q0 = q_latent,
                               .q0_head = c->kv_lora_rank,
                               .d0 = c->kv_lora_rank,
                               .q1 = queries(f, row0, c->d_nope),
                               .q1_head = d_qk,
                               .d1 = c->d_rope,
                               .k0 = pool_tokens_plane(f->pool, POOL_LATENT, l),
                               .k1 = pool_tokens_plane(f->pool, POOL_ROPE, l),
                               .v = pool_tokens_plane(f->pool, POOL_LATENT, l),
                               .d_v = c->kv_lora_rank,
                               .out = o_latent,
                               .n_heads = c->n_heads,
                               .scale = (float)c->softmax_scale,
                               .seq = f->req + row0,
                               .len = f->b.len + row0,
                               .len_cap = longest(f, row0, n),
                               .rows_cap = n};
    a.table = pool_req_mirror_table(f->mirror, &a.table_stride);
    FWD_TRY(ops->attn_decode(f->ctx, &a));
    return ops->heads_matmul(f->ctx,
                             &(kern_heads_matmul_args){.w = w->kv_b,
                                                       .dir = KERN_HEADS_OUT,
                                                       .n_heads = c->n_heads,
                                                       .head_rows = c->d_nope + c->d_v,
                                                       .row0 = c->d_nope,
                                                       .d = c->d_v,
                                                       .x = o_latent,
                                                       .x_head = c->kv_lora_rank,
                                                       .out = fwd_act(f, f->b.head_out, d_out, row0 * d_out),
                                                       .out_head = c->d_v,
                                                       .rows_cap = n});
}

/* Generated rows over the MHA pool. */
static ltd_status attend_mha(fwd *f, int32_t l, int32_t row0, int32_t n)
{
    const model_config *c = f->c;
    int64_t d_out = (int64_t)c->n_heads * c->d_v;
    int32_t d_qk = c->d_nope + c->d_rope;
    kern_attn_decode_args a = {.q0 = queries(f, row0, 0),
                               .q0_head = d_qk,
                               .d0 = d_qk,
                               .k0 = pool_tokens_plane(f->pool, POOL_K, l),
                               .k0_head = d_qk,
                               .v = pool_tokens_plane(f->pool, POOL_V, l),
                               .v_head = c->d_v,
                               .d_v = c->d_v,
                               .out = fwd_act(f, f->b.head_out, d_out, row0 * d_out),
                               .n_heads = c->n_heads,
                               .scale = (float)c->softmax_scale,
                               .seq = f->req + row0,
                               .len = f->b.len + row0,
                               .len_cap = longest(f, row0, n),
                               .rows_cap = n};
    a.table = pool_req_mirror_table(f->mirror, &a.table_stride);
    return f->ctx->ops->attn_decode(f->ctx, &a);
}

/* Keys and values of positions k0 .. k0 + n of a request row, from its slots, as act tensors in the block workspace; fills the key half of a. */
static ltd_status load_block(fwd *f, const layer_weights *w, int32_t l, int32_t req_row, int32_t k0,
                             int32_t n, kern_attn_prefill_args *a)
{
    const model_config *c = f->c;
    const kern_ops *ops = f->ctx->ops;
    int64_t stride, heads = c->n_heads, d_qk = c->d_nope + c->d_rope;
    const int32_t *slots = pool_req_mirror_table(f->mirror, &stride) + req_row * stride + k0;
    kern_copy_rows_args g = {.src_index = slots, .rows_cap = n};
    if (f->mha) {
        kern_tensor k = fwd_act(f, f->b.block_kv, heads * d_qk, 0),
                    v = fwd_act(f, f->b.block_kv, heads * c->d_v, (int64_t)f->context_block * heads * d_qk);
        g.src = pool_tokens_plane(f->pool, POOL_K, l), g.dst = k, g.d = (int32_t)(heads * d_qk);
        FWD_TRY(ops->copy_rows(f->ctx, &g));
        g.src = pool_tokens_plane(f->pool, POOL_V, l), g.dst = v, g.d = (int32_t)heads * c->d_v;
        FWD_TRY(ops->copy_rows(f->ctx, &g));
        a->k0 = k, a->k0_head = d_qk, a->d0 = (int32_t)d_qk;
        a->v = v, a->v_head = c->d_v;
        return LTD_OK;
    }
    int64_t d_kv = heads * (c->d_nope + c->d_v);
    kern_tensor latent = fwd_act(f, f->b.block_latent, c->kv_lora_rank, 0),
                rope = fwd_act(f, f->b.block_rope, c->d_rope, 0);
    g.src = pool_tokens_plane(f->pool, POOL_LATENT, l), g.dst = latent, g.d = c->kv_lora_rank;
    FWD_TRY(ops->copy_rows(f->ctx, &g));
    g.src = pool_tokens_plane(f->pool, POOL_ROPE, l), g.dst = rope, g.d = c->d_rope;
    FWD_TRY(ops->copy_rows(f->ctx, &g));
    FWD_TRY(fwd_matmul(f, w->kv_b, latent, fwd_act(f, f->b.block_kv, d_kv, 0), n));
    a->k0 = fwd_act(f, f->b.block_kv, d_kv, 0), a->k0_head = c->d_nope + c->d_v, a->d0 = c->d_nope;
    a->k1 = rope, a->k1_head = 0, a->d1 = c->d_rope;
    a->v = fwd_act(f, f->b.block_kv, d_kv, c->d_nope), a->v_head = c->d_nope + c->d_v;
    return LTD_OK;
}

/* One prompt segment: a fold over its context blocks in ascending order.  Rows join at their first block and leave after their own,
 *     block 0        block 1        block 2
 *     |--------------|--------------|----
 *              [ rows of the segment ]          rows before a block's start do not see it
 * so a row's sum depends on its position alone, not on where the chunk begins. */
static ltd_status attend_segment(fwd *f, const layer_weights *w, int32_t l, const plan_segment *s)
{
    const model_config *c = f->c;
    const kern_ops *ops = f->ctx->ops;
    int64_t d_out = (int64_t)c->n_heads * c->d_v;
    int32_t end = s->pos0 + s->n_rows;
    for (int32_t k0 = 0; k0 < end; k0 += f->context_block) {
        int32_t n_keys = end - k0 < f->context_block ? end - k0 : f->context_block;
        int32_t skip = k0 > s->pos0 ? k0 - s->pos0 : 0; /* rows that lie before the block */
        int64_t row = s->first_row + skip;
        bool first = k0 == 0;
        kern_attn_prefill_args a = {.q = queries(f, row, 0),
                                    .out = fwd_f32(first ? f->b.acc : f->b.part, d_out),
                                    .lse = first ? f->b.acc_lse : f->b.part_lse,
                                    .n_heads = c->n_heads,
                                    .d_v = c->d_v,
                                    .scale = (float)c->softmax_scale,
                                    .q_pos0 = s->pos0 + skip,
                                    .k_pos0 = k0,
                                    .n_keys = n_keys,
                                    .rows_cap = s->n_rows - skip};
        FWD_TRY(load_block(f, w, l, s->req_row, k0, n_keys, &a));
        FWD_TRY(ops->attn_prefill(f->ctx, &a));
        if (first) continue;
        FWD_TRY(ops->merge(f->ctx, &(kern_merge_args){.acc = fwd_f32(f->b.acc + skip * d_out, d_out),
                                                      .acc_lse = f->b.acc_lse + (int64_t)skip * c->n_heads,
                                                      .part = fwd_f32(f->b.part, d_out),
                                                      .part_lse = f->b.part_lse,
                                                      .n_heads = c->n_heads,
                                                      .d_v = c->d_v,
                                                      .rows_cap = s->n_rows - skip}));
    }
    return ops->merge(f->ctx,
                      &(kern_merge_args){.acc = fwd_f32(f->b.acc, d_out),
                                         .acc_lse = f->b.acc_lse,
                                         .out = fwd_act(f, f->b.head_out, d_out, s->first_row * d_out),
                                         .n_heads = c->n_heads,
                                         .d_v = c->d_v,
                                         .rows_cap = s->n_rows});
}

ltd_status fwd_attention(fwd *f, int32_t l)
{
    const model_config *c = f->c;
    const layer_weights *w = &f->w->layers[l];
    FWD_TRY(project(f, w));
    FWD_TRY(write_cache(f, w, l));
    for (int32_t row = 0; row < f->plan->n_absorbed; row += f->cap_absorbed) {
        int32_t n = f->plan->n_absorbed - row < f->cap_absorbed ? f->plan->n_absorbed - row : f->cap_absorbed;
        FWD_TRY(f->mha ? attend_mha(f, l, row, n) : attend_absorbed(f, w, l, row, n));
    }
    for (int32_t i = 0; i < f->plan->n_segments; i++)
        FWD_TRY(attend_segment(f, w, l, &plan_segments(f->plan)[i]));
    int64_t d_out = (int64_t)c->n_heads * c->d_v;
    return fwd_matmul(f, w->o, fwd_act(f, f->b.head_out, d_out, 0), fwd_act(f, f->b.delta, c->hidden_size, 0),
                      f->plan->n_rows);
}
