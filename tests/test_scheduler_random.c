/* test_scheduler_random - storms: hundreds of requests of random lengths over shared prefixes, cancelled at random moments, through tiny pools, with
 * refused takes, one and two steps in flight, chunks of 1 to 64 rows, answers reused or not.  After every step each slot has one owner; every
 * survivor's tokens and text equal what the fake's function gives without any slots. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/scheduler_private.h"
#include "tests/support/sched_rig.h"

enum { N_REQUESTS = 250, MAX_PROMPT = 90, MAX_NEW = 40, CONTEXT = 128 };

static uint64_t rng;
static uint32_t rnd(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)((rng >> 20) % n);
}

typedef struct asked {
    sched_request r;
    int32_t prompts[3][MAX_PROMPT], lens[3];
    const int32_t *ptrs[3];
    uint64_t id;
    bool cancelled;
} asked;

static const char *const stop_words[] = {"A", "zq", "7,", "\xC3\xA9", "ab"};

/* A prompt that often continues an earlier one, or an earlier answer. */
static int32_t make_prompt(rig *g, const asked *all, int32_t n_asked, int32_t *out)
{
    int32_t n = 0, want = 1 + (int32_t)rnd(MAX_PROMPT - 1);
    if (n_asked && rnd(10) < 7) {
        const asked *a = &all[rnd((uint32_t)n_asked)];
        n = a->lens[0] < want ? a->lens[0] : want;
        memcpy(out, a->prompts[0], sizeof *out * (size_t)n);
        const rig_seq *q = rig_of(g, a->id, 0);
        if (rnd(2) && n == a->lens[0])
            for (int32_t i = 0; i < q->n_ids && n < want; i++) out[n++] = q->ids[i];
        if (rnd(4) == 0) return n; /* the same prompt again, or its answer to the end */
    }
    while (n < want) out[n++] = (int32_t)rnd(8) ? (int32_t)rnd(4) : (int32_t)rnd(256);
    return n;
}

static void make_request(rig *g, asked *all, int32_t k)
{
    asked *a = &all[k];
    int32_t n_prompts = rnd(8) ? 1 : 1 + (int32_t)rnd(3);
    for (int32_t i = 0; i < n_prompts; i++) {
        a->lens[i] = make_prompt(g, all, k, a->prompts[i]);
        a->ptrs[i] = a->prompts[i];
    }
    a->r = rig_request(a->ptrs, a->lens, (int32_t)rnd(MAX_NEW));
    a->r.n_prompts = n_prompts;
    a->r.n = rnd(6) ? 1 : 1 + (int32_t)rnd(4);
    a->r.n_logprobs = rnd(4) ? 0 : -1; /* with them the tokens are listed */
    a->r.n_prompt_logprobs = rnd(8) ? -1 : (int32_t)rnd(3);
    a->r.ignore_eos = rnd(2);
    a->r.skip_special = rnd(2);
    a->r.salt[0] = rnd(5) == 0;
    for (uint32_t i = rnd(4) ? 0 : 1 + rnd(3); i > 0; i--) {
        a->r.stops[a->r.n_stops] = stop_words[rnd(5)];
        a->r.stop_lens[a->r.n_stops] = strlen(a->r.stops[a->r.n_stops]);
        a->r.n_stops++;
    }
    a->r.include_stop = rnd(2);
    if (rnd(6) == 0) a->r.stop_ids[a->r.n_stop_ids++] = (int32_t)rnd(320);
}

static void verify_seq(rig *g, const asked *a, int32_t prompt, int32_t choice, uint64_t seed)
{
    static rig_expect e;
    const rig_seq *q = rig_of(g, a->id, prompt * a->r.n + choice);
    rig_expected(g, &a->r, prompt, &e);
    const char *text = e.text.data ? e.text.data : "", *got = q->text.data ? q->text.data : "";
    if (q->last.finish != e.finish || q->last.completion_tokens != e.n || strcmp(text, got) != 0)
        fail_msg(
            "seed %llu group %llu: prompt of %d, max %d: '%s' (%d tokens, finish %d), expected '%s' (%d, %d)",
            (unsigned long long)seed, (unsigned long long)a->id, a->lens[prompt], a->r.max_tokens, got,
            q->last.completion_tokens, q->last.finish, text, e.n, e.finish);
    assert_memory_equal(q->ids, e.ids, sizeof *q->ids * (size_t)q->n_ids);
    if (a->r.n_logprobs >= 0 && e.finish == SCHED_LENGTH) assert_int_equal(q->n_ids, e.n);
    if (a->r.n_prompt_logprobs >= 0 && choice == 0) {
        assert_int_equal(q->n_scores, a->lens[prompt] - 1);
        for (int32_t i = 0; i < q->n_scores; i++)
            assert_true(q->scores[i] == fake_model_score(a->prompts[prompt], i + 1));
        assert_int_equal(q->last.cached_tokens, 0);
    }
    assert_true(q->last.cached_tokens < a->lens[prompt]);
    ltd_buf_deinit(&e.text);
}

static void storm(uint64_t seed, const fake_config *f, const sched_options *o, int32_t one_in_cancelled,
                  bool refuse_takes)
{
    rig g;
    asked *all = ltd_calloc(N_REQUESTS, sizeof *all);
    rng = seed * 0x9e3779b97f4a7c15u | 1;
    rig_open(&g, f, o);
    if (refuse_takes) pool_slots_fail_take(g.s->slots, 20, true);
    int32_t n = 0;
    while (n < N_REQUESTS) {
        for (uint32_t burst = rnd(3) ? rnd(3) : rnd(20); burst > 0 && n < N_REQUESTS; burst--) {
            ltd_err err;
            make_request(&g, all, n);
            ltd_status st = sched_submit(g.s, &all[n].r, &all[n].id, &err);
            if (st == LTD_FULL) break;
            if (st == LTD_OK)
                n++;
            else
                memset(&all[n], 0, sizeof *all);
        }
        for (uint32_t steps = rnd(6); steps > 0; steps--) rig_step(&g);
        if (n && rnd((uint32_t)one_in_cancelled) == 0) {
            asked *a = &all[n - 1 - (int32_t)rnd(n < 12 ? (uint32_t)n : 12)];
            a->cancelled = true;
            sched_cancel(g.s, a->id, SCHED_CANCEL_CLIENT);
            if (rnd(2)) sched_cancel(g.s, a->id, SCHED_CANCEL_CLIENT); /* twice is nothing */
        }
    }
    rig_run(&g);
    int32_t survivors = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!rig_ended(&g, all[i].id))
            fail_msg("seed %llu: group %llu never ended", (unsigned long long)seed,
                     (unsigned long long)all[i].id);
        for (int32_t k = 0; k < all[i].r.n_prompts * all[i].r.n; k++) {
            if (all[i].cancelled && rig_of(&g, all[i].id, k)->last.finish == SCHED_ABORT) continue;
            survivors++;
            verify_seq(&g, &all[i], k / all[i].r.n, k % all[i].r.n, seed);
        }
    }
    rig_idle(&g);
    assert_true(survivors > N_REQUESTS / 2);
    fake_stats fs = fake_model_stats(g.m);
    if (o->overlap && f->timing == FAKE_LAZY) assert_int_equal(fs.max_in_flight, 2);
    if (!o->overlap) assert_int_equal(fs.max_in_flight, 1);
    sched_stats st;
    sched_get_stats(g.s, &st);
    if (o->radix_cache) assert_true(st.cached_tokens > 0);
    rig_close(&g);
    ltd_free(all);
}

/* Every combination of the switches, with a seed each. */
static void storms(int32_t n_slots, int32_t max_running, bool refuse_takes)
{
    static const int32_t chunks[] = {1, 7, 16, 64};
    static uint64_t seed = 1;
    for (uint32_t k = 0; k < 32; k++) {
        sched_options o = rig_options();
        fake_config f = {.context_length = CONTEXT, .timing = k & 8 ? FAKE_LAZY : FAKE_EAGER};
        o.overlap = k & 1;
        o.reuse_generated = k & 2;
        o.radix_cache = (k & 12) != 12;
        o.absorb_extend = k & 16 ? 5 : 0;
        o.chunk_rows = chunks[(k >> 2) % 4];
        o.n_slots = n_slots;
        o.max_running = max_running;
        storm(seed++, &f, &o, 4, refuse_takes);
    }
}

static void storms_through_a_roomy_pool(void **state)
{
    (void)state;
    storms(20000, 16, false);
}

static void storms_through_a_tight_pool(void **state)
{
    (void)state;
    storms(400, 16, false);
}

static void storms_through_a_pool_of_one_request(void **state)
{
    (void)state;
    storms(100, 5, false);
}

static void storms_with_one_take_in_twenty_refused(void **state)
{
    (void)state;
    storms(300, 16, true);
    storms(5000, 64, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(storms_through_a_roomy_pool),
        cmocka_unit_test(storms_through_a_tight_pool),
        cmocka_unit_test(storms_through_a_pool_of_one_request),
        cmocka_unit_test(storms_with_one_take_in_twenty_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
