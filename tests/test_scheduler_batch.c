/* test_scheduler_batch - what goes into a step: chunks, shares of several prompts, prefix reuse, duplicates, admission by slots, n choices, two steps in
 * flight.  D23, D24, D26, D28; D21's and D11's half that is the scheduler's (the parameters that rows carry). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/scheduler_private.h"
#include "tests/support/sched_rig.h"

static int32_t ids_of(int32_t *out, int32_t n, int32_t seed)
{
    for (int32_t i = 0; i < n; i++) out[i] = (i * 31 + seed * 97 + i / 11) % 256;
    return n;
}

static uint64_t ask_ids(rig *g, const int32_t *ids, int32_t n, int32_t max_tokens)
{
    sched_request r = rig_request(&ids, &n, max_tokens);
    r.n_logprobs = 0;
    r.ignore_eos = true;
    return rig_submit(g, &r);
}

static void as_alone(rig *g, uint64_t id, const int32_t *ids, int32_t n, int32_t max_tokens)
{
    static rig_expect e;
    sched_request r = rig_request(&ids, &n, max_tokens);
    r.ignore_eos = true;
    rig_expected(g, &r, 0, &e);
    const rig_seq *q = rig_of(g, id, 0);
    assert_int_equal(q->last.completion_tokens, e.n);
    assert_int_equal(q->last.finish, e.finish);
    assert_int_equal(q->n_ids, e.n);
    assert_memory_equal(q->ids, e.ids, sizeof *q->ids * (size_t)e.n);
    ltd_buf_deinit(&e.text);
}

/* ---------------------------------------------------------------- D23 */

static void d23_what_never_fits_is_refused_and_all_else_ends(void **state)
{
    (void)state;
    int32_t ids[128], n = ids_of(ids, 100, 1);
    const int32_t *p = ids;
    uint64_t id[20];
    ltd_err err;
    sched_options o = rig_options();
    o.n_slots = 64;
    rig g;
    rig_open(&g, NULL, &o);
    sched_request r = rig_request(&p, &n, 10);
    assert_int_equal(sched_submit(g.s, &r, &id[0], &err), LTD_TOO_LARGE);
    assert_non_null(strstr(err.text, "100"));
    assert_non_null(strstr(err.text, "64"));
    n = 64; /* prompt + 1 > slots */
    assert_int_equal(sched_submit(g.s, &r, &id[0], &err), LTD_TOO_LARGE);

    uint64_t small = ask_ids(&g, ids, 5, 4), large = ask_ids(&g, ids + 7, 40, 100);
    rig_run(&g);
    as_alone(&g, small, ids, 5, 4);
    as_alone(&g, large, ids + 7, 40, 100);
    assert_int_equal(rig_of(&g, large, 0)->last.finish, SCHED_LENGTH);
    assert_int_equal(rig_of(&g, large, 0)->last.completion_tokens,
                     25); /* 64 slots; the last token needs none */

    int32_t many[20][30];
    for (int32_t i = 0; i < 20; i++) {
        ids_of(many[i], 30, i + 5);
        id[i] = ask_ids(&g, many[i], 30, 10);
    }
    rig_run(&g);
    for (int32_t i = 0; i < 20; i++) as_alone(&g, id[i], many[i], 30, 10);
    rig_idle(&g);
    rig_close(&g);
}

static void running_sequences_never_lack_a_slot(void **state)
{
    (void)state;
    int32_t ids[16][20];
    uint64_t id[16];
    sched_options o = rig_options();
    o.n_slots = 130; /* three of 20 + 20 at once */
    rig g;
    rig_open(&g, NULL, &o);
    for (int32_t i = 0; i < 16; i++) {
        ids_of(ids[i], 20, i);
        id[i] = ask_ids(&g, ids[i], 20, 20);
    }
    int32_t most = 0;
    for (int k = 0; k < 2000; k++) {
        sched_stats st;
        rig_step(&g);
        sched_get_stats(g.s, &st);
        if (st.running > most) most = st.running;
        assert_true(g.s->reserved <= pool_slots_free(g.s->slots) + st.slots_cached - st.slots_locked);
    }
    assert_int_equal(most, 3);
    for (int32_t i = 0; i < 16; i++) as_alone(&g, id[i], ids[i], 20, 20);
    rig_idle(&g);
    rig_close(&g);
}

/* ---------------------------------------------------------------- D24 */

typedef struct watch {
    rig *g;
    uint64_t x, brief;
    int64_t last_step, worst_gap, first_brief, n_x;
    int32_t most_rows;
} watch;

static void watch_event(void *user, const sched_event *ev)
{
    watch *w = user;
    int64_t now = fake_model_stats(w->g->m).steps;
    if (ev->group == w->x) {
        if (w->last_step && now - w->last_step > w->worst_gap) w->worst_gap = now - w->last_step;
        w->last_step = now;
        w->n_x++;
    }
    if (ev->group == w->brief && !w->first_brief) w->first_brief = now;
}

static void watch_plan(void *user, const model_plan *p)
{
    watch *w = user;
    if (p->n_rows - p->n_absorbed > w->most_rows) w->most_rows = p->n_rows - p->n_absorbed;
}

static void d24_a_long_prompt_starves_neither_decodes_nor_newcomers(void **state)
{
    (void)state;
    enum { N = 16384 };
    static int32_t prompt[N];
    for (int32_t i = 0; i < N; i++) prompt[i] = (i * 7 + i / 100) % 256;
    for (int overlap = 0; overlap < 2; overlap++) {
        fake_config f = {.rule = FAKE_CHAIN, .context_length = 20000, .n_slots = 40000};
        sched_options o = rig_options();
        o.chunk_rows = 256;
        o.overlap = overlap;
        o.check_every_step = false;
        rig g;
        rig_open(&g, &f, &o);
        watch w = {.g = &g};
        g.user = &w;
        g.on_event = watch_event;
        fake_model_on_plan(g.m, watch_plan, &w);
        w.x = rig_ask(&g, "a", 10000, NULL);
        for (int k = 0; k < 10; k++) rig_step(&g);
        int64_t start = fake_model_stats(g.m).steps;
        uint64_t huge = ask_ids(&g, prompt, N, 2);
        while (fake_model_stats(g.m).steps < start + 5) rig_step(&g);
        int64_t asked = fake_model_stats(g.m).steps;
        w.brief = rig_ask(&g, "0123456789", 1, NULL);
        while (!rig_ended(&g, huge)) {
            assert_int_not_equal(rig_step(&g), LTD_AGAIN);
            assert_true(fake_model_stats(g.m).steps < start + 200);
        }
        assert_true(w.n_x > 60);
        assert_true(w.worst_gap <= 2);
        assert_true(w.first_brief && w.first_brief - asked <= 16);
        assert_true(fake_model_stats(g.m).steps - start <= N / 256 + 6);
        assert_true(w.most_rows <= 256);
        sched_cancel(g.s, w.x, SCHED_CANCEL_CLIENT);
        rig_run(&g);
        rig_idle(&g);
        rig_close(&g);
    }
}

static void the_oldest_prompt_gets_half_and_the_shortest_the_rest(void **state)
{
    (void)state;
    int32_t ids[4][200], len[4] = {200, 180, 40, 10};
    uint64_t id[4];
    sched_options o = rig_options();
    rig g;
    rig_open(&g, NULL, &o);
    for (int32_t i = 0; i < 4; i++) {
        ids_of(ids[i], len[i], i);
        id[i] = ask_ids(&g, ids[i], len[i], 3);
    }
    rig_step(&g);
    assert_int_equal(g.s->running->n_computed, 16); /* of 32 rows */
    assert_int_equal(g.s->running->next->n_computed, 0);
    assert_int_equal(g.s->running->next->next->n_computed, 6);
    assert_int_equal(g.s->running->next->next->next->n_computed, 10);
    rig_run(&g);
    for (int32_t i = 0; i < 4; i++) as_alone(&g, id[i], ids[i], len[i], 3);
    rig_close(&g);
}

/* ---------------------------------------------------------------- D26, D28, sharing */

static void d26_equal_prompts_of_one_batch_end_up_on_live_slots(void **state)
{
    (void)state;
    for (int32_t chunk = 3; chunk < 40; chunk += 6) {
        int32_t same[8], other[6][24];
        uint64_t id[2], more[6];
        sched_options o = rig_options();
        o.chunk_rows = chunk;
        o.n_slots = 120;
        rig g;
        rig_open(&g, NULL, &o);
        ids_of(same, 8, 3);
        for (int k = 0; k < 2; k++) id[k] = ask_ids(&g, same, 8, 30);
        int32_t dups = 0;
        for (int k = 0; k < 8; k++) {
            rig_step(&g);
            if (g.s->n_dups > dups) dups = g.s->n_dups;
        }
        if (chunk >= 16) assert_int_equal(dups, 8); /* both were computed, in one step */
        for (int32_t k = 0; k < 6; k++) {           /* these take over freed slots while the two decode on */
            ids_of(other[k], 24, k + 20);
            more[k] = ask_ids(&g, other[k], 24, 5);
        }
        rig_run(&g);
        for (int k = 0; k < 2; k++) as_alone(&g, id[k], same, 8, 30);
        for (int32_t k = 0; k < 6; k++) as_alone(&g, more[k], other[k], 24, 5);
        rig_idle(&g);
        rig_close(&g);
    }
}

static void d28_a_wholly_cached_prompt_computes_one_token(void **state)
{
    (void)state;
    static const int32_t lengths[] = {1, 2, 63, 64, 65, 128};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int32_t ids[128], n = lengths[i];
        rig g;
        rig_open(&g, NULL, NULL);
        ids_of(ids, n, 9);
        uint64_t cold = ask_ids(&g, ids, n, 10);
        rig_run(&g);
        uint64_t warm = ask_ids(&g, ids, n, 10);
        rig_run(&g);
        as_alone(&g, cold, ids, n, 10);
        as_alone(&g, warm, ids, n, 10);
        const rig_seq *a = rig_of(&g, cold, 0), *b = rig_of(&g, warm, 0);
        assert_memory_equal(a->logprobs, b->logprobs, sizeof *a->logprobs * 10);
        assert_int_equal(a->last.cached_tokens, 0);
        assert_int_equal(b->last.cached_tokens, n - 1);
        assert_int_equal(b->last.prompt_tokens, n);
        rig_idle(&g);
        rig_close(&g);
    }
}

static void a_second_turn_reuses_the_answer_if_it_may(void **state)
{
    (void)state;
    for (int reuse = 0; reuse < 2; reuse++) {
        int32_t ids[100];
        sched_options o = rig_options();
        o.reuse_generated = reuse;
        rig g;
        rig_open(&g, NULL, &o);
        ids_of(ids, 20, 1);
        uint64_t first = ask_ids(&g, ids, 20, 10);
        rig_run(&g);
        memcpy(ids + 20, rig_of(&g, first, 0)->ids, sizeof *ids * 10);
        ids_of(ids + 30, 8, 2);
        uint64_t second = ask_ids(&g, ids, 38, 10);
        rig_run(&g);
        as_alone(&g, second, ids, 38, 10);
        int32_t cached = rig_of(&g, second, 0)->last.cached_tokens;
        if (reuse)
            assert_in_range(cached, 29, 30); /* the last token has no row, unless a step more was in flight */
        else
            assert_int_equal(cached, 20);
        uint64_t third = ask_ids(&g, ids, 38, 10);
        rig_run(&g);
        assert_int_equal(rig_of(&g, third, 0)->last.cached_tokens, 37);
        rig_close(&g);
    }
}

static void salts_share_nothing(void **state)
{
    (void)state;
    int32_t ids[40], n = ids_of(ids, 40, 1);
    const int32_t *p = ids;
    rig g;
    rig_open(&g, NULL, NULL);
    static const uint64_t salts[] = {0, 7, 7, 0, 8};
    static const int32_t cached[] = {0, 0, 39, 39, 0};
    for (int k = 0; k < 5; k++) {
        sched_request r = rig_request(&p, &n, 5);
        r.salt[0] = salts[k];
        uint64_t id = rig_submit(&g, &r);
        rig_run(&g);
        assert_int_equal(rig_of(&g, id, 0)->last.cached_tokens, cached[k]);
    }
    rig_close(&g);
}

static void a_chunked_prompt_can_be_hit_before_it_is_done(void **state)
{
    (void)state;
    int32_t ids[300];
    rig g;
    rig_open(&g, NULL, NULL); /* chunks of 32 */
    ids_of(ids, 300, 1);
    uint64_t first = ask_ids(&g, ids, 300, 4);
    for (int k = 0; k < 3; k++) rig_step(&g);
    uint64_t second = ask_ids(&g, ids, 60, 4);
    rig_run(&g);
    as_alone(&g, first, ids, 300, 4);
    as_alone(&g, second, ids, 60, 4);
    assert_true(rig_of(&g, second, 0)->last.cached_tokens >= 32);
    rig_idle(&g);
    rig_close(&g);
}

static void the_choices_of_a_prompt_compute_it_once(void **state)
{
    (void)state;
    enum { N = 8 };
    int32_t ids[100], n = ids_of(ids, 100, 1);
    const int32_t *p = ids;
    rig g;
    rig_open(&g, NULL, NULL);
    sched_request r = rig_request(&p, &n, 12);
    r.n = N;
    r.n_logprobs = 0;
    r.temperature = 1;
    r.seed = 77;
    r.ignore_eos = true;
    uint64_t id = rig_submit(&g, &r);
    uint64_t brief = rig_ask(&g, "xyz", 1, NULL);
    for (int k = 0; k < 6; k++) rig_step(&g);
    assert_true(rig_ended(&g, brief)); /* not held up by siblings that wait */
    rig_run(&g);
    sched_stats st;
    sched_get_stats(g.s, &st);
    assert_int_equal(st.prompt_rows, 100 + (N - 1) + 3);
    for (int32_t a = 0; a < N; a++) /* choices differ: each draws from a stream of its own */
        for (int32_t b = 0; b < a; b++)
            assert_memory_not_equal(rig_of(&g, id, a)->ids, rig_of(&g, id, b)->ids, sizeof(int32_t) * 12);
    uint64_t again = rig_submit(&g, &r);
    rig_run(&g);
    for (int32_t a = 0; a < N; a++)
        assert_memory_equal(rig_of(&g, id, a)->ids, rig_of(&g, again, a)->ids, sizeof(int32_t) * 12);
    rig_idle(&g);
    rig_close(&g);
}

/* ---------------------------------------------------------------- steps in flight */

static void two_steps_are_in_flight_and_waste_at_most_a_row(void **state)
{
    (void)state;
    fake_config f = {.rule = FAKE_CHAIN};
    for (int overlap = 0; overlap < 2; overlap++) {
        sched_options o = rig_options();
        o.overlap = overlap;
        rig g;
        rig_open(&g, &f, &o);
        uint64_t eos = rig_ask(&g, "A", 100, NULL), stop = rig_ask(&g, "B", 100, "K"),
                 length = rig_ask(&g, "C", 7, NULL);
        rig_run(&g);
        rig_text(&g, eos, 0, "BCDEFGHIJKLMNOPQRSTUVWXYZ", SCHED_STOP);
        rig_text(&g, stop, 0, "CDEFGHIJ", SCHED_STOP);
        rig_text(&g, length, 0, "DEFGHIJ", SCHED_LENGTH);
        fake_stats fs = fake_model_stats(g.m);
        sched_stats st;
        sched_get_stats(g.s, &st);
        assert_int_equal(fs.max_in_flight, overlap ? 2 : 1);
        assert_int_equal(fs.last_tokens > 0, overlap);
        assert_int_equal(st.wasted_rows,
                         overlap ? 2 : 0); /* eos and the stop string; max_tokens is known before */
        rig_idle(&g);
        rig_close(&g);
    }
}

static void sampled_text_depends_on_seed_and_position_alone(void **state)
{
    (void)state;
    int32_t ids[64], n = ids_of(ids, 50, 4);
    const int32_t *p = ids;
    int32_t alone[20];
    for (int k = 0; k < 6; k++) {
        sched_options o = rig_options();
        o.overlap = k & 1;
        o.chunk_rows = 5 + 20 * k;
        rig g;
        rig_open(&g, NULL, &o);
        sched_request r = rig_request(&p, &n, 20);
        r.temperature = 0.7f;
        r.seed = 5;
        r.n_logprobs = 0;
        r.ignore_eos = true;
        if (k >= 2) ask_ids(&g, ids + 1, 40, 30);
        if (k >= 4) ask_ids(&g, ids, 50, 5);
        rig_step(&g);
        uint64_t id = rig_submit(&g, &r);
        rig_run(&g);
        if (k == 0) memcpy(alone, rig_of(&g, id, 0)->ids, sizeof alone);
        assert_memory_equal(rig_of(&g, id, 0)->ids, alone, sizeof alone);
        r.seed = 6;
        id = rig_submit(&g, &r);
        rig_run(&g);
        assert_memory_not_equal(rig_of(&g, id, 0)->ids, alone, sizeof alone);
        rig_close(&g);
    }
}

static kern_sample_params seen;
static void see_params(void *user, const model_plan *p)
{
    (void)user;
    if (p->n_samples) seen = plan_samples(p)[p->n_samples - 1].params;
}

static void rows_carry_the_parameters_of_their_request(void **state)
{
    (void)state;
    int32_t ids[4], n = ids_of(ids, 4, 4);
    const int32_t *p = ids;
    rig g;
    rig_open(&g, NULL, NULL);
    fake_model_on_plan(g.m, see_params, NULL);
    sched_request r = rig_request(&p, &n, 1);
    r.temperature = 0.5f;
    r.top_p = 0.25f;
    r.min_p = 0.125f;
    r.top_k = 40;
    r.n_logprobs = 7;
    rig_submit(&g, &r);
    rig_run(&g);
    assert_true(seen.temperature == 0.5f && seen.top_p == 0.25f && seen.min_p == 0.125f && seen.top_k == 40);
    assert_int_equal(seen.n_logprobs, 7);
    assert_int_equal(seen.position, 4);
    assert_int_equal(seen.target, -1);
    assert_int_equal(seen.mask_row, -1);
    assert_true(seen.repetition == 1 && seen.presence == 0 && seen.frequency == 0 && seen.n_bias == 0 &&
                seen.n_counts == 0);
    rig_close(&g);
}

static void short_extends_may_go_down_the_absorbed_path(void **state)
{
    (void)state;
    int32_t ids[120];
    sched_options o = rig_options();
    o.absorb_extend = 8;
    rig g;
    rig_open(&g, NULL, &o);
    ids_of(ids, 120, 1);
    uint64_t first = ask_ids(&g, ids, 100, 4);
    rig_run(&g);
    int64_t segments = fake_model_stats(g.m).segments;
    uint64_t second = ask_ids(&g, ids, 106, 4); /* at least six rows are new */
    rig_run(&g);
    as_alone(&g, first, ids, 100, 4);
    as_alone(&g, second, ids, 106, 4);
    assert_int_equal(fake_model_stats(g.m).segments, segments);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(d23_what_never_fits_is_refused_and_all_else_ends),
        cmocka_unit_test(running_sequences_never_lack_a_slot),
        cmocka_unit_test(d24_a_long_prompt_starves_neither_decodes_nor_newcomers),
        cmocka_unit_test(the_oldest_prompt_gets_half_and_the_shortest_the_rest),
        cmocka_unit_test(d26_equal_prompts_of_one_batch_end_up_on_live_slots),
        cmocka_unit_test(d28_a_wholly_cached_prompt_computes_one_token),
        cmocka_unit_test(a_second_turn_reuses_the_answer_if_it_may),
        cmocka_unit_test(salts_share_nothing),
        cmocka_unit_test(a_chunked_prompt_can_be_hit_before_it_is_done),
        cmocka_unit_test(the_choices_of_a_prompt_compute_it_once),
        cmocka_unit_test(two_steps_are_in_flight_and_waste_at_most_a_row),
        cmocka_unit_test(sampled_text_depends_on_seed_and_position_alone),
        cmocka_unit_test(rows_carry_the_parameters_of_their_request),
        cmocka_unit_test(short_extends_may_go_down_the_absorbed_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
