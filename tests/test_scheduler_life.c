/* test_scheduler_life - requests from submit to release, by hand on a clock of its own: queue limits, cancels in every phase, deadlines, device
 * faults, drain and stop, debug commands.  D14's and D27's half that is the scheduler's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/scheduler_private.h"
#include "tests/support/sched_rig.h"

static sched_stats stats(rig *g)
{
    sched_stats st;
    sched_get_stats(g->s, &st);
    return st;
}

static void a_full_queue_refuses(void **state)
{
    (void)state;
    sched_options o = rig_options();
    o.max_queued = 3;
    o.max_running = 2;
    rig g;
    rig_open(&g, NULL, &o);
    int32_t a = 'a', n = 1;
    const int32_t *p = &a;
    uint64_t id;
    ltd_err err;
    sched_request r = rig_request(&p, &n, 5);
    for (int k = 0; k < 3; k++) assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_OK);
    assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_FULL); /* also before the engine has seen them */
    rig_step(&g);                                                 /* two run, one waits */
    assert_int_equal(stats(&g).waiting, 1);
    assert_int_equal(stats(&g).running, 2);
    assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_OK);
    assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_OK);
    assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_FULL);
    sched_cancel(g.s, id, SCHED_CANCEL_CLIENT);
    rig_step(&g);
    assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_OK);
    rig_run(&g);
    assert_int_equal(g.n_done, 6);
    assert_int_equal(stats(&g).requests, 6);
    rig_idle(&g);
    rig_close(&g);
}

static void a_malformed_request_is_refused(void **state)
{
    (void)state;
    rig g;
    rig_open(&g, NULL, NULL);
    int32_t ids[] = {1}, n = 0;
    const int32_t *p = ids;
    uint64_t id;
    ltd_err err;
    sched_request r = rig_request(&p, &n, 5);
    assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_INVALID);
    n = 1;
    r.stops[0] = "";
    r.n_stops = 1;
    assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_INVALID);
    r.n_stops = 0;
    r.n = 0;
    assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_INVALID);
    r.n = 1;
    r.n_prompts = 0;
    assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_INVALID);
    rig_idle(&g);
    rig_close(&g);
}

static void the_head_of_the_queue_is_not_overtaken(void **state)
{
    (void)state;
    sched_options o = rig_options();
    o.n_slots = 100;
    rig g;
    rig_open(&g, NULL, &o);
    char big[71];
    memset(big, 'q', 70);
    big[70] = 0;
    uint64_t first = rig_ask(&g, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", 20, NULL),
             second = rig_ask(&g, big, 20, NULL), third = rig_ask(&g, "x", 1, NULL);
    while (!rig_ended(&g, first)) {
        assert_false(rig_ended(&g, third));
        rig_step(&g);
    }
    rig_run(&g);
    assert_true(rig_ended(&g, second) && rig_ended(&g, third));
    rig_close(&g);
}

/* ---------------------------------------------------------------- cancels */

static void d14_a_cancel_in_any_phase_frees_everything(void **state)
{
    (void)state;
    enum { UNSEEN, QUEUED, PREFILL, DECODE, N_PHASES };
    for (int phase = UNSEEN; phase < N_PHASES; phase++)
        for (int in_flight = 1; in_flight <= 2; in_flight++) {
            fake_config f = {.rule = FAKE_CHAIN, .timing = FAKE_MANUAL};
            sched_options o = rig_options();
            o.max_running = 2;
            o.chunk_rows = 8;
            rig g;
            rig_open(&g, &f, &o);
            char prompt[101] = "a";
            if (phase != DECODE) memset(prompt, 'a', 100);
            uint64_t neighbour = rig_ask(&g, "a", 6, NULL),
                     extra = phase == QUEUED ? rig_ask(&g, "a", 6, NULL) : neighbour;
            uint64_t id = rig_ask(&g, prompt, 1000, NULL);
            fake_model_complete(g.m, 3);
            while (phase != UNSEEN && g.s->launched < 3 + in_flight) rig_step(&g); /* three are applied */
            sched_cancel(g.s, id, SCHED_CANCEL_CLIENT);
            sched_cancel(g.s, id, SCHED_CANCEL_CLIENT);
            sched_cancel(g.s, 999, SCHED_CANCEL_CLIENT); /* unknown: ignored */
            rig_step(&g);
            assert_true(
                rig_ended(&g, id)); /* at once; its slots come back with the last step that names it */
            assert_int_equal(rig_of(&g, id, 0)->last.finish, SCHED_ABORT);
            fake_model_complete(g.m, 10000);
            rig_run(&g);
            rig_text(&g, neighbour, 0, "aaaaaa", SCHED_LENGTH);
            rig_text(&g, extra, 0, "aaaaaa", SCHED_LENGTH);
            rig_idle(&g);
            rig_close(&g);
        }
}

static void slots_come_back_with_the_last_step_that_names_them(void **state)
{
    (void)state;
    fake_config f = {.rule = FAKE_CHAIN, .timing = FAKE_MANUAL};
    sched_options o = rig_options();
    o.radix_cache = false;
    rig g;
    rig_open(&g, &f, &o);
    uint64_t id = rig_ask(&g, "a", 100, NULL);
    rig_step(&g);
    rig_step(&g); /* two steps in flight */
    assert_int_equal(g.s->launched, 2);
    int32_t total = stats(&g).slots_total;
    sched_cancel(g.s, id, SCHED_CANCEL_CLIENT);
    rig_step(&g);
    assert_true(rig_ended(&g, id));
    assert_int_equal(stats(&g).slots_free, total - 2);
    fake_model_complete(g.m, 1);
    rig_step(&g);
    assert_int_equal(stats(&g).slots_free, total - 2);
    assert_false(stats(&g).idle);
    fake_model_complete(g.m, 1);
    rig_step(&g);
    assert_int_equal(stats(&g).slots_free, total);
    rig_run(&g);
    rig_idle(&g);
    rig_close(&g);
}

static void cancelling_a_group_ends_each_of_its_sequences(void **state)
{
    (void)state;
    sched_options o = rig_options();
    o.max_running = 3; /* of six: some run, some wait */
    rig g;
    rig_open(&g, NULL, &o);
    int32_t a[] = {1, 2, 3}, b[] = {4, 5}, lens[] = {3, 2};
    const int32_t *p[] = {a, b};
    sched_request r = rig_request(p, lens, 50);
    r.n_prompts = 2;
    r.n = 3;
    r.ignore_eos = true;
    uint64_t id = rig_submit(&g, &r), next = rig_ask(&g, "a", 3, NULL);
    for (int k = 0; k < 9; k++) rig_step(&g);
    assert_int_equal(stats(&g).running, 3);
    sched_cancel(g.s, id, SCHED_CANCEL_SLOW_READER);
    rig_step(&g);
    for (int32_t k = 0; k < 6; k++) assert_int_equal(rig_of(&g, id, k)->last.finish, SCHED_ABORT);
    assert_int_equal(stats(&g).finished[SCHED_ABORT], 6);
    rig_run(&g);
    assert_true(rig_ended(&g, next));
    rig_idle(&g);
    rig_close(&g);
}

static void d27_every_way_to_end_gives_every_slot_back(void **state)
{
    (void)state;
    fake_config f = {.rule = FAKE_CHAIN};
    for (int overlap = 0; overlap < 2; overlap++) {
        sched_options o = rig_options();
        o.overlap = overlap;
        o.max_queued = 500;
        o.n_slots = 3000;
        rig g;
        rig_open(&g, &f, &o);
        uint64_t abort[150];
        char prompt[80];
        for (int k = 0; k < 50; k++) {
            memset(prompt, 'a', sizeof prompt - 1);
            prompt[sizeof prompt - 1] = 0;
            prompt[0] = (char)('0' + k);
            rig_ask(&g, "R", 100, NULL); /* a normal end */
            rig_ask(&g, "Z", 100, NULL); /* at the first token */
            rig_ask(&g, "A", 100, "DE"); /* a stop string */
            rig_ask(&g, "equal prompts of one", 5, NULL);
            abort[3 * k] = rig_ask(&g, prompt, 1000, NULL);
            prompt[1] = 'x';
            abort[3 * k + 1] = rig_ask(&g, prompt, 1000, NULL);
            abort[3 * k + 2] = rig_ask(&g, "a", 1000, NULL);
            sched_cancel(g.s, abort[3 * k], SCHED_CANCEL_CLIENT); /* queued */
            rig_step(&g);
            if (k) sched_cancel(g.s, abort[3 * k - 2], SCHED_CANCEL_CLIENT);
            if (k) sched_cancel(g.s, abort[3 * k - 1], SCHED_CANCEL_CLIENT);
        }
        sched_cancel(g.s, abort[148], SCHED_CANCEL_CLIENT);
        for (int k = 0; k < 5; k++) rig_step(&g);
        sched_cancel(g.s, abort[149], SCHED_CANCEL_CLIENT);
        rig_run(&g);
        sched_stats st = stats(&g);
        assert_int_equal(st.finished[SCHED_STOP] + st.finished[SCHED_LENGTH], 200);
        assert_int_equal(st.finished[SCHED_ABORT], 150);
        rig_idle(&g);
        ltd_buf out = {0};
        assert_int_equal(sched_debug(g.s, SCHED_DEBUG_FLUSH, 0, &out), LTD_OK);
        ltd_buf_deinit(&out);
        assert_int_equal(stats(&g).slots_free, stats(&g).slots_total);
        rig_idle(&g);
        rig_close(&g);
    }
}

/* ---------------------------------------------------------------- time */

static void deadlines_end_a_group_wherever_it_is(void **state)
{
    (void)state;
    fake_config f = {.rule = FAKE_CHAIN};
    sched_options o = rig_options();
    o.max_running = 2;
    rig g;
    rig_open(&g, &f, &o);
    int32_t a = 'a', n = 1;
    const int32_t *p = &a;
    sched_request r = rig_request(&p, &n, 3000);
    uint64_t id[4];
    for (int k = 0; k < 4; k++) { /* two run, two wait; the last of each is the first to go */
        r.deadline_us = g.now_us + 100000 - 20000 * k;
        id[k] = rig_submit(&g, &r);
    }
    r.deadline_us = g.now_us + 10000;
    uint64_t cancelled = rig_submit(&g, &r);
    sched_cancel(g.s, cancelled, SCHED_CANCEL_CLIENT); /* its deadline goes with it */
    int64_t start = g.now_us;
    for (int k = 3; k >= 0; k--) {
        while (!rig_ended(&g, id[k])) rig_step(&g);
        assert_int_equal(rig_of(&g, id[k], 0)->last.finish, SCHED_ABORT);
        assert_int_equal(g.now_us - start, 100000 - 20000 * k);
        assert_int_equal(g.n_done, 5 - k);
    }
    assert_true(rig_of(&g, id[0], 0)->last.completion_tokens > 30);
    assert_int_equal(rig_of(&g, id[3], 0)->last.completion_tokens, 0);
    rig_run(&g);
    rig_idle(&g);
    rig_close(&g);
}

static void the_engine_says_when_to_wake_it(void **state)
{
    (void)state;
    fake_config f = {.rule = FAKE_CHAIN, .timing = FAKE_EAGER};
    sched_options o = rig_options();
    o.queue_timeout_us = 50000;
    rig g;
    rig_open(&g, &f, &o);
    int64_t wake;
    assert_int_equal(sched_step(g.s, 1, &wake), LTD_AGAIN);
    assert_int_equal(wake, 0);
    ltd_buf out = {0};
    assert_int_equal(sched_debug(g.s, SCHED_DEBUG_SLEEP, 80, &out), LTD_OK);
    uint64_t id = rig_ask(&g, "a", 3, NULL);
    assert_int_equal(sched_step(g.s, 1000, &wake), LTD_OK); /* took the command */
    assert_int_equal(sched_step(g.s, 2000, &wake), LTD_AGAIN);
    assert_int_equal(wake, 51000); /* the queue's time-out comes before the sleep's end */
    assert_int_equal(sched_step(g.s, 50999, &wake), LTD_AGAIN);
    assert_false(rig_ended(&g, id));
    sched_step(g.s, 51000, &wake);
    assert_true(rig_ended(&g, id));
    assert_int_equal(rig_of(&g, id, 0)->last.finish, SCHED_ABORT);
    assert_int_equal(rig_of(&g, id, 0)->last.queued_us, 50000);
    assert_int_equal(sched_step(g.s, 60000, &wake), LTD_AGAIN);
    assert_int_equal(wake, 80001);
    id = rig_ask(&g, "a", 3, NULL);
    g.now_us = 90000;
    rig_run(&g);
    rig_text(&g, id, 0, "aaa", SCHED_LENGTH);
    rig_idle(&g);
    rig_close(&g);
}

static void an_admitted_group_is_past_the_queue_timeout(void **state)
{
    (void)state;
    sched_options o = rig_options();
    o.queue_timeout_us = 20000;
    o.max_running = 1;
    rig g;
    rig_open(&g, &(fake_config){.rule = FAKE_CHAIN}, &o);
    uint64_t runs = rig_ask(&g, "a", 100, NULL), waits = rig_ask(&g, "a", 100, NULL);
    rig_run(&g);
    assert_int_equal(rig_of(&g, runs, 0)->last.finish, SCHED_LENGTH);
    assert_int_equal(rig_of(&g, waits, 0)->last.finish, SCHED_ABORT);
    rig_close(&g);
}

static void times_are_those_of_the_results(void **state)
{
    (void)state;
    fake_config f = {.rule = FAKE_CHAIN, .timing = FAKE_MANUAL};
    rig g;
    int64_t wake;
    rig_open(&g, &f, NULL);
    uint64_t id = rig_ask(&g, "a", 2, NULL);
    sched_step(g.s, 1000, &wake);
    sched_step(g.s, 2000, &wake); /* two steps in flight */
    fake_model_complete(g.m, 1);
    sched_step(g.s, 70000, &wake);
    assert_int_equal(rig_of(&g, id, 0)->last.queued_us, 0);
    assert_int_equal(rig_of(&g, id, 0)->last.first_token_us, 69000);
    fake_model_complete(g.m, 5);
    rig_run(&g);
    rig_close(&g);
}

/* ---------------------------------------------------------------- faults, drain, stop */

static void a_lost_device_ends_everything_with_an_error(void **state)
{
    (void)state;
    for (int64_t at = 1; at < 12; at++)
        for (int overlap = 0; overlap < 2; overlap++) {
            fake_config f = {.fail_step = at};
            sched_options o = rig_options();
            o.overlap = overlap;
            o.max_running = 4;
            o.chunk_rows = 8;
            rig g;
            rig_open(&g, &f, &o);
            uint64_t id[8];
            for (int k = 0; k < 8; k++) id[k] = rig_ask(&g, "a prompt of some length, in chunks", 40, NULL);
            sched_cancel(g.s, id[1], SCHED_CANCEL_CLIENT);
            ltd_status st = LTD_OK;
            for (int k = 0; k < 100 && st != LTD_DEVICE; k++) {
                st = rig_step(&g);
                if (k == 4)
                    sched_cancel(g.s, id[2], SCHED_CANCEL_CLIENT); /* may be in flight when the device goes */
            }
            assert_int_equal(st, LTD_DEVICE);
            for (int k = 0; k < 8; k++) {
                assert_true(rig_ended(&g, id[k]));
                if (k != 1 && k != 2) assert_int_equal(rig_of(&g, id[k], 0)->last.finish, SCHED_ERROR);
            }
            assert_true(stats(&g).faulted);
            int32_t a = 'a', n = 1;
            const int32_t *p = &a;
            uint64_t late;
            ltd_err err;
            sched_request r = rig_request(&p, &n, 5);
            assert_int_equal(sched_submit(g.s, &r, &late, &err), LTD_DEVICE);
            assert_int_equal(rig_step(&g), LTD_DEVICE);
            rig_idle(&g);
            rig_close(&g);
        }
}

static void drain_takes_no_more_and_finishes_what_is_there(void **state)
{
    (void)state;
    sched_options o = rig_options();
    o.max_running = 1;
    rig g;
    rig_open(&g, &(fake_config){.rule = FAKE_CHAIN}, &o);
    uint64_t runs = rig_ask(&g, "a", 20, NULL), waits = rig_ask(&g, "A", 3, NULL), late;
    rig_step(&g);
    sched_drain(g.s);
    int32_t a = 'a', n = 1;
    const int32_t *p = &a;
    ltd_err err;
    sched_request r = rig_request(&p, &n, 5);
    assert_int_equal(sched_submit(g.s, &r, &late, &err), LTD_STOPPING);
    assert_false(stats(&g).idle);
    rig_run(&g);
    rig_text(&g, runs, 0, "aaaaaaaaaaaaaaaaaaaa", SCHED_LENGTH);
    rig_text(&g, waits, 0, "BCD", SCHED_LENGTH);
    assert_true(stats(&g).idle);
    rig_close(&g);
}

static void stop_cancels_what_is_left(void **state)
{
    (void)state;
    for (int steps = 0; steps < 8; steps++) {
        sched_options o = rig_options();
        o.max_running = 2;
        rig g;
        rig_open(&g, NULL, &o);
        uint64_t id[5];
        for (int k = 0; k < 4; k++) id[k] = rig_ask(&g, "something", 200, NULL);
        for (int k = 0; k < steps; k++) rig_step(&g);
        id[4] = rig_ask(&g, "not even seen", 200, NULL);
        sched_stop(g.s);
        for (int k = 0; k < 5; k++) {
            assert_true(rig_ended(&g, id[k]));
            assert_int_equal(rig_of(&g, id[k], 0)->last.finish, SCHED_ABORT);
        }
        rig_idle(&g);
        sched_stop(g.s);
        rig_close(&g);
    }
}

static void a_refused_take_only_delays(void **state)
{
    (void)state;
    for (int nth = 1; nth < 12; nth++) {
        rig g;
        rig_open(&g, &(fake_config){.rule = FAKE_CHAIN}, NULL);
        ltd_buf out = {0};
        assert_int_equal(sched_debug(g.s, SCHED_DEBUG_FAIL_TAKE, nth, &out), LTD_OK);
        uint64_t id = rig_ask(&g, "XYZABCD", 5, NULL), other = rig_ask(&g, "A", 3, NULL);
        rig_run(&g);
        rig_text(&g, id, 0, "EFGHI", SCHED_LENGTH);
        rig_text(&g, other, 0, "BCD", SCHED_LENGTH);
        rig_idle(&g);
        rig_close(&g);
    }
}

static void debug_checks_dumps_and_flushes(void **state)
{
    (void)state;
    rig g;
    rig_open(&g, &(fake_config){.rule = FAKE_CHAIN}, NULL);
    rig_ask(&g, "ABCDEF", 5, NULL);
    rig_run(&g);
    ltd_buf out = {0};
    assert_int_equal(sched_debug(g.s, SCHED_DEBUG_DUMP, 0, &out), LTD_OK);
    assert_true(out.len > 0);
    assert_int_equal(sched_debug(g.s, SCHED_DEBUG_CHECK, 0, &out), LTD_OK);
    assert_true(stats(&g).slots_cached > 0);
    assert_int_equal(sched_debug(g.s, SCHED_DEBUG_FLUSH, 0, &out), LTD_OK);
    assert_int_equal(stats(&g).slots_cached, 0);
    ltd_buf_deinit(&out);
    rig_idle(&g);
    rig_close(&g);
}

static void without_a_tree_everything_works_and_nothing_is_cached(void **state)
{
    (void)state;
    sched_options o = rig_options();
    o.radix_cache = false;
    o.n_slots = 60;
    rig g;
    rig_open(&g, &(fake_config){.rule = FAKE_CHAIN}, &o);
    uint64_t id[10];
    for (int k = 0; k < 10; k++) id[k] = rig_ask(&g, "ABCDEFG", 10, NULL);
    rig_run(&g);
    for (int k = 0; k < 10; k++) {
        rig_text(&g, id[k], 0, "HIJKLMNOPQ", SCHED_LENGTH);
        assert_int_equal(rig_of(&g, id[k], 0)->last.cached_tokens, 0);
    }
    assert_int_equal(stats(&g).slots_free, 60);
    rig_idle(&g);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(a_malformed_request_is_refused),
        cmocka_unit_test(the_head_of_the_queue_is_not_overtaken),
        cmocka_unit_test(d14_a_cancel_in_any_phase_frees_everything),
        cmocka_unit_test(slots_come_back_with_the_last_step_that_names_them),
        cmocka_unit_test(cancelling_a_group_ends_each_of_its_sequences),
        cmocka_unit_test(d27_every_way_to_end_gives_every_slot_back),
        cmocka_unit_test(deadlines_end_a_group_wherever_it_is),
        cmocka_unit_test(the_engine_says_when_to_wake_it),
        cmocka_unit_test(an_admitted_group_is_past_the_queue_timeout),
        cmocka_unit_test(times_are_those_of_the_results),
        cmocka_unit_test(a_lost_device_ends_everything_with_an_error),
        cmocka_unit_test(drain_takes_no_more_and_finishes_what_is_there),
        cmocka_unit_test(stop_cancels_what_is_left),
        cmocka_unit_test(a_refused_take_only_delays),
        cmocka_unit_test(debug_checks_dumps_and_flushes),
        cmocka_unit_test(without_a_tree_everything_works_and_nothing_is_cached),
    };
    log_start(&(log_config){.level = LOG_ERROR, .fd = 2});
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    log_stop();
    return failed;
}
