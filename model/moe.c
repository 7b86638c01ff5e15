/* moe.c - the feed-forward half of a layer: one MLP, or experts chosen by a router plus the shared ones.
 * Nothing of the routing comes back to the host: rows are sorted by expert on the device and the grouped products read their bounds there. */
#include "model/forward.h"

/* down(silu(gate x) * up x) of all rows: the dense MLP and the shared experts' fused one. */
static ltd_status mlp(fwd *f, const layer_weights *w, void *out)
{
    int32_t n = f->plan->n_rows, inter = w->inter;
    int64_t d = f->c->hidden_size;
    FWD_TRY(fwd_matmul(f, w->gate_up, fwd_act(f, f->b.h, d, 0), fwd_act(f, f->b.gate_up, 2 * inter, 0), n));
    FWD_TRY(f->ctx->ops->silu_mul(f->ctx, &(kern_silu_mul_args){.x = fwd_act(f, f->b.gate_up, 2 * inter, 0),
                                                                .out = fwd_act(f, f->b.inner, inter, 0),
                                                                .d = inter,
                                                                .rows_cap = n}));
    return fwd_matmul(f, w->down, fwd_act(f, f->b.inner, inter, 0), fwd_act(f, out, d, 0), n);
}

static ltd_status choose_experts(fwd *f, const layer_weights *w)
{
    const model_config *c = f->c;
    int32_t n = f->plan->n_rows;
    kern_tensor logits = fwd_f32(f->b.router, c->n_experts);
    FWD_TRY(fwd_matmul(f, w->router, fwd_act(f, f->b.h, c->hidden_size, 0), logits, n));
    FWD_TRY(f->ctx->ops->route(f->ctx, &(kern_route_args){.logits = logits,
                                                          .bias = w->router_bias,
                                                          .method = c->route,
                                                          .n_experts = c->n_experts,
                                                          .top_k = c->top_k,
                                                          .n_group = c->n_group,
                                                          .topk_group = c->topk_group,
                                                          .normalize = c->norm_topk_prob,
                                                          .scale = c->routed_scale,
                                                          .ids = f->b.expert_ids,
                                                          .weights = f->b.expert_weights,
                                                          .rows_cap = n}));
    return f->ctx->ops->moe_sort(f->ctx, &(kern_moe_sort_args){.ids = f->b.expert_ids,
                                                               .n_experts = c->n_experts,
                                                               .top_k = c->top_k,
                                                               .perm = f->b.perm,
                                                               .inverse = f->b.inverse,
                                                               .offsets = f->b.offsets,
                                                               .rows_cap = n});
}

static ltd_status experts(fwd *f, const layer_weights *w)
{
    const model_config *c = f->c;
    const kern_ops *ops = f->ctx->ops;
    int32_t pairs = f->plan->n_rows * c->top_k, m = c->moe_intermediate_size;
    int64_t d = c->hidden_size;
    FWD_TRY(ops->grouped_matmul(f->ctx,
                                &(kern_grouped_matmul_args){.w = w->experts_gate_up,
                                                            .offsets = f->b.offsets,
                                                            .gather = f->b.perm,
                                                            .gather_div = c->top_k,
                                                            .x = fwd_act(f, f->b.h, d, 0),
                                                            .out = fwd_act(f, f->b.expert_gate_up, 2 * m, 0),
                                                            .rows_cap = pairs}));
    FWD_TRY(ops->silu_mul(f->ctx, &(kern_silu_mul_args){.x = fwd_act(f, f->b.expert_gate_up, 2 * m, 0),
                                                        .out = fwd_act(f, f->b.expert_inner, m, 0),
                                                        .d = m,
                                                        .rows_cap = pairs,
                                                        .rows = f->b.offsets + c->n_experts}));
    return ops->grouped_matmul(f->ctx, &(kern_grouped_matmul_args){.w = w->experts_down,
                                                                   .offsets = f->b.offsets,
                                                                   .x = fwd_act(f, f->b.expert_inner, m, 0),
                                                                   .out = fwd_act(f, f->b.expert_out, d, 0),
                                                                   .rows_cap = pairs});
}

ltd_status fwd_ffn(fwd *f, int32_t l)
{
    const model_config *c = f->c;
    const layer_weights *w = &f->w->layers[l];
    int64_t d = c->hidden_size;
    if (!w->moe) return mlp(f, w, f->b.delta);
    FWD_TRY(choose_experts(f, w));
    FWD_TRY(experts(f, w));
    kern_moe_combine_args a = {.expert = fwd_act(f, f->b.expert_out, d, 0),
                               .out = fwd_act(f, f->b.delta, d, 0),
                               .inverse = f->b.inverse,
                               .weights = f->b.expert_weights,
                               .top_k = c->top_k,
                               .d = c->hidden_size,
                               .rows_cap = f->plan->n_rows};
    if (w->gate_up) {
        FWD_TRY(mlp(f, w, f->b.shared));
        a.shared = fwd_act(f, f->b.shared, d, 0);
    }
    return f->ctx->ops->moe_combine(f->ctx, &a);
}
