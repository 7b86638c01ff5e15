/* plan.c - the flat plan of one step: its layout and its invariants. */
#include <string.h>

#include "model/model.h"

static int32_t place(int32_t *at, int64_t bytes)
{
    int32_t here = *at;
    int64_t next = here + ((bytes + 63) & ~(int64_t)63);
    LTD_CHECK(next < INT32_MAX, "plan of %lld bytes", (long long)next);
    *at = (int32_t)next;
    return here;
}

model_plan *model_plan_create(const model_limits *l)
{
    model_plan h = {0};
    int32_t at = (int32_t)((sizeof h + 63) & ~(size_t)63);
    h.cap_rows = l->max_rows;
    h.cap_segments = l->max_rows;
    h.cap_samples = l->max_samples;
    h.cap_edits =
        l->max_rows + 2 * l->n_req_rows; /* a row each, a prefix hit, a rewrite to the tree's slots */
    h.cap_edit_slots = l->max_edit_slots;
    h.off_tokens = place(&at, 4LL * h.cap_rows);
    h.off_pos = place(&at, 4LL * h.cap_rows);
    h.off_slots = place(&at, 4LL * h.cap_rows);
    h.off_req = place(&at, 4LL * h.cap_rows);
    h.off_segments = place(&at, (int64_t)sizeof(plan_segment) * h.cap_segments);
    h.off_samples = place(&at, (int64_t)sizeof(plan_sample) * h.cap_samples);
    h.off_edits = place(&at, (int64_t)sizeof(pool_req_edit) * h.cap_edits);
    h.off_edit_slots = place(&at, 4LL * h.cap_edit_slots);
    h.bytes = at;
    model_plan *p = ltd_calloc(1, (size_t)at);
    *p = h;
    return p;
}

void model_plan_clear(model_plan *p)
{
    p->n_rows = p->n_absorbed = p->n_segments = p->n_samples = p->n_edits = p->n_edit_slots = 0;
}

static ltd_status check_rows(const model_plan *p, const model_limits *l, int32_t n_slots, int32_t vocab,
                             ltd_err *err)
{
    if (p->n_rows < 0 || p->n_rows > p->cap_rows || p->n_absorbed < 0 || p->n_absorbed > p->n_rows)
        return ltd_fail(err, LTD_INVALID, "plan step=%lld: rows=%d absorbed=%d cap=%d", (long long)p->step,
                        p->n_rows, p->n_absorbed, p->cap_rows);
    for (int32_t i = 0; i < p->n_rows; i++) {
        int32_t tok = plan_tokens(p)[i], slot = plan_slots(p)[i], req = plan_req(p)[i], pos = plan_pos(p)[i];
        if (tok < MODEL_TOKEN_LAST || tok >= vocab || slot < 1 || slot > n_slots || req < 0 ||
            req >= l->n_req_rows || pos < 0)
            return ltd_fail(err, LTD_INVALID, "plan step=%lld row=%d: token=%d slot=%d req=%d pos=%d",
                            (long long)p->step, i, tok, slot, req, pos);
    }
    return LTD_OK;
}

static ltd_status check_segments(const model_plan *p, ltd_err *err)
{
    int32_t next = p->n_absorbed;
    for (int32_t i = 0; i < p->n_segments; i++) {
        const plan_segment *s = &plan_segments(p)[i];
        if (s->first_row != next || s->n_rows < 1 || s->n_rows > p->n_rows - next)
            return ltd_fail(err, LTD_INVALID, "plan step=%lld segment=%d: first=%d n=%d, expected first %d",
                            (long long)p->step, i, s->first_row, s->n_rows, next);
        for (int32_t r = 0; r < s->n_rows; r++)
            if (plan_req(p)[next + r] != s->req_row || plan_pos(p)[next + r] != s->pos0 + r)
                return ltd_fail(err, LTD_INVALID,
                                "plan step=%lld segment=%d: row %d is of another sequence or position",
                                (long long)p->step, i, next + r);
        next += s->n_rows;
    }
    if (next != p->n_rows)
        return ltd_fail(err, LTD_INVALID, "plan step=%lld: segments cover %d of %d rows", (long long)p->step,
                        next, p->n_rows);
    return LTD_OK;
}

static ltd_status check_edits(const model_plan *p, const model_limits *l, int32_t n_slots, ltd_err *err)
{
    if (p->n_edits < 0 || p->n_edits > p->cap_edits || p->n_edit_slots < 0 ||
        p->n_edit_slots > p->cap_edit_slots)
        return ltd_fail(err, LTD_INVALID, "plan step=%lld: edits=%d slots=%d", (long long)p->step, p->n_edits,
                        p->n_edit_slots);
    for (int32_t i = 0; i < p->n_edits; i++) {
        const pool_req_edit *e = &plan_edits(p)[i];
        if (e->row < 0 || e->row >= l->n_req_rows || e->pos < 0 || e->n < 1 || e->first < 0 ||
            e->n > p->n_edit_slots - e->first)
            return ltd_fail(err, LTD_INVALID, "plan step=%lld edit=%d: row=%d pos=%d n=%d first=%d",
                            (long long)p->step, i, e->row, e->pos, e->n, e->first);
    }
    for (int32_t i = 0; i < p->n_edit_slots; i++)
        if (plan_edit_slots(p)[i] < 1 || plan_edit_slots(p)[i] > n_slots)
            return ltd_fail(err, LTD_INVALID, "plan step=%lld: edit slot %d", (long long)p->step,
                            plan_edit_slots(p)[i]);
    return LTD_OK;
}

ltd_status model_plan_check(const model_plan *p, const model_limits *l, int32_t n_slots, int32_t vocab,
                            ltd_err *err)
{
    ltd_status st;
    if ((st = check_rows(p, l, n_slots, vocab, err)) != LTD_OK) return st;
    if ((st = check_segments(p, err)) != LTD_OK) return st;
    if ((st = check_edits(p, l, n_slots, err)) != LTD_OK) return st;
    if (p->n_samples < 0 || p->n_samples > p->cap_samples)
        return ltd_fail(err, LTD_INVALID, "plan step=%lld: samples=%d cap=%d", (long long)p->step,
                        p->n_samples, p->cap_samples);
    for (int32_t i = 0; i < p->n_samples; i++) {
        const plan_sample *s = &plan_samples(p)[i];
        if (s->row < 0 || s->row >= p->n_rows || s->req_row < -1 || s->req_row >= l->n_req_rows ||
            s->params.target >= vocab)
            return ltd_fail(err, LTD_INVALID, "plan step=%lld sample=%d: row=%d req=%d target=%d",
                            (long long)p->step, i, s->row, s->req_row, s->params.target);
    }
    return LTD_OK;
}
