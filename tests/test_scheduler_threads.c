/* test_scheduler_threads - the engine's own thread among callers: submits and cancels from many threads, bursts, round trips that would show a lost
 * wake-up, idleness without spinning (D16's half that is the scheduler's), debug commands and stops at any moment.  Meant for the thread sanitizer too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

#include "tests/support/sched_rig.h"

enum { N_CALLERS = 6, EACH = 60, PROMPT = 40 };

static void nap_us(int64_t us)
{
    struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void open_started(rig *g, const fake_config *f, const sched_options *o)
{
    rig_open(g, f, o);
    assert_int_equal(sched_start(g->s), LTD_OK);
}

/* With the thread, idleness comes a moment after the last event. */
static void wait_idle(rig *g)
{
    sched_stats st;
    for (int k = 0; k < 10000; k++) {
        sched_get_stats(g->s, &st);
        if (st.idle) break;
        nap_us(1000);
    }
    rig_idle(g);
}

/* ---------------------------------------------------------------- many callers */

typedef struct caller {
    rig *g;
    pthread_t thread;
    uint32_t seed;
    int32_t prompts[EACH][PROMPT], lens[EACH];
    const int32_t *ptrs[EACH];
    sched_request r[EACH];
    uint64_t id[EACH];
    bool cancelled[EACH];
    int32_t n; /* taken */
} caller;

static uint32_t rnd(caller *c, uint32_t n)
{
    c->seed = c->seed * 1664525u + 1013904223u;
    return (c->seed >> 8) % n;
}

static void *call(void *arg)
{
    caller *c = arg;
    for (int k = 0; k < EACH; k++) {
        c->lens[k] = 1 + (int32_t)rnd(c, PROMPT);
        for (int32_t i = 0; i < c->lens[k]; i++) c->prompts[k][i] = (int32_t)rnd(c, rnd(c, 3) ? 3 : 256);
        c->ptrs[k] = c->prompts[k];
        c->r[k] = rig_request(&c->ptrs[k], &c->lens[k], 1 + (int32_t)rnd(c, 30));
        c->r[k].n = 1 + (int32_t)rnd(c, 2);
        ltd_err err;
        ltd_status st = sched_submit(c->g->s, &c->r[k], &c->id[k], &err);
        if (st == LTD_STOPPING || st == LTD_DEVICE) break;
        LTD_CHECK(st == LTD_OK, "submit: %s", err.text);
        c->n = k + 1;
        if (rnd(c, 3) == 0) {
            nap_us(rnd(c, 3000));
            c->cancelled[k] = true;
            sched_cancel(c->g->s, c->id[k], SCHED_CANCEL_CLIENT);
        }
        if (rnd(c, 10) == 0) nap_us(rnd(c, 2000));
    }
    return NULL;
}

static caller *callers_start(rig *g)
{
    caller *c = ltd_calloc(N_CALLERS, sizeof *c);
    for (uint32_t i = 0; i < N_CALLERS; i++) {
        c[i].g = g;
        c[i].seed = i * 77 + 5;
        assert_int_equal(pthread_create(&c[i].thread, NULL, call, &c[i]), 0);
    }
    return c;
}

static int64_t callers_join(caller *c)
{
    int64_t n = 0;
    for (int i = 0; i < N_CALLERS; i++) {
        pthread_join(c[i].thread, NULL);
        n += c[i].n;
    }
    return n;
}

/* aborted: by more than their own cancel. */
static void check_survivors(rig *g, const caller *c, bool aborted)
{
    static rig_expect e;
    for (int i = 0; i < N_CALLERS; i++)
        for (int k = 0; k < c[i].n; k++)
            for (int32_t q = 0; q < c[i].r[k].n; q++) {
                const rig_seq *got = rig_of(g, c[i].id[k], q);
                if ((aborted || c[i].cancelled[k]) && got->last.finish == SCHED_ABORT) continue;
                rig_expected(g, &c[i].r[k], 0, &e);
                assert_string_equal(got->text.data ? got->text.data : "", e.text.data ? e.text.data : "");
                assert_int_equal(got->last.finish, e.finish);
                ltd_buf_deinit(&e.text);
            }
}

static void many_callers_get_what_they_would_alone(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        fake_config f = {.timing = FAKE_THREAD, .step_us = k & 1 ? 0 : 100};
        sched_options o = rig_options();
        o.overlap = k & 2;
        o.max_queued = N_CALLERS * EACH;
        o.n_slots = 1000;
        rig g;
        open_started(&g, &f, &o);
        caller *c = callers_start(&g);
        int64_t n = callers_join(c);
        assert_int_equal(n, N_CALLERS * EACH);
        rig_wait(&g, n);
        wait_idle(&g);
        check_survivors(&g, c, false);
        rig_close(&g);
        ltd_free(c);
    }
}

static void a_burst_is_handled_whole(void **state)
{
    (void)state;
    sched_options o = rig_options();
    o.max_queued = 1000;
    o.check_every_step = false;
    rig g;
    open_started(&g, &(fake_config){.rule = FAKE_CHAIN, .timing = FAKE_THREAD}, &o);
    uint64_t id[1000];
    for (int k = 0; k < 1000; k++) id[k] = rig_ask(&g, "X", 10, NULL);
    for (int k = 1; k < 1000; k += 2) sched_cancel(g.s, id[k], SCHED_CANCEL_CLIENT);
    rig_wait(&g, 1000);
    for (int k = 0; k < 1000; k += 2) rig_text(&g, id[k], 0, "YZ", SCHED_STOP);
    wait_idle(&g);
    rig_close(&g);
}

/* ---------------------------------------------------------------- sleeping and waking */

static void no_wake_up_is_lost(void **state)
{
    (void)state;
    for (int timing = FAKE_LAZY; timing <= FAKE_THREAD; timing++) {
        rig g;
        open_started(&g, &(fake_config){.rule = FAKE_CHAIN, .timing = (fake_timing)timing}, NULL);
        for (int k = 0; k < 1000; k++) {
            rig_ask(&g, "Y", 5, NULL);
            rig_wait(&g, k + 1);
        }
        wait_idle(&g);
        rig_close(&g);
    }
}

static void an_idle_engine_does_not_spin(void **state)
{
    (void)state;
    rig g;
    open_started(&g, &(fake_config){.rule = FAKE_CHAIN, .timing = FAKE_THREAD}, NULL);
    rig_ask(&g, "A", 5, NULL);
    rig_wait(&g, 1);
    double before = cpu_s();
    nap_us(400000);
    assert_true(cpu_s() - before < 0.02);
    rig_ask(&g, "A", 5, NULL); /* and still wakes */
    rig_wait(&g, 2);
    rig_close(&g);
}

static void the_engine_wakes_for_a_deadline(void **state)
{
    (void)state;
    sched_options o = rig_options();
    o.max_running = 1;
    o.queue_timeout_us = 50000;
    rig g;
    open_started(&g, &(fake_config){.rule = FAKE_CHAIN, .timing = FAKE_THREAD, .step_us = 1000}, &o);
    ltd_buf out = {0};
    assert_int_equal(sched_debug(g.s, SCHED_DEBUG_SLEEP, 100000, &out),
                     LTD_OK); /* nothing but the clock will move it */
    int64_t t0 = ltd_now_us();
    uint64_t id = rig_ask(&g, "a", 5, NULL);
    rig_wait(&g, 1);
    assert_in_range(ltd_now_us() - t0, 45000, 5000000);
    assert_int_equal(rig_of(&g, id, 0)->last.finish, SCHED_ABORT);
    rig_close(&g);
}

/* ---------------------------------------------------------------- stops and faults */

static void a_stop_ends_all_that_was_taken(void **state)
{
    (void)state;
    for (int k = 0; k < 10; k++) {
        sched_options o = rig_options();
        o.max_queued = N_CALLERS * EACH;
        rig g;
        open_started(&g, &(fake_config){.timing = FAKE_THREAD, .step_us = 200}, &o);
        caller *c = callers_start(&g);
        nap_us(2000 * k);
        if (k & 1) sched_drain(g.s);
        sched_stop(g.s);
        int64_t n = callers_join(c);
        pthread_mutex_lock(&g.lock);
        assert_int_equal(g.n_done, n);
        pthread_mutex_unlock(&g.lock);
        check_survivors(&g, c, true);
        rig_idle(&g);
        rig_close(&g);
        ltd_free(c);
    }
}

static void *ask_debug(void *arg)
{
    rig *g = arg;
    for (;;) {
        ltd_buf out = {0};
        ltd_status st = sched_debug(g->s, SCHED_DEBUG_CHECK, 0, &out);
        ltd_buf_deinit(&out);
        if (st == LTD_STOPPING) return NULL;
        LTD_CHECK(st == LTD_OK, "check: %s", ltd_status_name(st));
        sched_stats stats;
        sched_get_stats(g->s, &stats);
        pthread_mutex_lock(&g->lock);
        bool enough = g->n_done >= 200;
        pthread_mutex_unlock(&g->lock);
        if (enough) return NULL;
    }
}

static void debug_commands_run_between_steps(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        rig g;
        pthread_t t[3];
        sched_options o = rig_options();
        o.max_queued = 300;
        open_started(&g, &(fake_config){.timing = FAKE_THREAD}, &o);
        for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&t[i], NULL, ask_debug, &g), 0);
        for (int i = 0; i < 200; i++) rig_ask(&g, "anything at all", 20, NULL);
        rig_wait(&g, 200);
        for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
        sched_stop(g.s);
        rig_idle(&g);
        rig_close(&g);
    }
}

static void a_fault_under_load_reaches_everybody(void **state)
{
    (void)state;
    for (int64_t at = 1; at < 60; at += 7) {
        sched_options o = rig_options();
        o.max_queued = N_CALLERS * EACH;
        rig g;
        open_started(&g, &(fake_config){.timing = FAKE_THREAD, .step_us = 50, .fail_step = at}, &o);
        caller *c = callers_start(&g);
        int64_t n = callers_join(c);
        rig_wait(&g, n);
        sched_stats st;
        sched_get_stats(g.s, &st);
        assert_true(st.faulted);
        sched_stop(g.s);
        rig_close(&g);
        ltd_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_callers_get_what_they_would_alone),
        cmocka_unit_test(a_burst_is_handled_whole),
        cmocka_unit_test(no_wake_up_is_lost),
        cmocka_unit_test(an_idle_engine_does_not_spin),
        cmocka_unit_test(the_engine_wakes_for_a_deadline),
        cmocka_unit_test(a_stop_ends_all_that_was_taken),
        cmocka_unit_test(debug_commands_run_between_steps),
        cmocka_unit_test(a_fault_under_load_reaches_everybody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
