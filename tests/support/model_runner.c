/* model_runner.c - see model_runner.h. */
#include <stdarg.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/model_runner.h"

ltd_options runner_options(const char *dir)
{
    return (ltd_options){.model = (char *)dir,
                         .device = OPT_DEVICE_CPU,
                         .mem_fraction = 0.5,
                         .context_block = 128,
                         .cpu_threads = 2};
}

void runner_open(runner *r, const ltd_options *o, int32_t max_rows, int32_t n_req_rows)
{
    ltd_err err;
    memset(r, 0, sizeof *r);
    if (model_open(o, &r->m, &err) != LTD_OK) fail_msg("%s", err.text);
    r->info = model_get_info(r->m);
    r->limits = (model_limits){.n_req_rows = n_req_rows,
                               .max_rows = max_rows,
                               .max_samples = max_rows,
                               .max_edit_slots = 4096,
                               .max_slots = 4096};
    if (model_start(r->m, &r->limits, &r->n_slots, &err) != LTD_OK) fail_msg("%s", err.text);
    r->plan = model_plan_create(&r->limits);
    r->logits = ltd_calloc((size_t)max_rows * (size_t)r->info->vocab_size, sizeof *r->logits);
    model__capture(r->m, r->logits);
}

void runner_close(runner *r)
{
    model_close(r->m);
    ltd_free(r->plan);
    ltd_free(r->logits);
    memset(r, 0, sizeof *r);
}

static void add_rows(model_plan *p, const runner_rows *q, int32_t map_from)
{
    int32_t end = q->pos0 + q->n;
    plan_edits(p)[p->n_edits++] =
        (pool_req_edit){.row = q->req_row, .pos = map_from, .n = end - map_from, .first = p->n_edit_slots};
    for (int32_t i = map_from; i < end; i++) plan_edit_slots(p)[p->n_edit_slots++] = q->slots[i];
    if (!q->absorbed)
        plan_segments(p)[p->n_segments++] =
            (plan_segment){.req_row = q->req_row, .first_row = p->n_rows, .n_rows = q->n, .pos0 = q->pos0};
    else
        p->n_absorbed += q->n;
    for (int32_t i = 0; i < q->n; i++) {
        int32_t row = p->n_rows++;
        plan_tokens(p)[row] = q->ids[q->pos0 + i];
        plan_pos(p)[row] = q->pos0 + i;
        plan_slots(p)[row] = q->slots[q->pos0 + i];
        plan_req(p)[row] = q->req_row;
        plan_samples(p)[p->n_samples++] =
            (plan_sample){.row = row,
                          .req_row = -1,
                          .params = {.target = 0, .n_logprobs = 0, .repetition = 1, .mask_row = -1}};
    }
}

void runner_step(runner *r, const runner_rows *rows, int32_t n, int32_t map_from)
{
    model_plan *p = r->plan;
    ltd_err err;
    model_plan_clear(p);
    p->step++;
    for (int32_t i = 0; i < n; i++) add_rows(p, &rows[i], map_from);
    if (model_plan_check(p, &r->limits, r->n_slots, r->info->vocab_size, &err) != LTD_OK)
        fail_msg("%s", err.text);
    assert_int_equal(model_launch(r->m, p), LTD_OK);
    assert_int_equal(model_wait(r->m, &r->result), LTD_OK);
    assert_int_equal(r->result.status, LTD_OK);
}
