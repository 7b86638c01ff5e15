/* test_scheduler_same_bits.c - the promise of numerics.md on the CPU, with the bundled checkpoint and the real scheduler.
 * Tokens, text and log-probabilities of 50 prompts (1 to 300 tokens, half of them sampled with a seed) are the same bits cold, warm, alone, in a crowd of 64,
 * at chunk sizes 16, 64 and 512, with one and two steps in flight, and after a restart; a second turn too with --reuse-generated off.
 * Counters prove that the warm runs were warm and that the crowds were crowds. */
#include <stdarg.h>
#include <setjmp.h>
#include <pthread.h>
#include <string.h>
#include <cmocka.h>

#include "scheduler/scheduler.h"
#include "tests/support/model_runner.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum {
    N_PROMPTS = 10,
    N_CROWD = 16
}; /* instrumented code is ten to fifty times slower; the races are the same */
#else
enum { N_PROMPTS = 50, N_CROWD = 64 };
#endif
enum { MAX_NEW = 24, CONTEXT = 512 };
static const char demo[] = "tests/models/demo";

typedef struct answer {
    uint64_t group;
    int32_t ids[MAX_NEW];
    float logprobs[MAX_NEW], top_logprobs[MAX_NEW][2];
    int32_t top_ids[MAX_NEW][2];
    int32_t n;
    int32_t cached, prompt;
    sched_finish finish;
    ltd_buf text;
} answer;

/* A model, a scheduler and where its events go. */
typedef struct rig {
    tok *t;
    model *m;
    sched *s;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    answer *answers; /* of the round that runs; group ids are set under lock by submit */
    int32_t n_answers, n_ended;
} rig;

typedef struct prompt {
    const int32_t *ids;
    int32_t n;
    bool sampled;
    uint64_t seed;
} prompt;

static answer *answer_of(rig *g, uint64_t group)
{
    for (int32_t i = 0; i < g->n_answers; i++)
        if (g->answers[i].group == group) return &g->answers[i];
    fail_msg("an event of an unknown group");
    return NULL;
}

static void on_event(void *user, const sched_event *ev)
{
    rig *g = user;
    pthread_mutex_lock(&g->lock);
    answer *a = answer_of(g, ev->group);
    ltd_buf_add(&a->text, ev->text, ev->text_len);
    for (int32_t i = 0; i < ev->n_tokens; i++) {
        const sched_token *k = &ev->tokens[i];
        assert_true(a->n < MAX_NEW);
        a->ids[a->n] = k->id;
        a->logprobs[a->n] = k->logprob;
        memcpy(a->top_ids[a->n], k->top_ids, sizeof a->top_ids[0]);
        memcpy(a->top_logprobs[a->n++], k->top_logprobs, sizeof a->top_logprobs[0]);
    }
    a->cached = ev->cached_tokens;
    a->prompt = ev->prompt_tokens;
    if (ev->finish != SCHED_RUNNING) a->finish = ev->finish;
    if (ev->group_done) {
        g->n_ended++;
        pthread_cond_signal(&g->ended);
    }
    pthread_mutex_unlock(&g->lock);
}

static void rig_open(rig *g, int32_t chunk, bool overlap, bool reuse_generated)
{
    ltd_err err;
    int32_t n_slots;
    model_limits l;
    sched_options so;
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->ended, NULL);
    ltd_options o = runner_options(demo);
    o.context_length = CONTEXT;
    o.context_block = 128;
    o.max_running_requests = N_CROWD;
    o.max_queued_requests = 1024;
    o.chunked_prefill_size = chunk;
    o.disable_overlap = !overlap;
    o.reuse_generated = reuse_generated;
    if (model_open(&o, &g->m, &err) != LTD_OK) fail_msg("%s", err.text);
    if (tok_load(demo, model_get_info(g->m)->vocab_size, &g->t, &err) != LTD_OK) fail_msg("%s", err.text);
    sched_options_from(&o, model_get_info(g->m), &so);
    so.check_every_step = true;
    sched_model_limits(&so, &l);
    if (model_start(g->m, &l, &n_slots, &err) != LTD_OK) fail_msg("%s", err.text);
    so.n_slots = n_slots;
    if (sched_create(&so, g->m, g->t, on_event, g, &g->s, &err) != LTD_OK) fail_msg("%s", err.text);
    assert_int_equal(sched_start(g->s), LTD_OK);
}

static void rig_idle_check(rig *g)
{
    ltd_buf out = {0};
    sched_stats st;
    if (sched_debug(g->s, SCHED_DEBUG_CHECK, 0, &out) != LTD_OK)
        fail_msg("%s", out.data ? out.data : "check failed");
    sched_get_stats(g->s, &st);
    assert_int_equal(st.slots_free + st.slots_cached, st.slots_total);
    assert_int_equal(st.slots_locked, 0);
    ltd_buf_deinit(&out);
}

static void rig_flush(rig *g)
{
    ltd_buf out = {0};
    assert_int_equal(sched_debug(g->s, SCHED_DEBUG_FLUSH, 0, &out), LTD_OK);
    ltd_buf_deinit(&out);
}

static void rig_close(rig *g)
{
    rig_idle_check(g);
    sched_stop(g->s);
    sched_destroy(g->s);
    model_close(g->m);
    tok_destroy(g->t);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->ended);
}

/* Submits n prompts, `at_once` at a time, and waits for all. */
static void ask(rig *g, const prompt *p, int32_t n, int32_t at_once, answer *out)
{
    ltd_err err;
    pthread_mutex_lock(&g->lock);
    memset(out, 0, sizeof *out * (size_t)n);
    g->answers = out;
    g->n_answers = g->n_ended = 0;
    for (int32_t i = 0; i < n; i++) {
        while (i - g->n_ended >= at_once) pthread_cond_wait(&g->ended, &g->lock);
        sched_request r = {.prompts = &p[i].ids,
                           .prompt_lens = &p[i].n,
                           .n_prompts = 1,
                           .n = 1,
                           .max_tokens = MAX_NEW,
                           .temperature = p[i].sampled ? 0.8f : 0,
                           .top_p = p[i].sampled ? 0.95f : 1,
                           .seed = p[i].seed,
                           .n_logprobs = 2,
                           .n_prompt_logprobs = -1};
        /* the lock is held over the submit, so that no event of it comes before its group is known */
        if (sched_submit(g->s, &r, &out[i].group, &err) != LTD_OK) fail_msg("%s", err.text);
        g->n_answers = i + 1;
    }
    while (g->n_ended < n) pthread_cond_wait(&g->ended, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void same(const char *how, const answer *a, const answer *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const answer *x = &a[i], *y = &b[i % N_PROMPTS];
        bool equal = x->n == y->n && x->finish == y->finish && x->text.len == y->text.len &&
                     (!x->text.len || !memcmp(x->text.data, y->text.data, x->text.len)) &&
                     !memcmp(x->ids, y->ids, sizeof x->ids) &&
                     !memcmp(x->logprobs, y->logprobs, sizeof x->logprobs) &&
                     !memcmp(x->top_ids, y->top_ids, sizeof x->top_ids) &&
                     !memcmp(x->top_logprobs, y->top_logprobs, sizeof x->top_logprobs);
        if (equal) continue;
        int32_t k = 0;
        while (k < x->n && k < y->n && x->ids[k] == y->ids[k] && !memcmp(&x->logprobs[k], &y->logprobs[k], 4))
            k++;
        fail_msg("%s: prompt %d (%d tokens, %d cached): token %d differs: id %d logprob %.9g, was id %d "
                 "logprob %.9g",
                 how, i, x->prompt, x->cached, k, k < x->n ? x->ids[k] : -1,
                 k < x->n ? (double)x->logprobs[k] : 0, k < y->n ? y->ids[k] : -1,
                 k < y->n ? (double)y->logprobs[k] : 0);
    }
}

static void drop(answer *a, int32_t n)
{
    for (int32_t i = 0; i < n; i++) ltd_buf_deinit(&a[i].text);
}

static void all_warm(const char *how, const answer *a, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (a[i].cached != a[i].prompt - 1)
            fail_msg("%s: prompt %d: %d of %d tokens cached, not all but the last", how, i, a[i].cached,
                     a[i].prompt);
}

/* Slices of the held-out text, 1 to 300 tokens long; the crowd repeats the first ones. */
static int32_t *make_prompts(prompt *p)
{
    ltd_err err;
    tok *t;
    char *text;
    size_t len;
    int32_t *ids;
    int64_t n;
    if (tok_load(demo, 0, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    if (ltd_read_file("tests/models/demo/heldout.txt", 0, &text, &len, &err) != LTD_OK)
        fail_msg("%s", err.text);
    if (tok_encode(t, text, len, TOK_PLAIN, 0, &ids, &n, &err) != LTD_OK) fail_msg("%s", err.text);
    for (int32_t i = 0; i < N_CROWD; i++) {
        int32_t k = i % N_PROMPTS, length = k == 0 ? 1 : k == 1 ? 300 : 1 + (k * 83) % 300;
        assert_true((int64_t)k * 131 + length < n);
        p[i] = (prompt){.ids = ids + k * 131, .n = length, .sampled = k % 2, .seed = 1000 + (uint64_t)k};
    }
    ltd_free(text);
    tok_destroy(t);
    return ids;
}

static void answers_are_the_same_bits_in_any_company(void **state)
{
    (void)state;
    static const struct {
        int32_t chunk;
        bool overlap;
    } modes[] = {{64, true}, {16, true}, {512, true}, {64, false}};
    static answer alone[N_PROMPTS], now[N_CROWD];
    prompt p[N_CROWD];
    int32_t *ids = make_prompts(p);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        rig g; /* each mode is a restart too */
        rig_open(&g, modes[i].chunk, modes[i].overlap, true);
        if (i == 0) {
            for (int32_t k = 0; k < N_PROMPTS; k++) { /* the reference: cold and alone */
                rig_flush(&g);
                ask(&g, &p[k], 1, 1, &alone[k]);
                assert_int_equal(alone[k].cached, 0);
            }
            ask(&g, p, N_PROMPTS, N_CROWD, now); /* fills the tree */
            same("in company", now, alone, N_PROMPTS);
            drop(now, N_PROMPTS);
            ask(&g, p, N_PROMPTS, 1, now);
            all_warm("warm", now, N_PROMPTS);
            same("warm", now, alone, N_PROMPTS);
            drop(now, N_PROMPTS);
        }
        rig_flush(&g);
        ask(&g, p, N_CROWD, N_CROWD, now);
        same("in a crowd", now, alone, N_CROWD);
        drop(now, N_CROWD);
        ask(&g, p, N_CROWD, N_CROWD, now);
        all_warm("in a warm crowd", now, N_CROWD);
        same("in a warm crowd", now, alone, N_CROWD);
        drop(now, N_CROWD);
        rig_close(&g);
    }
    drop(alone, N_PROMPTS);
    ltd_free(ids);
}

/* prompt + answer + question, cold and on top of the first turn's cache. */
static void second_turns_are_the_same_bits_without_reuse(void **state)
{
    (void)state;
    enum { N = N_CROWD / 4 };
    static answer first[N], cold[N], warm[N];
    prompt p[N_CROWD], q[N];
    int32_t *ids = make_prompts(p), *turn = ltd_alloc(sizeof(int32_t) * N * CONTEXT);
    rig g;
    rig_open(&g, 64, true, false);
    ask(&g, p, N, N, first);
    for (int32_t i = 0; i < N; i++) {
        int32_t *to = turn + (ptrdiff_t)i * CONTEXT, n = p[i].n;
        memcpy(to, p[i].ids, sizeof *to * (size_t)n);
        memcpy(to + n, first[i].ids, sizeof *to * (size_t)first[i].n);
        memcpy(to + n + first[i].n, p[(i + 20) % N_CROWD].ids, sizeof *to * 9);
        q[i] = (prompt){.ids = to, .n = n + first[i].n + 9, .sampled = p[i].sampled, .seed = p[i].seed};
    }
    ask(&g, q, N, N, warm);
    rig_flush(&g);
    ask(&g, q, N, 1, cold);
    for (int32_t i = 0; i < N; i++) {
        if (warm[i].cached < p[i].n)
            fail_msg("second turn %d: %d tokens cached, the first prompt has %d", i, warm[i].cached, p[i].n);
    }
    same("second turn", warm, cold, N);
    rig_close(&g);
    drop(first, N);
    drop(cold, N);
    drop(warm, N);
    ltd_free(turn);
    ltd_free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_same_bits_in_any_company),
        cmocka_unit_test(second_turns_are_the_same_bits_without_reuse),
    };
    log_start(&(log_config){.level = LOG_WARN, .fd = 2});
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    log_stop();
    return failed;
}
