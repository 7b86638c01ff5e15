/* test_scheduler_engine - turns of the engine at its edges: plans that never get slots, scored rows without a finite logit, what other threads see
 * while a command is on its way, requests whose end meets a step in flight. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/scheduler_private.h"
#include "tests/support/sched_rig.h"

static uint64_t ask_ids(rig *g, const int32_t *ids, int32_t n, int32_t max_tokens)
{
    sched_request r = rig_request(&ids, &n, max_tokens);
    return rig_submit(g, &r);
}

/* Takes are refused while a request begins with a long hit and is cancelled, again and again: the edits that they leave behind must not keep the next
 * ones out for ever. */
static void edits_of_the_dead_take_no_room(void **state)
{
    (void)state;
    enum { N = 200, TIMES = 40 };
    int32_t ids[N];
    for (int32_t i = 0; i < N; i++) ids[i] = i % 250;
    sched_options o = rig_options();
    o.max_running = 2;
    o.chunk_rows = 4;
    rig g;
    rig_open(&g, &(fake_config){.context_length = 256}, &o);
    ask_ids(&g, ids, N, 3);
    rig_run(&g);
    pool_slots_fail_take(g.s->slots, 1, true);
    for (int k = 0; k < TIMES; k++) {
        uint64_t id = ask_ids(&g, ids, N, 3);
        rig_step(&g);
        rig_step(&g);
        sched_cancel(g.s, id, SCHED_CANCEL_CLIENT);
        rig_step(&g);
        assert_true(rig_ended(&g, id));
    }
    pool_slots_fail_take(g.s->slots, 0, false);
    uint64_t last = ask_ids(&g, ids, N, 3);
    for (int k = 0; k < 100 && !rig_ended(&g, last); k++) rig_step(&g);
    assert_true(rig_ended(&g, last));
    assert_int_equal(rig_of(&g, last, 0)->last.cached_tokens, N - 1);
    rig_run(&g);
    rig_idle(&g);
    rig_close(&g);
}

/* A score of a row without a finite logit is none: the sequence ends with an error, whether it would draw or not. */
static void a_scored_row_without_a_finite_logit_is_an_error(void **state)
{
    (void)state;
    int32_t ids[40], n = 40;
    const int32_t *p = ids;
    for (int32_t chunk = 1; chunk <= 64; chunk *= 4)
        for (int32_t max_tokens = 0; max_tokens < 2; max_tokens++) {
            for (int32_t i = 0; i < n; i++) ids[i] = i + 1;
            rig g;
            sched_options o = rig_options();
            o.chunk_rows = chunk;
            rig_open(&g, &(fake_config){.nan_token = 20}, &o);
            sched_request r = rig_request(&p, &n, max_tokens);
            r.n_prompt_logprobs = 1;
            uint64_t bad = rig_submit(&g, &r);
            ids[19] = 99;
            uint64_t good = rig_submit(&g, &r);
            rig_run(&g);
            assert_int_equal(rig_of(&g, bad, 0)->last.finish, SCHED_ERROR);
            assert_true(rig_of(&g, bad, 0)->n_scores < 20);
            assert_int_equal(rig_of(&g, good, 0)->last.finish, SCHED_LENGTH);
            assert_int_equal(rig_of(&g, good, 0)->n_scores, n - 1);
            rig_idle(&g);
            rig_close(&g);
        }
}

/* What was computed after the prompt of a sequence without a finite logit is nobody else's. */
static void poisoned_rows_are_not_cached(void **state)
{
    (void)state;
    static int32_t table[320];
    for (int i = 0; i < 320; i++) table[i] = i == 'D' ? -1 : i + 1;
    for (int overlap = 0; overlap < 2; overlap++) {
        sched_options o = rig_options();
        o.overlap = overlap;
        sched_stats st;
        rig g;
        rig_open(&g, &(fake_config){.rule = FAKE_CHAIN, .chain = table}, &o);
        uint64_t id = rig_ask(&g, "xyA", 100, NULL);
        rig_run(&g);
        rig_text(&g, id, 0, "BCD", SCHED_ERROR);
        sched_get_stats(g.s, &st);
        assert_int_equal(st.slots_cached, 3);
        rig_idle(&g);
        rig_close(&g);
    }
}

static void not_idle(void *user, const model_plan *p)
{
    rig *g = user;
    sched_stats st;
    (void)p;
    sched_get_stats(g->s, &st);
    assert_false(st.idle);
}

/* idle is false from the submit on, also while the engine has taken the command and not yet told what came of it. */
static void a_taken_command_is_not_idleness(void **state)
{
    (void)state;
    rig g;
    sched_stats st;
    rig_open(&g, NULL, NULL);
    rig_step(&g);
    sched_get_stats(g.s, &st);
    assert_true(st.idle);
    fake_model_on_plan(g.m, not_idle, &g);
    for (int k = 0; k < 3; k++) {
        rig_ask(&g, "what", 3, NULL);
        sched_get_stats(g.s, &st);
        assert_false(st.idle);
        rig_run(&g);
        rig_idle(&g);
    }
    rig_close(&g);
}

static sched_stats stats(rig *g)
{
    sched_stats st;
    sched_get_stats(g->s, &st);
    return st;
}

/* A sequence that ends with steps in flight: rows whose token the host never learnt are not put into the tree. */
static void rows_of_unknown_tokens_are_not_cached(void **state)
{
    (void)state;
    for (int before = 2; before < 8; before++) {
        rig g;
        rig_open(&g, &(fake_config){.timing = FAKE_LAZY}, NULL);
        uint64_t id = rig_ask(&g, "hello", 100, NULL);
        for (int k = 0; k < before; k++) rig_step(&g);
        sched_cancel(g.s, id, SCHED_CANCEL_CLIENT);
        rig_run(&g);
        const rig_seq *q = rig_of(&g, id, 0);
        assert_int_equal(q->last.finish, SCHED_ABORT);
        assert_true(stats(&g).wasted_rows > 0);
        assert_in_range(stats(&g).slots_cached,
                        5 + (q->last.completion_tokens ? q->last.completion_tokens - 1 : 0),
                        5 + q->last.completion_tokens);
        rig_idle(&g);
        rig_close(&g);
    }
}

/* The last token drawn needs no slot: a prompt of p and m new tokens take p + m - 1.  Two of ten fit a pool of twenty side by side, of eleven they do not. */
static void admission_is_exact(void **state)
{
    (void)state;
    for (int32_t more = 0; more < 2; more++) {
        static const int32_t a[] = {1, 2, 3, 4, 5}, b[] = {6, 7, 8, 9, 10};
        sched_options o = rig_options();
        o.n_slots = 20;
        rig g;
        rig_open(&g, &(fake_config){.eos = -1}, &o);
        ask_ids(&g, a, 5, 6);
        ask_ids(&g, b, 5, 6 + more);
        rig_step(&g);
        assert_int_equal(stats(&g).running, 2 - more);
        assert_int_equal(stats(&g).waiting, more);
        rig_run(&g);
        assert_int_equal(g.n_done, 2);
        rig_idle(&g);
        rig_close(&g);
    }
}

/* Either half of a salt keeps prompts apart. */
static void both_halves_of_a_salt_count(void **state)
{
    (void)state;
    static const uint64_t salts[][2] = {
        {0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, UINT64_C(1) << 63}, {UINT64_C(1) << 63, 0}};
    int32_t ids[30], n = 30;
    const int32_t *p = ids;
    for (int32_t i = 0; i < n; i++) ids[i] = i;
    rig g;
    rig_open(&g, NULL, NULL);
    for (int again = 0; again < 2; again++)
        for (size_t i = 0; i < sizeof salts / sizeof *salts; i++) {
            sched_request r = rig_request(&p, &n, 3);
            memcpy(r.salt, salts[i], sizeof r.salt);
            uint64_t id = rig_submit(&g, &r);
            rig_run(&g);
            assert_int_equal(rig_of(&g, id, 0)->last.cached_tokens, again ? n - 1 : 0);
        }
    rig_idle(&g);
    rig_close(&g);
}

/* Two stops that begin together, inside one token: the first of the list is the one. */
static void of_stops_that_begin_together_the_first_listed_wins(void **state)
{
    (void)state;
    static const char *const both[][2] = {{"7,", "7"}, {"7", "7,"}};
    int32_t six = '6', n = 1;
    const int32_t *p = &six;
    rig g;
    rig_open(&g, &(fake_config){.rule = FAKE_CHAIN}, NULL); /* 6 is followed by one token, "7, 8" */
    for (int k = 0; k < 2; k++) {
        sched_request r = rig_request(&p, &n, 10);
        r.include_stop = true;
        for (r.n_stops = 0; r.n_stops < 2; r.n_stops++) {
            r.stops[r.n_stops] = both[k][r.n_stops];
            r.stop_lens[r.n_stops] = strlen(both[k][r.n_stops]);
        }
        uint64_t id = rig_submit(&g, &r);
        rig_run(&g);
        rig_text(&g, id, 0, both[k][0], SCHED_STOP);
        assert_int_equal(rig_of(&g, id, 0)->last.stop_string, 0);
    }
    rig_idle(&g);
    rig_close(&g);
}

static void add_segments(void *user, const model_plan *p) { *(int32_t *)user += p->n_segments; }

/* What is left of a prompt goes down the absorbed path up to the limit and with it, and not beyond. */
static void the_absorbed_limit_is_within(void **state)
{
    (void)state;
    for (int32_t n = 1; n < 10; n++) {
        int32_t ids[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, segments = 0;
        sched_options o = rig_options();
        o.absorb_extend = 5;
        rig g;
        rig_open(&g, NULL, &o);
        fake_model_on_plan(g.m, add_segments, &segments);
        ask_ids(&g, ids, n, 4);
        rig_run(&g);
        assert_int_equal(segments, n > 5);
        rig_idle(&g);
        rig_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edits_of_the_dead_take_no_room),
        cmocka_unit_test(a_scored_row_without_a_finite_logit_is_an_error),
        cmocka_unit_test(poisoned_rows_are_not_cached),
        cmocka_unit_test(a_taken_command_is_not_idleness),
        cmocka_unit_test(rows_of_unknown_tokens_are_not_cached),
        cmocka_unit_test(admission_is_exact),
        cmocka_unit_test(both_halves_of_a_salt_count),
        cmocka_unit_test(of_stops_that_begin_together_the_first_listed_wins),
        cmocka_unit_test(the_absorbed_limit_is_within),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
