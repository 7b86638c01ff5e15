/* forward.c - the forward pass of one step, in terms of the operations; every backend runs this file.
 * Sheet section 3: x = embed; per layer x += attention(norm(x)), x += ffn(norm(x)); logits = lm_head norm(x).
 * Each addition is fused with the norm that follows it, so a layer's last addition is done by the next layer's first norm. */
#include <string.h>

#include "model/forward.h"

/* Ids of rows whose token the host does not know yet come from last_token, which the step before wrote. */
static ltd_status patch_last_tokens(fwd *f)
{
    const model_plan *p = f->plan;
    const int32_t *tokens = plan_tokens(p), *req = plan_req(p);
    int32_t *rows = f->host_scratch, *from = f->host_scratch + f->limits.max_rows, n = 0;
    for (int32_t i = 0; i < p->n_rows; i++) {
        if (tokens[i] != MODEL_TOKEN_LAST) continue;
        rows[n] = i;
        from[n++] = req[i];
    }
    if (!n) return LTD_OK;
    const kern_ops *ops = f->ctx->ops;
    FWD_TRY(ops->upload(f->ctx, f->b.index_a, rows, 4 * (size_t)n));
    FWD_TRY(ops->upload(f->ctx, f->b.index_b, from, 4 * (size_t)n));
    return ops->copy_rows(f->ctx, &(kern_copy_rows_args){.src = fwd_i32(f->b.last_token),
                                                         .dst = fwd_i32((int32_t *)f->tokens),
                                                         .src_index = f->b.index_b,
                                                         .dst_index = f->b.index_a,
                                                         .d = 1,
                                                         .rows_cap = n});
}

static ltd_status take_plan(fwd *f, const model_plan *p)
{
    const kern_ops *ops = f->ctx->ops;
    f->plan = p;
    FWD_TRY(pool_req_mirror_apply(f->mirror, f->ctx, plan_edits(p), p->n_edits, plan_edit_slots(p)));
    FWD_TRY(ops->upload(f->ctx, f->b.plan, plan_tokens(p), (size_t)(p->off_segments - p->off_tokens)));
    f->tokens = (int32_t *)f->b.plan;
    f->pos = (int32_t *)(f->b.plan + (p->off_pos - p->off_tokens));
    f->slots = (int32_t *)(f->b.plan + (p->off_slots - p->off_tokens));
    f->req = (int32_t *)(f->b.plan + (p->off_req - p->off_tokens));
    FWD_TRY(patch_last_tokens(f));
    int32_t *len = f->host_scratch + 2 * f->limits.max_rows;
    for (int32_t i = 0; i < p->n_absorbed; i++) len[i] = plan_pos(p)[i] + 1;
    return p->n_absorbed ? ops->upload(f->ctx, f->b.len, len, 4 * (size_t)p->n_absorbed) : LTD_OK;
}

static ltd_status add_norm(fwd *f, bool add, const float *weight)
{
    int64_t d = f->c->hidden_size;
    kern_add_norm_args a = {.x = fwd_act(f, f->b.x, d, 0),
                            .out = fwd_act(f, f->b.h, d, 0),
                            .weight = weight,
                            .eps = f->c->rms_eps,
                            .d = f->c->hidden_size,
                            .rows_cap = f->plan->n_rows};
    if (add) a.delta = fwd_act(f, f->b.delta, d, 0);
    return f->ctx->ops->add_norm(f->ctx, &a);
}

ltd_status fwd_run(fwd *f, const model_plan *p, const fwd_out *out)
{
    const kern_ops *ops = f->ctx->ops;
    FWD_TRY(take_plan(f, p));
    if (p->n_rows) {
        FWD_TRY(ops->embed(f->ctx, &(kern_embed_args){.table = f->w->embed,
                                                      .ids = f->tokens,
                                                      .out = fwd_act(f, f->b.x, f->c->hidden_size, 0),
                                                      .rows_cap = p->n_rows}));
        for (int32_t l = 0; l < f->c->n_layers; l++) {
            FWD_TRY(add_norm(f, l > 0, f->w->layers[l].input_norm));
            FWD_TRY(fwd_attention(f, l));
            FWD_TRY(add_norm(f, true, f->w->layers[l].post_norm));
            FWD_TRY(fwd_ffn(f, l));
        }
        FWD_TRY(add_norm(f, true, f->w->final_norm));
        FWD_TRY(fwd_sample(f, out));
    }
    return ops->sync(f->ctx);
}
