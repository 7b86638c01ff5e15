/* test_scheduler_output - tokens to text: whole characters, stop strings, stop ids, counts, log-probabilities.
 * D01, D02, D09, D10, the scheduler's half of D12 and D19; the same with one and with two steps in flight. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/sched_rig.h"

static const fake_config chain = {.rule = FAKE_CHAIN};

static void open_chain(rig *g, bool overlap)
{
    sched_options o = rig_options();
    o.overlap = overlap;
    rig_open(g, &chain, &o);
}

static void frames(rig *g, uint64_t group, const char *want)
{
    assert_string_equal(rig_of(g, group, 0)->frames.data, want);
}

static void d01_streamed_text_is_whole_characters(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        rig g;
        open_chain(&g, overlap);
        uint64_t id = rig_ask(&g, "<", 20, NULL);
        rig_run(&g);
        rig_text(&g, id, 0, "€😀.", SCHED_STOP);
        frames(&g, id, "€|😀|.||");
        assert_int_equal(rig_of(&g, id, 0)->last.completion_tokens, 9); /* eos counts */
        assert_int_equal(rig_of(&g, id, 0)->last.stop_id, 257);
        rig_idle(&g);
        rig_close(&g);
    }
}

static void d02_output_ending_inside_a_character_is_replaced(void **state)
{
    (void)state;
    rig g;
    open_chain(&g, true);
    uint64_t cut = rig_ask(&g, "<", 5, NULL), bad = rig_ask(&g, "\xFF", 10, NULL);
    rig_run(&g);
    rig_text(&g, cut, 0, "€\uFFFD", SCHED_LENGTH);
    rig_text(&g, bad, 0, "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD", SCHED_LENGTH);
    frames(&g, bad,
           "\uFFFD|\uFFFD|\uFFFD|\uFFFD|\uFFFD|\uFFFD|\uFFFD|\uFFFD|\uFFFD|\uFFFD|"); /* nothing is held */
    rig_close(&g);
}

static void d09_no_part_of_a_stop_string_is_released(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        rig g;
        open_chain(&g, overlap);
        uint64_t id = rig_ask(&g, "A", 100, "EFG"), inside = rig_ask(&g, "6", 100, "8");
        rig_run(&g);
        rig_text(&g, id, 0, "BCD", SCHED_STOP);
        frames(&g, id, "B|C|D||"); /* each in the step that makes it */
        assert_int_equal(rig_of(&g, id, 0)->last.stop_string, 0);
        assert_int_equal(rig_of(&g, id, 0)->last.stop_id, -1);
        assert_int_equal(rig_of(&g, id, 0)->last.completion_tokens, 6);
        rig_text(&g, inside, 0, "7, ", SCHED_STOP);
        rig_idle(&g);
        rig_close(&g);
    }
}

static void d09_text_is_held_only_while_it_could_be_a_stop(void **state)
{
    (void)state;
    rig g;
    open_chain(&g, true);
    uint64_t fails = rig_ask(&g, "A", 8, "EFX"), ends = rig_ask(&g, "X", 100, "ZA"),
             length = rig_ask(&g, "A", 2, "CD");
    uint64_t tail = rig_ask(&g, "A", 100, "I");
    rig_run(&g);
    frames(&g, fails, "B|C|D|EFG|H|I|"); /* released as soon as the third letter is another */
    frames(&g, ends, "Y|Z|");            /* held Z comes with the end */
    rig_text(&g, ends, 0, "YZ", SCHED_STOP);
    frames(&g, length, "B|C|");
    rig_text(&g, length, 0, "BC", SCHED_LENGTH);
    rig_text(&g, tail, 0, "BCDEFGH", SCHED_STOP);
    rig_close(&g);
}

static uint64_t ask_stops(rig *g, const char *prompt, const char *const *stops, int32_t n_stops, bool include,
                          int32_t n_logprobs)
{
    int32_t ids[64], n = (int32_t)strlen(prompt);
    const int32_t *p = ids;
    for (int32_t i = 0; i < n; i++) ids[i] = (unsigned char)prompt[i];
    sched_request r = rig_request(&p, &n, 100);
    r.n_logprobs = n_logprobs;
    r.include_stop = include;
    r.n_stops = n_stops;
    for (int32_t i = 0; i < n_stops; i++) {
        r.stops[i] = stops[i];
        r.stop_lens[i] = strlen(stops[i]);
    }
    return rig_submit(g, &r);
}

static void several_stops_the_first_to_appear_wins(void **state)
{
    (void)state;
    static const char *const stops[] = {"QR", "FG", "EFGH", "J"};
    rig g;
    open_chain(&g, true);
    uint64_t cut = ask_stops(&g, "A", stops, 4, false, -1), kept = ask_stops(&g, "A", stops, 4, true, -1);
    rig_run(&g);
    rig_text(&g, cut, 0, "BCDE", SCHED_STOP);
    rig_text(&g, kept, 0, "BCDEFG", SCHED_STOP);
    assert_int_equal(rig_of(&g, cut, 0)->last.stop_string, 1);
    rig_close(&g);
}

static void a_tail_that_was_no_stop_comes_with_what_follows(void **state)
{
    (void)state;
    static const char *const stops[] = {"aaB"};
    static int32_t table[320];
    rig g;
    for (int i = 0; i < 320; i++) table[i] = 257;
    table['x'] = 'a';
    table['a'] = 280; /* "7, 8" */
    table[280] = 'b';
    fake_config f = chain;
    f.chain = table;
    rig_open(&g, &f, NULL);
    uint64_t id = ask_stops(&g, "x", stops, 1, false, -1);
    rig_run(&g);
    rig_text(&g, id, 0, "a7, 8b", SCHED_STOP);
    frames(&g, id, "a7, 8|b||");
    rig_close(&g);
}

static void stop_ids_end_without_their_text(void **state)
{
    (void)state;
    rig g;
    open_chain(&g, true);
    int32_t ids[] = {'A'}, n = 1;
    const int32_t *p = ids;
    sched_request r = rig_request(&p, &n, 100);
    r.stop_ids[0] = 'Q';
    r.stop_ids[1] = 'E';
    r.n_stop_ids = 2;
    uint64_t id = rig_submit(&g, &r);
    rig_run(&g);
    rig_text(&g, id, 0, "BCD", SCHED_STOP);
    assert_int_equal(rig_of(&g, id, 0)->last.stop_id, 'E');
    assert_int_equal(rig_of(&g, id, 0)->last.stop_string, -1);
    assert_int_equal(rig_of(&g, id, 0)->last.completion_tokens, 4);
    rig_close(&g);
}

static void d10_one_finish_reason_and_the_same_counts(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        rig g;
        open_chain(&g, overlap);
        uint64_t a = rig_ask(&g, "A", 3, NULL), b = rig_ask(&g, "X", 100, NULL),
                 c = rig_ask(&g, "X", 3, NULL), d = rig_ask(&g, "X", 1, NULL);
        rig_run(&g);
        rig_text(&g, a, 0, "BCD", SCHED_LENGTH);
        rig_text(&g, b, 0, "YZ", SCHED_STOP);
        rig_text(&g, c, 0, "YZ", SCHED_STOP);
        rig_text(&g, d, 0, "Y", SCHED_LENGTH);
        assert_int_equal(rig_of(&g, a, 0)->last.completion_tokens, 3);
        assert_int_equal(rig_of(&g, b, 0)->last.completion_tokens, 3);
        assert_int_equal(rig_of(&g, c, 0)->last.completion_tokens, 3);
        assert_int_equal(rig_of(&g, a, 0)->last.prompt_tokens, 1);
        frames(&g, a, "B|C|D|");
        frames(&g, b, "Y|Z||");
        rig_close(&g);
    }
}

static void ignored_eos_goes_on_and_special_tokens_may_show(void **state)
{
    (void)state;
    static int32_t table[320];
    rig g;
    for (int i = 0; i < 320; i++) table[i] = 257; /* eos for ever */
    fake_config f = chain;
    f.chain = table;
    rig_open(&g, &f, NULL);
    int32_t ids[] = {'x'}, n = 1;
    const int32_t *p = ids;
    sched_request r = rig_request(&p, &n, 3);
    r.ignore_eos = true;
    uint64_t quiet = rig_submit(&g, &r);
    r.n_logprobs = 0;
    uint64_t listed = rig_submit(&g, &r);
    r.skip_special = false;
    uint64_t shown = rig_submit(&g, &r);
    rig_run(&g);
    rig_text(&g, quiet, 0, "", SCHED_LENGTH);
    assert_int_equal(rig_of(&g, quiet, 0)->n_events, 1); /* no event without text but the last */
    rig_text(&g, listed, 0, "", SCHED_LENGTH);
    assert_int_equal(rig_of(&g, listed, 0)->n_ids, 3);
    rig_text(&g, shown, 0, "<eos><eos><eos>", SCHED_LENGTH);
    assert_int_equal(rig_of(&g, shown, 0)->last.completion_tokens, 3);
    rig_close(&g);
}

/* ---------------------------------------------------------------- log-probabilities */

typedef struct listing { /* which tokens came with which text */
    char at[512];
} listing;

static void list_tokens(void *user, const sched_event *ev)
{
    listing *l = user;
    size_t n = strlen(l->at);
    for (int32_t i = 0; i < ev->n_tokens; i++)
        n += (size_t)snprintf(l->at + n, sizeof l->at - n, "%d ", ev->tokens[i].id);
    snprintf(l->at + n, sizeof l->at - n, "'%.*s' ", (int)ev->text_len, ev->text);
}

static void tokens_are_listed_with_the_text_that_completes_them(void **state)
{
    (void)state;
    static const char *const stops[] = {"EFX"}, *const cut[] = {"EFG"}, *const in[] = {"8"};
    listing l = {0};
    rig g;
    open_chain(&g, true);
    g.user = &l;
    g.on_event = list_tokens;
    ask_stops(&g, "<", NULL, 0, false, 2);
    rig_run(&g);
    assert_string_equal(l.at, "226 130 172 '€' 240 159 152 128 '😀' 46 '.' '' ");
    l.at[0] = 0;
    ask_stops(&g, "C", stops, 1, false, 0); /* D, E and F held, then G */
    rig_run(&g);
    assert_true(strncmp(l.at, "68 'D' 69 70 71 'EFG' 72 'H' ", 29) == 0);
    l.at[0] = 0;
    ask_stops(&g, "C", cut, 1, false, 0);
    rig_run(&g);
    assert_string_equal(l.at, "68 'D' '' ");
    l.at[0] = 0;
    ask_stops(&g, "C", cut, 1, true, 0);
    rig_run(&g);
    assert_string_equal(l.at, "68 'D' 69 70 71 'EFG' ");
    l.at[0] = 0;
    ask_stops(&g, "6", in, 1, false, 20);
    rig_run(&g);
    assert_string_equal(l.at, "'7, ' ");
    rig_close(&g);
}

static void d12_prompt_scores_come_whole_and_chunk_by_chunk(void **state)
{
    (void)state;
    enum { N = 500 };
    int32_t ids[N], n = N;
    const int32_t *p = ids;
    for (int32_t i = 0; i < N; i++) ids[i] = (i * 37 + i / 7) % 256;
    for (int32_t chunk = 1; chunk <= 512; chunk *= 8) {
        rig g;
        sched_options o = rig_options();
        o.chunk_rows = chunk;
        rig_open(&g, NULL, &o);
        sched_request r = rig_request(&p, &n, 0);
        uint64_t warm = rig_submit(&g, &(sched_request){.prompts = &p,
                                                        .prompt_lens = &n,
                                                        .n_prompts = 1,
                                                        .n = 1,
                                                        .max_tokens = 1,
                                                        .n_logprobs = -1,
                                                        .n_prompt_logprobs = -1});
        rig_run(&g); /* all of it is in the tree: a request that scores reads nothing of that */
        (void)warm;
        r.n_prompt_logprobs = 1;
        uint64_t only = rig_submit(&g, &r);
        r.max_tokens = 4;
        uint64_t more = rig_submit(&g, &r);
        rig_run(&g);
        for (int k = 0; k < 2; k++) {
            rig_seq *q = rig_of(&g, k ? more : only, 0);
            assert_int_equal(q->n_scores, N - 1);
            for (int32_t i = 0; i < N - 1; i++) assert_true(q->scores[i] == fake_model_score(ids, i + 1));
            assert_int_equal(q->last.finish, SCHED_LENGTH);
            assert_int_equal(q->last.cached_tokens, 0);
            assert_int_equal(q->last.completion_tokens, k ? 4 : 0);
        }
        rig_idle(&g);
        rig_close(&g);
    }
}

static void d12_nothing_to_draw_and_nothing_to_score_ends_at_once(void **state)
{
    (void)state;
    rig g;
    open_chain(&g, true);
    uint64_t id = rig_ask(&g, "ABC", 0, NULL);
    int32_t one = 'A', n = 1;
    const int32_t *p = &one;
    sched_request r = rig_request(&p, &n, 0);
    r.n_prompt_logprobs = 3;
    uint64_t single = rig_submit(&g, &r); /* a prompt of one token has nothing to score */
    rig_run(&g);
    rig_text(&g, id, 0, "", SCHED_LENGTH);
    rig_text(&g, single, 0, "", SCHED_LENGTH);
    assert_int_equal(rig_of(&g, single, 0)->n_scores, 0);
    rig_idle(&g);
    rig_close(&g);
}

static void d19_the_end_of_the_context_is_length(void **state)
{
    (void)state;
    fake_config f = {.context_length = 64, .eos = -1};
    rig g;
    int32_t ids[64], n;
    const int32_t *p = ids;
    ltd_err err;
    uint64_t id;
    for (int32_t i = 0; i < 64; i++) ids[i] = i;
    rig_open(&g, &f, NULL);
    n = 64;
    sched_request r = rig_request(&p, &n, 100);
    assert_int_equal(sched_submit(g.s, &r, &id, &err), LTD_TOO_LARGE);
    assert_non_null(strstr(err.text, "64"));
    n = 63;
    uint64_t last = rig_submit(&g, &r);
    n = 54;
    uint64_t ten = rig_submit(&g, &r);
    rig_run(&g);
    assert_int_equal(rig_of(&g, last, 0)->last.completion_tokens, 1);
    assert_int_equal(rig_of(&g, last, 0)->last.finish, SCHED_LENGTH);
    assert_int_equal(rig_of(&g, ten, 0)->last.completion_tokens, 10);
    assert_int_equal(rig_of(&g, ten, 0)->last.finish, SCHED_LENGTH);
    rig_idle(&g);
    rig_close(&g);
}

static void no_finite_logit_is_an_error_of_that_sequence(void **state)
{
    (void)state;
    static int32_t table[320];
    for (int i = 0; i < 320; i++) table[i] = i < 'D' ? i + 1 : i == 'D' ? -1 : 257;
    fake_config f = chain;
    f.chain = table;
    for (int overlap = 0; overlap < 2; overlap++) {
        rig g;
        sched_options o = rig_options();
        o.overlap = overlap;
        rig_open(&g, &f, &o);
        uint64_t bad = rig_ask(&g, "A", 100, NULL), good = rig_ask(&g, "e", 100, NULL);
        rig_run(&g);
        rig_text(&g, bad, 0, "BCD", SCHED_ERROR);
        rig_text(&g, good, 0, "", SCHED_STOP);
        rig_idle(&g);
        rig_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(d01_streamed_text_is_whole_characters),
        cmocka_unit_test(d02_output_ending_inside_a_character_is_replaced),
        cmocka_unit_test(d09_no_part_of_a_stop_string_is_released),
        cmocka_unit_test(d09_text_is_held_only_while_it_could_be_a_stop),
        cmocka_unit_test(several_stops_the_first_to_appear_wins),
        cmocka_unit_test(a_tail_that_was_no_stop_comes_with_what_follows),
        cmocka_unit_test(stop_ids_end_without_their_text),
        cmocka_unit_test(d10_one_finish_reason_and_the_same_counts),
        cmocka_unit_test(ignored_eos_goes_on_and_special_tokens_may_show),
        cmocka_unit_test(tokens_are_listed_with_the_text_that_completes_them),
        cmocka_unit_test(d12_prompt_scores_come_whole_and_chunk_by_chunk),
        cmocka_unit_test(d12_nothing_to_draw_and_nothing_to_score_ends_at_once),
        cmocka_unit_test(d19_the_end_of_the_context_is_length),
        cmocka_unit_test(no_finite_logit_is_an_error_of_that_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
