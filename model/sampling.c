/* sampling.c - from final hidden rows to tokens and log-probabilities.
 * Logits exist for at most cap_logits rows at a time, so that scoring a whole prompt needs no more memory than a chunk. */
#include "model/forward.h"

/* last_token[req_row] = token, for the samples that some sequence goes on from. */
static ltd_status keep_last_tokens(fwd *f)
{
    const model_plan *p = f->plan;
    const kern_ops *ops = f->ctx->ops;
    int32_t *from = f->host_scratch, *to = f->host_scratch + f->limits.max_rows, n = 0;
    for (int32_t i = 0; i < p->n_samples; i++) {
        const plan_sample *s = &plan_samples(p)[i];
        if (s->req_row < 0) continue;
        LTD_CHECK(n < f->limits.max_rows, "step=%lld: more sampling sequences than rows", (long long)p->step);
        from[n] = i;
        to[n++] = s->req_row;
    }
    if (!n) return LTD_OK;
    FWD_TRY(ops->upload(f->ctx, f->b.index_a, from, 4 * (size_t)n));
    FWD_TRY(ops->upload(f->ctx, f->b.index_b, to, 4 * (size_t)n));
    return ops->copy_rows(f->ctx, &(kern_copy_rows_args){.src = fwd_i32(f->b.tokens),
                                                         .dst = fwd_i32(f->b.last_token),
                                                         .src_index = f->b.index_a,
                                                         .dst_index = f->b.index_b,
                                                         .d = 1,
                                                         .rows_cap = n});
}

static ltd_status sample_block(fwd *f, int32_t first, int32_t n)
{
    const model_plan *p = f->plan;
    const kern_ops *ops = f->ctx->ops;
    int64_t d = f->c->hidden_size, vocab = f->c->vocab_size;
    int32_t *rows = f->host_scratch;
    for (int32_t i = 0; i < n; i++) rows[i] = plan_samples(p)[first + i].row;
    FWD_TRY(ops->upload(f->ctx, f->b.index_a, rows, 4 * (size_t)n));
    FWD_TRY(ops->copy_rows(f->ctx, &(kern_copy_rows_args){.src = fwd_act(f, f->b.h, d, 0),
                                                          .dst = fwd_act(f, f->b.sample_h, d, 0),
                                                          .src_index = f->b.index_a,
                                                          .d = f->c->hidden_size,
                                                          .rows_cap = n}));
    FWD_TRY(fwd_matmul(f, f->w->lm_head, fwd_act(f, f->b.sample_h, d, 0), fwd_f32(f->b.logits, vocab), n));
    if (f->capture)
        FWD_TRY(ops->download(f->ctx, f->capture + first * vocab, f->b.logits, 4 * (size_t)(n * vocab)));
    return ops->sample(f->ctx, &(kern_sample_args){
                                   .logits = fwd_f32(f->b.logits, vocab),
                                   .vocab = f->c->vocab_size,
                                   .params = f->b.params + first,
                                   .tokens = f->b.tokens + first,
                                   .logprobs = f->b.logprobs + first,
                                   .top_ids = f->b.top_ids + (int64_t)first * KERN_MAX_TOP_LOGPROBS,
                                   .top_logprobs = f->b.top_logprobs + (int64_t)first * KERN_MAX_TOP_LOGPROBS,
                                   .rows_cap = n});
}

ltd_status fwd_sample(fwd *f, const fwd_out *out)
{
    const model_plan *p = f->plan;
    const kern_ops *ops = f->ctx->ops;
    size_t n = (size_t)p->n_samples;
    if (!n) return LTD_OK;
    bool logprobs = false;
    for (int32_t i = 0; i < p->n_samples; i++) {
        f->host_params[i] = plan_samples(p)[i].params;
        logprobs |= f->host_params[i].n_logprobs >= 0;
    }
    FWD_TRY(ops->upload(f->ctx, f->b.params, f->host_params, n * sizeof *f->host_params));
    for (int32_t first = 0; first < p->n_samples; first += f->cap_logits)
        FWD_TRY(sample_block(f, first,
                             p->n_samples - first < f->cap_logits ? p->n_samples - first : f->cap_logits));
    FWD_TRY(keep_last_tokens(f));
    FWD_TRY(ops->download(f->ctx, out->tokens, f->b.tokens, 4 * n));
    if (!logprobs) return LTD_OK;
    FWD_TRY(ops->download(f->ctx, out->logprobs, f->b.logprobs, 4 * n));
    FWD_TRY(ops->download(f->ctx, out->top_ids, f->b.top_ids, 4 * n * KERN_MAX_TOP_LOGPROBS));
    return ops->download(f->ctx, out->top_logprobs, f->b.top_logprobs, 4 * n * KERN_MAX_TOP_LOGPROBS);
}
