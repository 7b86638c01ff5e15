/* The sampler: D21, D22, the meaning of every parameter, log-probabilities, and the distribution of what is
 * drawn. */
#include "tests/support/ktest.h"

static ltd_status run_sample(const kern_ctx *c, const void *a) { return c->ops->sample(c, a); }

typedef struct sampling {
    kern_sample_args a;
    kern_tensor logits, logprobs, top_logprobs;
    int32_t *tokens, *top_ids;
    kern_sample_params *p;
} sampling;

static const kern_sample_params plain = {
    .temperature = 1, .top_p = 1, .target = -1, .n_logprobs = -1, .repetition = 1, .mask_row = -1};

static sampling sampling_create(int32_t rows, int32_t vocab, float lo, float hi)
{
    sampling s = {.logits = kt_tensor(KERN_F32, rows, vocab, vocab + 1, lo, hi),
                  .logprobs = kt_poison(KERN_F32, rows, 1),
                  .top_logprobs = kt_poison(KERN_F32, rows, KERN_MAX_TOP_LOGPROBS)};
    s.tokens = malloc(4 * (size_t)rows + 4);
    s.top_ids = malloc(4 * (size_t)rows * KERN_MAX_TOP_LOGPROBS + 4);
    memset(s.tokens, 0x55, 4 * (size_t)rows);
    memset(s.top_ids, 0x55, 4 * (size_t)rows * KERN_MAX_TOP_LOGPROBS);
    s.p = malloc(sizeof *s.p * ((size_t)rows + 1));
    for (int32_t r = 0; r < rows; r++) s.p[r] = plain;
    s.a = (kern_sample_args){.logits = s.logits,
                             .vocab = vocab,
                             .params = s.p,
                             .tokens = s.tokens,
                             .logprobs = s.logprobs.data,
                             .top_ids = s.top_ids,
                             .top_logprobs = s.top_logprobs.data,
                             .rows_cap = rows};
    return s;
}

static void sampling_destroy(sampling *s)
{
    kt_free(&s->logits);
    kt_free(&s->logprobs);
    kt_free(&s->top_logprobs);
    free(s->tokens);
    free(s->top_ids);
    free(s->p);
}

static void same_bits(const kt_devices *d, sampling *s)
{
    int32_t rows = s->a.rows_cap;
    kt_out o[] = {KT_OUT(s->logits, rows),
                  KT_OUT(s->logprobs, rows),
                  KT_OUT(s->top_logprobs, rows),
                  {"tokens", s->tokens, 4 * (size_t)rows},
                  {"top_ids", s->top_ids, 4 * (size_t)rows * KERN_MAX_TOP_LOGPROBS}};
    kt_same_bits(d, run_sample, &s->a, o, 5);
}

static int32_t argmax(const kern_tensor *t, int64_t row, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (kt_get(t, row * t->stride + i) > kt_get(t, row * t->stride + best)) best = i;
    return best;
}

/* ---------------------------------------------------------------- same bits */

static void sample_with_random_parameters_has_the_definitions_bits(void **state)
{
    const int32_t vocabs[] = {1, 2, 15, 16, 17, 100, 257, 3000, 20000};
    for (int v = 0; v < KT_LEN(vocabs); v++)
        for (int round = 0; round < 6; round++) {
            int32_t rows = vocabs[v] > 10000 ? 8 : 30, vocab = vocabs[v];
            sampling s = sampling_create(rows, vocab, round == 5 ? 0 : -12, round == 5 ? 1e-3f : 12);
            for (int32_t r = 0; r < rows; r++) {
                kern_sample_params *p = &s.p[r];
                const float temperatures[] = {0, 1e-30f, 1e-4f, 0.3f, 1, 2};
                p->temperature = temperatures[kt_below(6)];
                p->top_k = kt_below(2) ? kt_below(vocab + 3) : kt_below(2) * 50;
                p->top_p = kt_below(3) ? kt_uniform(0, 1) : (float)kt_below(2);
                p->min_p = kt_below(3) ? 0 : kt_uniform(0, 0.3f);
                p->seed = kt_random();
                p->position = kt_below(100000);
                p->n_logprobs = kt_below(22) - 1;
                p->target = kt_below(8) ? -1 : kt_below(vocab);
                for (int32_t i = 0; i < vocab / 3; i++) /* equal logits and holes */
                    kt_put(&s.logits, r * s.logits.stride + kt_below(vocab), kt_below(2) ? -INFINITY : 3);
            }
            int32_t real = rows - 1;
            s.a.rows = &real;
            same_bits(*state, &s);
            assert_int_equal(s.tokens[rows - 1], 0x55555555);
            sampling_destroy(&s);
        }
}

static void a_row_draws_the_same_alone_and_in_a_batch(void **state)
{
    const kt_devices *d = *state;
    enum { ROWS = 12, VOCAB = 500 };
    sampling s = sampling_create(ROWS, VOCAB, -3, 3);
    for (int r = 0; r < ROWS; r++)
        s.p[r].seed = 5, s.p[r].position = r, s.p[r].top_p = r % 2 ? 0.9f : 1, s.p[r].n_logprobs = 3;
    for (int i = 0; i < d->n; i++) {
        assert_int_equal(run_sample(d->at[i].ctx, &s.a), LTD_OK);
        for (int r = 0; r < ROWS; r++) {
            sampling one = sampling_create(1, VOCAB, 0, 1);
            memcpy(one.logits.data, (float *)s.logits.data + r * s.logits.stride, VOCAB * 4);
            one.p[0] = s.p[r];
            assert_int_equal(run_sample(d->at[i].ctx, &one.a), LTD_OK);
            assert_int_equal(one.tokens[0], s.tokens[r]);
            assert_memory_equal(one.logprobs.data, (float *)s.logprobs.data + r, 4);
            sampling_destroy(&one);
        }
    }
    sampling_destroy(&s);
}

/* ---------------------------------------------------------------- D21, D22 */

static void d21_greedy_is_greedy_in_any_company(void **state)
{
    const kt_devices *d = *state;
    enum { CASES = 8, ROUNDS = 20, ROWS = CASES * ROUNDS, VOCAB = 1000 };
    sampling s = sampling_create(2 * ROWS, VOCAB, -5, 5);
    int32_t expected[ROWS];
    for (int r = 0; r < ROWS; r++) {
        kern_sample_params *p = &s.p[2 * r]; /* every other row: a random neighbour */
        s.p[2 * r + 1].seed = kt_random();
        p->seed = kt_random(), p->position = r;
        int c = r % CASES;
        if (c < 3 || c == 7) p->temperature = 0;
        if (c == 1) p->top_p = 0;
        if (c == 2) p->top_p = 0.5f, p->top_k = 5;
        if (c == 3) p->top_k = 1;
        if (c == 4) p->temperature = 1e-6f;
        if (c == 5) p->temperature = 1e-30f;
        if (c == 6) p->top_p = 1e-9f;
        if (c == 7)
            for (int i = 0; i < VOCAB; i += 2) kt_put(&s.logits, 2 * r * s.logits.stride + i, -INFINITY);
        /* near-ties, which a temperature alone would not decide, and exact ties, which go to the lower id */
        int32_t top = argmax(&s.logits, 2 * r, VOCAB);
        float best = (float)kt_get(&s.logits, 2 * r * s.logits.stride + top);
        kt_put(&s.logits, 2 * r * s.logits.stride + 901, nextafterf(best, 0));
        kt_put(&s.logits, 2 * r * s.logits.stride + 951, best);
        expected[r] = top < 951 ? top : 951;
    }
    same_bits(d, &s);
    for (int r = 0; r < ROWS; r++) assert_int_equal(s.tokens[2 * r], expected[r] == 901 ? 951 : expected[r]);
    sampling_destroy(&s);
}

static void rows_of_nan_or_of_nothing_finite_give_minus_one(void **state)
{
    const kt_devices *d = *state;
    enum { VOCAB = 40 };
    sampling s = sampling_create(5, VOCAB, -1, 1);
    for (int r = 0; r < 5; r++) s.p[r].n_logprobs = 2;
    kt_put(&s.logits, 39, NAN);
    for (int i = 0; i < VOCAB; i++) kt_put(&s.logits, s.logits.stride + i, -INFINITY);
    for (int i = 0; i < VOCAB; i++)
        if (i != 17) kt_put(&s.logits, 2 * s.logits.stride + i, -INFINITY);
    kt_put(&s.logits, 3 * s.logits.stride + 5, INFINITY);
    s.p[4].temperature = 0, s.p[2].top_k = 3;
    same_bits(d, &s);
    for (int r = 0; r < 4; r++) assert_int_equal(s.tokens[r], r == 2 ? 17 : -1);
    assert_true(kt_get(&s.logprobs, 2) == 0 && kt_get(&s.logprobs, 0) == -INFINITY);
    assert_int_equal(s.top_ids[0], -1);
    assert_int_equal(s.top_ids[2 * KERN_MAX_TOP_LOGPROBS], 17);
    assert_int_equal(s.tokens[4], argmax(&s.logits, 4, VOCAB));
    sampling_destroy(&s);
}

static void d22_penalties_count_as_they_should(void **state)
{
    const kt_devices *d = *state;
    const int32_t ids[] = {0, 1, 0, 1, 0, 1, 2}, counts[] = {3, 3, 3, 3, 0, 0, 1};
    sampling s = sampling_create(3, 4, 0, 0);
    for (int r = 0; r < 3; r++) {
        const float x[4] = {2, -2, -9, -9};
        for (int i = 0; i < 4; i++) kt_put(&s.logits, r * s.logits.stride + i, x[i]);
        s.p[r].n_counts = 2;
        s.p[r].counts_first = 2 * r;
        s.p[r].temperature = 0;
    }
    s.p[0].repetition = 2;
    s.p[1].frequency = 0.5f, s.p[1].presence = 0.25f;
    s.p[2].repetition = 2,
    s.p[2].frequency = 9; /* in the prompt only: repetition counts, frequency does not */
    s.a.count_ids = ids, s.a.counts = counts;
    same_bits(d, &s);
    assert_true(kt_get(&s.logits, 0) == 1 && kt_get(&s.logits, 1) == -4);
    assert_true(kt_get(&s.logits, s.logits.stride) == 0.25 &&
                kt_get(&s.logits, s.logits.stride + 1) == -3.75);
    assert_true(kt_get(&s.logits, 2 * s.logits.stride) == 1 &&
                kt_get(&s.logits, 2 * s.logits.stride + 1) == -4);
    sampling_destroy(&s);
}

static void masks_and_biases_change_logits_and_log_probabilities(void **state)
{
    const kt_devices *d = *state;
    enum { VOCAB = 70 };
    uint32_t masks[2][3] = {{~0u, ~0u, ~0u}, {0x8, 0, 0x20}};
    const int32_t bias_ids[] = {9, 60, 3};
    const float bias[] = {100, 50, 1};
    sampling s = sampling_create(3, VOCAB, -1, 1);
    for (int r = 0; r < 3; r++) s.p[r].temperature = 0, s.p[r].n_logprobs = 5;
    s.p[0].mask_row = 1;                                           /* ids 3 and 69 */
    s.p[1].bias_first = 1, s.p[1].n_bias = 2;                      /* 60, 3 */
    s.p[2].mask_row = 1, s.p[2].bias_first = 0, s.p[2].n_bias = 3; /* a bias does not lift a mask */
    s.a.masks = masks[0], s.a.bias_ids = bias_ids, s.a.bias_values = bias;
    same_bits(d, &s);
    assert_true(s.tokens[0] == 3 || s.tokens[0] == 69);
    assert_int_equal(s.tokens[1], 60);
    assert_int_equal(s.tokens[2], argmax(&s.logits, 2, VOCAB));
    assert_true(s.tokens[2] == 3 || s.tokens[2] == 69);
    double p = exp(kt_get(&s.top_logprobs, 0)) + exp(kt_get(&s.top_logprobs, 1));
    assert_true(fabs(p - 1) < 1e-6 && kt_get(&s.top_logprobs, 2) == -INFINITY);
    sampling_destroy(&s);
}

/* ---------------------------------------------------------------- log-probabilities */

static void log_probabilities_are_those_of_a_log_softmax(void **state)
{
    const kt_devices *d = *state;
    const int32_t vocabs[] = {1, 5, 33, 102400};
    for (int v = 0; v < KT_LEN(vocabs); v++) {
        enum { ROWS = 3 };
        int32_t vocab = vocabs[v];
        sampling s = sampling_create(ROWS, vocab, -10, 10);
        for (int r = 0; r < ROWS; r++) s.p[r].n_logprobs = 20, s.p[r].seed = 9, s.p[r].position = r;
        s.p[1].target = vocab - 1, s.p[1].temperature = 0.1f;
        s.p[2].n_logprobs = 0;
        if (vocab > 10)
            same_bits(d, &s);
        else
            assert_int_equal(run_sample(d->at[1].ctx, &s.a), LTD_OK);
        assert_int_equal(s.tokens[1], vocab - 1);
        double tolerance = vocab > 1000 ? 1e-5 : 2e-6; /* lanes of thousands of terms */
        for (int r = 0; r < ROWS; r++) {
            double m = kt_get(&s.logits, r * s.logits.stride + argmax(&s.logits, r, vocab)), z = 0;
            for (int32_t i = 0; i < vocab; i++) z += exp(kt_get(&s.logits, r * s.logits.stride + i) - m);
            assert_true(fabs(kt_get(&s.logprobs, r) - (kt_get(&s.logits, r * s.logits.stride + s.tokens[r]) -
                                                       m - log(z))) < tolerance);
            for (int k = 0; k < KERN_MAX_TOP_LOGPROBS; k++) {
                int32_t id = s.top_ids[r * KERN_MAX_TOP_LOGPROBS + k];
                double got = kt_get(&s.top_logprobs, r * KERN_MAX_TOP_LOGPROBS + k);
                if (k >= vocab || r == 2) {
                    assert_true(id == -1 && got == -INFINITY);
                    continue;
                }
                assert_true(fabs(got - (kt_get(&s.logits, r * s.logits.stride + id) - m - log(z))) <
                            tolerance);
                int32_t better = 0;
                for (int32_t i = 0; i < vocab; i++)
                    better += kt_get(&s.logits, r * s.logits.stride + i) >
                              kt_get(&s.logits, r * s.logits.stride + id);
                assert_true(better <= k);
                if (k) assert_true(id != s.top_ids[r * KERN_MAX_TOP_LOGPROBS + k - 1]);
            }
        }
        sampling_destroy(&s);
    }
}

/* ---------------------------------------------------------------- what is drawn */

/* Draws n tokens of one distribution on the best device; counts them. */
static void draw_many(const kt_devices *d, const float *logits, int32_t vocab, kern_sample_params p, int n,
                      int *counts)
{
    sampling s = sampling_create(n, vocab, 0, 0);
    for (int r = 0; r < n; r++) {
        for (int32_t i = 0; i < vocab; i++) kt_put(&s.logits, r * s.logits.stride + i, logits[i]);
        s.p[r] = p;
        s.p[r].position = r;
    }
    assert_int_equal(run_sample(d->at[d->n - 1].ctx, &s.a), LTD_OK);
    memset(counts, 0, sizeof *counts * (size_t)vocab);
    for (int r = 0; r < n; r++) counts[s.tokens[r]]++;
    sampling_destroy(&s);
}

static void check_distribution(const int *counts, const double *p, int32_t vocab, int n)
{
    double chi = 0, cells = -1, rest = 0, rest_e = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (p[i] == 0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        if (p[i] * n < 8) {
            rest += counts[i], rest_e += p[i] * n;
            continue;
        }
        chi += (counts[i] - p[i] * n) * (counts[i] - p[i] * n) / (p[i] * n);
        cells++;
    }
    if (rest_e > 5) chi += (rest - rest_e) * (rest - rest_e) / rest_e, cells++;
    if (cells > 0 && fabs(chi - cells) > 5 * sqrt(2 * cells) + 3)
        fail_msg("chi-square %.1f with %.0f degrees of freedom", chi, cells);
}

/* The set and probabilities that top_k, top_p and min_p leave, in double. */
static void kept(const float *x, int32_t vocab, const kern_sample_params *q, double *p)
{
    int32_t order[256];
    double z = 0, sum = 0;
    for (int32_t i = 0; i < vocab; i++) {
        int32_t j = i;
        for (; j > 0 && x[order[j - 1]] < x[i]; j--) order[j] = order[j - 1];
        order[j] = i;
        p[i] = 0;
    }
    int32_t n = q->top_k > 0 && q->top_k < vocab ? q->top_k : vocab, m = 0;
    for (int32_t i = 0; i < n; i++) z += exp((double)(x[order[i]] - x[order[0]]) / q->temperature);
    while (m < n && (m == 0 || sum < q->top_p * z))
        sum += exp((double)(x[order[m++]] - x[order[0]]) / q->temperature);
    z = 0;
    for (int32_t i = 0; i < m; i++) {
        double e = exp((double)(x[order[i]] - x[order[0]]) / q->temperature);
        if (e >= q->min_p) p[order[i]] = e, z += e;
    }
    for (int32_t i = 0; i < vocab; i++) p[i] /= z;
}

static void draws_follow_the_distribution_with_every_filter(void **state)
{
    enum { VOCAB = 200, N = 20000 };
    float x[VOCAB];
    double p[VOCAB];
    int counts[VOCAB];
    for (int i = 0; i < VOCAB; i++) x[i] = kt_uniform(-4, 4);
    const kern_sample_params filters[] = {{.temperature = 1, .top_p = 1},
                                          {.temperature = 0.5f, .top_p = 1},
                                          {.temperature = 2, .top_p = 1},
                                          {.temperature = 1, .top_p = 1, .top_k = 10},
                                          {.temperature = 1, .top_p = 0.8f},
                                          {.temperature = 0.7f, .top_p = 0.95f, .top_k = 40},
                                          {.temperature = 1, .top_p = 1, .min_p = 0.1f},
                                          {.temperature = 1.5f, .top_p = 0.9f, .top_k = 100, .min_p = 0.05f}};
    for (int f = 0; f < KT_LEN(filters); f++) {
        kern_sample_params q = plain;
        q.temperature = filters[f].temperature, q.top_p = filters[f].top_p, q.top_k = filters[f].top_k,
        q.min_p = filters[f].min_p, q.seed = 77;
        kept(x, VOCAB, &q, p);
        draw_many(*state, x, VOCAB, q, N, counts);
        check_distribution(counts, p, VOCAB, N);
    }
}

/* Successive draws of one seed are independent: pairs (t, t + 1) fill a 6 x 6 table as a product. */
static void draws_at_neighbouring_positions_are_independent(void **state)
{
    const kt_devices *d = *state;
    enum { V = 6, N = 36000 };
    sampling s = sampling_create(N, V, 0, 0);
    for (int r = 0; r < N; r++) s.p[r].position = r, s.p[r].seed = 1;
    assert_int_equal(run_sample(d->at[d->n - 1].ctx, &s.a), LTD_OK);
    double chi = 0;
    int pairs[V][V] = {{0}};
    for (int r = 0; r + 1 < N; r++) pairs[s.tokens[r]][s.tokens[r + 1]]++;
    for (int i = 0; i < V * V; i++) chi += pow(pairs[i / V][i % V] - N / 36.0, 2) / (N / 36.0);
    assert_true(fabs(chi - 35) < 5 * sqrt(70));
    sampling_destroy(&s);
}

static void another_seed_draws_other_tokens(void **state)
{
    const kt_devices *d = *state;
    enum { ROWS = 200, VOCAB = 50 };
    int equal = 0;
    int32_t first[ROWS];
    for (uint64_t seed = 0; seed < 2; seed++) {
        sampling s = sampling_create(ROWS, VOCAB, 0, 0);
        for (int r = 0; r < ROWS; r++) s.p[r].position = r, s.p[r].seed = seed;
        assert_int_equal(run_sample(d->at[1].ctx, &s.a), LTD_OK);
        for (int r = 0; r < ROWS; r++) {
            if (seed)
                equal += first[r] == s.tokens[r];
            else
                first[r] = s.tokens[r];
        }
        sampling_destroy(&s);
    }
    assert_true(equal < 16); /* 4 expected */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sample_with_random_parameters_has_the_definitions_bits),
        cmocka_unit_test(a_row_draws_the_same_alone_and_in_a_batch),
        cmocka_unit_test(d21_greedy_is_greedy_in_any_company),
        cmocka_unit_test(rows_of_nan_or_of_nothing_finite_give_minus_one),
        cmocka_unit_test(d22_penalties_count_as_they_should),
        cmocka_unit_test(masks_and_biases_change_logits_and_log_probabilities),
        cmocka_unit_test(log_probabilities_are_those_of_a_log_softmax),
        cmocka_unit_test(draws_follow_the_distribution_with_every_filter),
        cmocka_unit_test(draws_at_neighbouring_positions_are_independent),
        cmocka_unit_test(another_seed_draws_other_tokens),
    };
    return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
