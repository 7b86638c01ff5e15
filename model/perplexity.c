/* perplexity.c - how well the model predicts a text, by the very plans that serving uses.
 * Windows run one after another as prompts of BOS + window tokens, in chunks, every row but the last scored against its next token. */
#include <math.h>
#include <string.h>

#include "model/model_private.h"
#include "model/tokenizer.h"

/* Slots 1 .. n stand for positions 0 .. n-1 of request row 0 for the whole run. */
static void map_slots(model_plan *p, int32_t first, int32_t n)
{
    plan_edits(p)[0] = (pool_req_edit){.row = 0, .pos = first, .n = n, .first = 0};
    for (int32_t i = 0; i < n; i++) plan_edit_slots(p)[i] = first + i + 1;
    p->n_edits = 1;
    p->n_edit_slots = n;
}

/* Scores ids[pos0 + 1 ..] from rows pos0 .. pos0 + n of ids[0..n_ids). */
static ltd_status score_chunk(model *m, model_plan *p, const int32_t *ids, int32_t n_ids, int32_t pos0,
                              int32_t n, double *nll, ltd_err *err)
{
    model_plan_clear(p);
    p->step++;
    map_slots(p, pos0, n);
    for (int32_t i = 0; i < n; i++) {
        plan_tokens(p)[i] = ids[pos0 + i];
        plan_pos(p)[i] = pos0 + i;
        plan_slots(p)[i] = pos0 + i + 1;
        plan_req(p)[i] = 0;
        if (pos0 + i + 1 == n_ids) continue;
        plan_samples(p)[p->n_samples++] = (plan_sample){
            .row = i,
            .req_row = -1,
            .params = {.target = ids[pos0 + i + 1], .n_logprobs = 0, .repetition = 1, .mask_row = -1}};
    }
    p->n_rows = n;
    plan_segments(p)[p->n_segments++] =
        (plan_segment){.req_row = 0, .first_row = 0, .n_rows = n, .pos0 = pos0};
    ltd_status st = model_launch(m, p);
    if (st != LTD_OK)
        return ltd_fail(err, st, "perplexity: step %lld could not be launched", (long long)p->step);
    model_result r;
    if ((st = model_wait(m, &r)) != LTD_OK || (st = r.status) != LTD_OK)
        return ltd_fail(err, st, "perplexity: step %lld failed", (long long)p->step);
    for (int32_t i = 0; i < r.n_samples; i++) *nll -= (double)r.logprobs[i];
    return LTD_OK;
}

static ltd_status score_window(model *m, model_plan *p, const int32_t *ids, int32_t n_ids, double *nll,
                               ltd_err *err)
{
    const model_limits *l = model__limits(m);
    int32_t chunk = l->max_rows;
    if (l->max_samples < chunk) chunk = l->max_samples;
    if (l->max_edit_slots < chunk) chunk = l->max_edit_slots;
    for (int32_t pos = 0; pos < n_ids; pos += chunk) {
        ltd_status st =
            score_chunk(m, p, ids, n_ids, pos, n_ids - pos < chunk ? n_ids - pos : chunk, nll, err);
        if (st != LTD_OK) return st;
    }
    return LTD_OK;
}

ltd_status model_perplexity(model *m, const struct tok *t, const char *text, size_t n, int32_t window,
                            model_ppl *out, ltd_err *err)
{
    const model_info *mi = model_get_info(m);
    int32_t bos = tok_get_info(t)->bos >= 0 ? tok_get_info(t)->bos : mi->bos;
    if (bos < 0)
        return ltd_fail(err, LTD_UNSUPPORTED,
                        "perplexity: the checkpoint names no BOS token to begin a window with");
    if (window < 1 || window + 1 > model__n_slots(m) || window + 1 > mi->context_length)
        return ltd_fail(
            err, LTD_INVALID,
            "perplexity: a window of %d tokens needs %d slots and positions; there are %d slots, context %d",
            window, window + 1, model__n_slots(m), mi->context_length);
    int32_t *ids;
    int64_t n_ids;
    ltd_status st = tok_encode(t, text, n, TOK_PLAIN, 0, &ids, &n_ids, err);
    if (st != LTD_OK) return st;
    if (n_ids == 0) {
        ltd_free(ids);
        return ltd_fail(err, LTD_INVALID, "perplexity: the text has no tokens");
    }
    model_plan *p = model_plan_create(model__limits(m));
    int32_t *w = ltd_alloc(((size_t)window + 1) * sizeof *w);
    double nll = 0;
    for (int64_t at = 0; at < n_ids && st == LTD_OK; at += window) {
        int32_t k = n_ids - at < window ? (int32_t)(n_ids - at) : window;
        w[0] = bos;
        memcpy(w + 1, ids + at, (size_t)k * sizeof *w);
        st = score_window(m, p, w, k + 1, &nll, err);
    }
    ltd_free(w);
    ltd_free(p);
    ltd_free(ids);
    if (st != LTD_OK) return st;
    *out = (model_ppl){.n_tokens = n_ids, .nll = nll, .perplexity = exp(nll / (double)n_ids)};
    return LTD_OK;
}
