/* test_scheduler_storm - storms of which everything is drawn from one seed: pool, context, chunks, switches, when results come, refused takes, prompts
 * that continue one another, stops, choices, deadlines, cancels, tokens without a finite logit, a device that dies.  Whatever happens each sequence ends
 * once; what was not cut short is what the fake's function gives alone; what was cut short is a beginning of that; every slot comes back.
 *     STORM_FIRST=n STORM_SEEDS=k: k seeds from n on, for soaks and to repeat one. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "scheduler/scheduler_private.h"
#include "tests/support/sched_rig.h"

enum { MAX_ASKED = 120, MAX_CONTEXT = 160, PROMPTS = 3 };

typedef struct asked {
    sched_request r;
    int32_t prompts[PROMPTS][MAX_CONTEXT], lens[PROMPTS];
    const int32_t *ptrs[PROMPTS];
    uint64_t id;
    bool hurried; /* cancelled, or with a time limit */
} asked;

typedef struct storm {
    rig g;
    uint64_t seed, rng;
    asked all[MAX_ASKED];
    int32_t n;
    bool limits;                              /* deadlines and queue time-outs */
    int64_t finished[5], cut, cached, wasted; /* of all seeds */
} storm;

static int32_t rnd(storm *w, int32_t n)
{
    w->rng ^= w->rng << 13;
    w->rng ^= w->rng >> 7;
    w->rng ^= w->rng << 17;
    return (int32_t)((w->rng >> 20) % (uint64_t)n);
}

static int32_t pick(storm *w, const int32_t *of, size_t n) { return of[rnd(w, (int32_t)n)]; }

/* ---------------------------------------------------------------- requests */

/* Often the beginning of an earlier prompt, its whole, or its answer too. */
static int32_t make_prompt(storm *w, int32_t *out)
{
    int32_t n = 0, most = w->g.o.context_length - 1, want = 1 + rnd(w, rnd(w, 3) ? most / 2 : most);
    if (w->n && rnd(w, 10) < 7) {
        const asked *a = &w->all[rnd(w, w->n)];
        const rig_seq *q = rig_of(&w->g, a->id, 0);
        n = a->lens[0] < want ? a->lens[0] : want;
        memcpy(out, a->prompts[0], sizeof *out * (size_t)n);
        if (n == a->lens[0] && rnd(w, 2))
            for (int32_t i = 0; i < q->n_ids && n < want; i++) out[n++] = q->ids[i];
        if (rnd(w, 4) == 0) return n;
    }
    while (n < want) out[n++] = rnd(w, 8) ? rnd(w, 4) : rnd(w, 256);
    return n;
}

static void make_request(storm *w, asked *a)
{
    static const char *const words[] = {"A",           "zq", "7,", "\xC3\xA9", "ab", "a longer stop string",
                                        "\xEF\xBF\xBD"};
    int32_t n_prompts = rnd(w, 8) ? 1 : 1 + rnd(w, PROMPTS);
    memset(a, 0, sizeof *a);
    for (int32_t i = 0; i < n_prompts; i++) {
        a->lens[i] = make_prompt(w, a->prompts[i]);
        a->ptrs[i] = a->prompts[i];
    }
    a->r = rig_request(a->ptrs, a->lens, rnd(w, rnd(w, 10) ? 40 : 1000));
    a->r.n_prompts = n_prompts;
    a->r.n = rnd(w, 6) ? 1 : 1 + rnd(w, 6);
    a->r.n_logprobs = rnd(w, 4) ? rnd(w, 3) : -1;
    a->r.n_prompt_logprobs = rnd(w, 8) ? -1 : rnd(w, 3);
    a->r.ignore_eos = rnd(w, 2);
    a->r.skip_special = rnd(w, 2);
    a->r.salt[0] = rnd(w, 5) == 0;
    a->r.salt[1] = rnd(w, 9) == 0;
    for (int32_t i = rnd(w, 4) ? 0 : 1 + rnd(w, 3); i > 0; i--) {
        a->r.stops[a->r.n_stops] = words[rnd(w, 6)];
        a->r.stop_lens[a->r.n_stops] = strlen(a->r.stops[a->r.n_stops]);
        a->r.n_stops++;
    }
    a->r.include_stop = rnd(w, 2);
    if (rnd(w, 6) == 0) a->r.stop_ids[a->r.n_stop_ids++] = rnd(w, 320);
    a->hurried = w->limits;
    if (w->limits && rnd(w, 4) == 0) a->r.deadline_us = w->g.now_us + 1 + rnd(w, 200000);
}

static void ask(storm *w)
{
    ltd_err err;
    asked *a = &w->all[w->n];
    make_request(w, a);
    ltd_status st = sched_submit(w->g.s, &a->r, &a->id, &err);
    if (st == LTD_OK)
        w->n++;
    else if (st != LTD_FULL && st != LTD_DEVICE && st != LTD_TOO_LARGE)
        fail_msg("seed %llu: submit: %s", (unsigned long long)w->seed, err.text);
}

static void cancel_one(storm *w)
{
    if (!w->n) return;
    asked *a = &w->all[w->n - 1 - rnd(w, w->n < 12 ? w->n : 12)];
    a->hurried = true;
    sched_cancel(w->g.s, a->id, SCHED_CANCEL_CLIENT);
    if (rnd(w, 4) == 0) sched_cancel(w->g.s, a->id, SCHED_CANCEL_SLOW_READER);
}

/* ---------------------------------------------------------------- what came of them */

static bool scores_die(const storm *w, const asked *a, int32_t prompt, int32_t choice)
{
    if (a->r.n_prompt_logprobs < 0 || choice || !w->g.fake.nan_token) return false;
    for (int32_t i = 0; i + 1 < a->lens[prompt]; i++)
        if (a->prompts[prompt][i] == w->g.fake.nan_token) return true;
    return false;
}

static void verify(storm *w, const asked *a, int32_t prompt, int32_t choice)
{
    static rig_expect e;
    const rig_seq *q = rig_of(&w->g, a->id, prompt * a->r.n + choice);
    rig_expected(&w->g, &a->r, prompt, &e);
    if (scores_die(w, a, prompt, choice)) {
        e.finish = SCHED_ERROR;
        e.n = 0;
        if (e.text.len) e.text.data[e.text.len = 0] = 0;
    }
    const char *text = e.text.data ? e.text.data : "", *got = q->text.data ? q->text.data : "";
    bool cut = (a->hurried && q->last.finish == SCHED_ABORT) ||
               (w->g.fake.fail_step && q->last.finish == SCHED_ERROR);
    bool same =
        cut ? q->last.completion_tokens <= e.n
            : q->last.finish == e.finish && q->last.completion_tokens == e.n && strcmp(text, got) == 0;
    if (!same || memcmp(q->ids ? q->ids : e.ids, e.ids, sizeof *q->ids * (size_t)q->n_ids) != 0)
        fail_msg("seed %llu group %llu seq %d: prompt of %d, max %d: '%s' (%d tokens, finish %d), expected "
                 "'%s' (%d, %d)",
                 (unsigned long long)w->seed, (unsigned long long)a->id, prompt * a->r.n + choice,
                 a->lens[prompt], a->r.max_tokens, got, q->last.completion_tokens, q->last.finish, text, e.n,
                 e.finish);
    for (int32_t i = 0; i < q->n_scores; i++)
        assert_true(q->scores[i] == fake_model_score(a->prompts[prompt], i + 1));
    if (!cut && e.finish != SCHED_ERROR && a->r.n_prompt_logprobs >= 0 && !choice)
        assert_int_equal(q->n_scores, a->lens[prompt] - 1);
    if (!cut && e.finish == SCHED_LENGTH && a->r.n_logprobs >= 0) assert_int_equal(q->n_ids, e.n);
    assert_true(q->last.cached_tokens < a->lens[prompt]);
    w->finished[q->last.finish]++;
    w->cut += cut;
    ltd_buf_deinit(&e.text);
}

/* Groups, timers, duplicates: all of it gone. */
static void nothing_is_left(const sched *s)
{
    for (int32_t b = 0; b < GROUP_BUCKETS; b++) assert_null(s->buckets[b]);
    assert_null(s->queue_head);
    assert_null(s->running);
    assert_int_equal(s->n_timers, 0);
    assert_int_equal(s->n_dups, 0);
    assert_int_equal(s->reserved, 0);
}

/* ---------------------------------------------------------------- one seed */

static void choose(storm *w, fake_config *f, sched_options *o)
{
    static const int32_t chunks[] = {1, 2, 3, 7, 16, 33, 64, 200},
                         pools[] = {2, 17, 64, 100, 170, 400, 1000, 20000}, running[] = {1, 2, 5, 16, 40};
    *f = (fake_config){.context_length = 8 + rnd(w, MAX_CONTEXT - 8)};
    f->timing = (fake_timing)pick(w, (const int32_t[]){FAKE_LAZY, FAKE_EAGER, FAKE_RANDOM, FAKE_RANDOM}, 4);
    if (rnd(w, 3) == 0) f->nan_token = 1 + rnd(w, 60);
    if (rnd(w, 10) == 0) f->fail_step = 1 + rnd(w, 200);
    *o = rig_options();
    o->overlap = rnd(w, 4);
    o->reuse_generated = rnd(w, 2);
    o->radix_cache = rnd(w, 6);
    o->absorb_extend = rnd(w, 2) ? 0 : 1 + rnd(w, 20);
    o->chunk_rows = pick(w, chunks, sizeof chunks / sizeof *chunks);
    o->n_slots = pick(w, pools, sizeof pools / sizeof *pools);
    o->max_running = pick(w, running, sizeof running / sizeof *running);
    o->max_queued = 1 + rnd(w, 64);
    w->limits = rnd(w, 3) == 0;
    if (w->limits && rnd(w, 2)) o->queue_timeout_us = 1 + rnd(w, 100000);
}

static void run_seed(storm *w, uint64_t seed)
{
    fake_config f;
    sched_options o;
    w->n = 0;
    w->seed = seed;
    w->rng = seed * 0x9e3779b97f4a7c15u | 1;
    for (int i = 0; i < 8; i++) rnd(w, 2);
    choose(w, &f, &o);
    rig_open(&w->g, &f, &o);
    int32_t refuse = rnd(w, 3) ? 0 : 2 + rnd(w, 30), patience = 0;
    if (refuse) pool_slots_fail_take(w->g.s->slots, refuse, true);
    while (w->n < MAX_ASKED && patience++ < 4 * MAX_ASKED) {
        for (int32_t burst = rnd(w, 3) ? rnd(w, 3) : rnd(w, 20); burst > 0 && w->n < MAX_ASKED; burst--)
            ask(w);
        for (int32_t steps = rnd(w, 6); steps > 0; steps--) rig_step(&w->g);
        if (rnd(w, 4) == 0) cancel_one(w);
    }
    if (rnd(w, 4) == 0) sched_drain(w->g.s);
    if (rnd(w, 8) == 0) {
        for (int32_t i = 0; i < w->n; i++) w->all[i].hurried = true;
        sched_stop(w->g.s);
    } else
        rig_run(&w->g);
    for (int32_t i = 0; i < w->n; i++) {
        const asked *a = &w->all[i];
        if (!rig_ended(&w->g, a->id))
            fail_msg("seed %llu: group %llu never ended", (unsigned long long)seed,
                     (unsigned long long)a->id);
        for (int32_t k = 0; k < a->r.n_prompts * a->r.n; k++) verify(w, a, k / a->r.n, k % a->r.n);
    }
    assert_int_equal(w->g.n_done, w->n);
    rig_idle(&w->g);
    nothing_is_left(w->g.s);
    fake_stats fs = fake_model_stats(w->g.m);
    if (!o.overlap) assert_true(fs.max_in_flight <= 1);
    sched_stats st;
    sched_get_stats(w->g.s, &st);
    w->cached += st.cached_tokens;
    w->wasted += st.wasted_rows;
    rig_close(&w->g);
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *v = getenv(name);
    return v ? strtoull(v, NULL, 10) : otherwise;
}

static void storms_of_any_kind(void **state)
{
    (void)state;
    storm *w = ltd_calloc(1, sizeof *w);
    uint64_t first = number("STORM_FIRST", 1), n = number("STORM_SEEDS", 400);
    int nowhere = open("/dev/null", O_WRONLY); /* a line for each poisoned sequence */
    assert_int_equal(log_start(&(log_config){.level = LOG_ERROR, .fd = nowhere}), LTD_OK);
    for (uint64_t seed = first; seed < first + n; seed++) run_seed(w, seed);
    log_stop();
    close(nowhere);
    print_message("seeds %llu to %llu: stop=%lld length=%lld abort=%lld error=%lld cut=%lld "
                  "cached_tokens=%lld wasted_rows=%lld\n",
                  (unsigned long long)first, (unsigned long long)(first + n - 1),
                  (long long)w->finished[SCHED_STOP], (long long)w->finished[SCHED_LENGTH],
                  (long long)w->finished[SCHED_ABORT], (long long)w->finished[SCHED_ERROR], (long long)w->cut,
                  (long long)w->cached, (long long)w->wasted);
    ltd_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(storms_of_any_kind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
