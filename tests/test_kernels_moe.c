/* Routing, the sort by expert, the sum of expert outputs. */
#include "tests/support/ktest.h"

static ltd_status run_route(const kern_ctx *c, const void *a) { return c->ops->route(c, a); }
static ltd_status run_sort(const kern_ctx *c, const void *a) { return c->ops->moe_sort(c, a); }
static ltd_status run_combine(const kern_ctx *c, const void *a) { return c->ops->moe_combine(c, a); }

/* One row on every device; weights to 1e-5 relative. */
static void route_gives(const kt_devices *d, const float *logits, const kern_route_args *with,
                        const int32_t *ids, const double *weights)
{
    for (int i = 0; i < d->n; i++) {
        int32_t got[16];
        float w[16];
        kern_route_args a = *with;
        a.logits = (kern_tensor){.data = (void *)(uintptr_t)logits, .stride = a.n_experts};
        a.ids = got, a.weights = w, a.rows_cap = 1;
        assert_int_equal(run_route(d->at[i].ctx, &a), LTD_OK);
        for (int k = 0; k < a.top_k; k++) {
            assert_int_equal(got[k], ids[k]);
            if (weights && fabs(w[k] - weights[k]) > 1e-5 * weights[k])
                fail_msg("expert %d weighs %.9g, not %.9g", got[k], w[k], weights[k]);
        }
    }
}

static const float sheet_logits[16] = {0.5f, -1,    2,    0, 1.5f, 1.4f, -2,   0.3f,
                                       1.9f, -0.5f, 0.2f, 1, -3,   0.7f, 0.9f, 1.1f};
static const float sheet_bias[16] = {0,    .9f, -.3f, .1f,  -.2f, 0, .5f, .05f,
                                     -.6f, .2f, .1f,  -.1f, .8f,  0, 0,   -.05f};

static void route_of_the_sheets_logits_gives_its_numbers(void **state)
{
    kern_route_args a = {.n_experts = 16, .top_k = 3, .scale = 1, .method = KERN_ROUTE_GREEDY};
    route_gives(*state, sheet_logits, &a, (int32_t[]){2, 8, 4},
                (double[]){0.188558098, 0.170614423, 0.114366268});
    a.method = KERN_ROUTE_GROUP_LIMITED, a.n_group = 4, a.topk_group = 2;
    route_gives(*state, sheet_logits, &a, (int32_t[]){2, 8, 11},
                (double[]){0.188558098, 0.170614423, 0.069366648});
    a.scale = 16;
    route_gives(*state, sheet_logits, &a, (int32_t[]){2, 8, 11},
                (double[]){3.01692958, 2.72983077, 1.10986637});
    a.method = KERN_ROUTE_NOAUX_TC, a.bias = sheet_bias, a.scale = 2.5f, a.normalize = true;
    route_gives(*state, sheet_logits, &a, (int32_t[]){1, 12, 14},
                (double[]){0.654475382, 0.115411997, 1.730112621});
}

static void d32_groups_by_maximum_factor_once_masked_with_minus_infinity(void **state)
{
    const float logits[8] = {3, .5f, 2.9f, .1f, 2.8f, 2.7f, 0, 0};
    kern_route_args a = {.n_experts = 8,
                         .top_k = 3,
                         .n_group = 4,
                         .topk_group = 2,
                         .scale = 16,
                         .method = KERN_ROUTE_GROUP_LIMITED};
    route_gives(*state, logits, &a, (int32_t[]){0, 2, 1}, (double[]){4.32308, 3.91168, .35486});
    /* sigmoid(0) = 0.5, so that the biased scores are -1.1, -1.2, -1.8, -1.9: all negative, an excluded one
     * at 0 would win */
    const float zero[4] = {0}, bias[4] = {-1.6f, -1.7f, -2.3f, -2.4f};
    a = (kern_route_args){.n_experts = 4,
                          .top_k = 2,
                          .n_group = 2,
                          .topk_group = 1,
                          .scale = 1,
                          .method = KERN_ROUTE_NOAUX_TC,
                          .bias = bias};
    route_gives(*state, zero, &a, (int32_t[]){0, 1}, (double[]){0.5, 0.5});
}

static void route_of_ties_takes_lower_ids_and_of_nan_takes_valid_distinct_ids(void **state)
{
    float logits[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    kern_route_args a = {
        .n_experts = 8, .top_k = 3, .n_group = 4, .topk_group = 2, .scale = 1, .method = KERN_ROUTE_GREEDY};
    for (int m = 0; m < 3; m++) {
        a.method = (kern_route_method)m;
        route_gives(*state, logits, &a, (int32_t[]){0, 1, 2}, NULL);
    }
    const kt_devices *d = *state;
    for (int i = 0; i < 8; i += 3) logits[i] = NAN;
    for (int m = 0; m < 3; m++) {
        int32_t ids[3];
        float w[3];
        a.method = (kern_route_method)m, a.ids = ids, a.weights = w, a.rows_cap = 1,
        a.logits = (kern_tensor){.data = logits, .stride = 8};
        assert_int_equal(run_route(d->at[1].ctx, &a), LTD_OK);
        assert_true(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2]);
        for (int k = 0; k < 3; k++) assert_true(ids[k] >= 0 && ids[k] < 8);
    }
}

static void route_of_random_rows_is_the_sorted_scores_and_pads_with_minus_one(void **state)
{
    const kt_devices *d = *state;
    const int32_t sizes[][4] = {{64, 6, 1, 1}, {160, 6, 8, 3}, {256, 8, 8, 4}, {7, 7, 1, 1}, {1, 1, 1, 1}};
    for (int s = 0; s < KT_LEN(sizes); s++)
        for (int norm = 0; norm < 2; norm++) {
            enum { ROWS = 37, CAP = 40 };
            int32_t E = sizes[s][0], K = sizes[s][1], rows = ROWS, *ids = malloc((size_t)(CAP * K) * 4);
            kern_tensor logits = kt_tensor(KERN_F32, CAP, E, E + 1, -4, 4), w = kt_poison(KERN_F32, CAP, K);
            kern_route_args a = {.logits = logits,
                                 .method = sizes[s][2] > 1 ? KERN_ROUTE_GROUP_LIMITED : KERN_ROUTE_GREEDY,
                                 .n_experts = E,
                                 .top_k = K,
                                 .n_group = sizes[s][2],
                                 .topk_group = sizes[s][3],
                                 .normalize = norm,
                                 .scale = 2,
                                 .ids = ids,
                                 .weights = w.data,
                                 .rows_cap = CAP,
                                 .rows = &rows};
            kt_out o[] = {{"ids", ids, (size_t)(CAP * K) * 4}, KT_OUT(w, CAP)};
            memset(ids, 0x55, o[0].bytes);
            kt_same_bits(d, run_route, &a, o, 2);
            for (int r = 0; r < ROWS; r++) {
                double z = 0, sum = 0;
                for (int e = 0; e < E; e++) z += exp(kt_get(&logits, r * logits.stride + e));
                for (int k = 0; k < K; k++)
                    sum += exp(kt_get(&logits, r * logits.stride + ids[r * K + k])) / z;
                for (int k = 0; k < K; k++) {
                    double p = exp(kt_get(&logits, r * logits.stride + ids[r * K + k])) / z,
                           e = (norm ? p / sum : p) * 2;
                    assert_true(fabs(((float *)w.data)[r * K + k] - e) < 3e-6 * e);
                    if (k)
                        assert_true(kt_get(&logits, r * logits.stride + ids[r * K + k]) <=
                                    kt_get(&logits, r * logits.stride + ids[r * K + k - 1]));
                }
            }
            for (int i = ROWS * K; i < CAP * K; i++) assert_int_equal(ids[i], -1);
            kt_untouched(&w, ROWS);
            free(ids);
            kt_free(&logits);
            kt_free(&w);
        }
}

/* ---------------------------------------------------------------- sort */

static void sort_is_stable_and_inverts(void **state)
{
    const kt_devices *d = *state;
    for (int round = 0; round < 60; round++) {
        int32_t E = 1 + kt_below(70), K = 1 + kt_below(6), cap = kt_below(50),
                rows = cap ? kt_below(cap + 1) : 0, n = cap * K;
        int32_t *ids = malloc(4 * (size_t)(n + 1)), *perm = malloc(4 * (size_t)(n + 1)),
                *inverse = malloc(4 * (size_t)(n + 1)), *offsets = malloc(4 * (size_t)(E + 1));
        for (int i = 0; i < n; i++) ids[i] = i >= rows * K ? 1 << 30 : kt_below(5) ? kt_below(E) : -1;
        memset(perm, 0x55, 4 * (size_t)n);
        memset(inverse, 0x55, 4 * (size_t)n);
        kern_moe_sort_args a = {.ids = ids,
                                .n_experts = E,
                                .top_k = K,
                                .perm = perm,
                                .inverse = inverse,
                                .offsets = offsets,
                                .rows_cap = cap,
                                .rows = &rows};
        kt_out o[] = {{"perm", perm, 4 * (size_t)n},
                      {"inverse", inverse, 4 * (size_t)n},
                      {"offsets", offsets, 4 * (size_t)(E + 1)}};
        kt_same_bits(d, run_sort, &a, o, 3);
        int32_t real = 0;
        for (int i = 0; i < rows * K; i++) {
            if (ids[i] < 0) {
                assert_int_equal(inverse[i], -1);
                continue;
            }
            real++;
            assert_int_equal(perm[inverse[i]], i);
            assert_in_range(inverse[i], offsets[ids[i]], offsets[ids[i] + 1] - 1);
        }
        assert_int_equal(offsets[0], 0);
        assert_int_equal(offsets[E], real);
        for (int e = 0; e < E; e++)
            for (int i = offsets[e] + 1; i < offsets[e + 1]; i++) assert_true(perm[i - 1] < perm[i]);
        for (int i = real; i < n; i++) assert_int_equal(perm[i], 0x55555555);
        for (int i = rows * K; i < n; i++) assert_int_equal(inverse[i], 0x55555555);
        free(ids);
        free(perm);
        free(inverse);
        free(offsets);
    }
}

/* ---------------------------------------------------------------- combine */

static void combine_case(const kt_devices *d, int32_t rows, int32_t K, int32_t width, int t)
{
    kern_dtype te = t & 1 ? KERN_BF16 : KERN_F32, to = t & 2 ? KERN_BF16 : KERN_F32;
    bool shared = t & 4;
    kern_tensor expert = kt_tensor(te, rows * K, width, width + 1, -1, 1),
                sh = kt_tensor(te, rows, width, width, -1, 1), out = kt_poison(to, rows + 1, width + 1),
                w = kt_tensor(KERN_F32, rows, K, K, 0, 1);
    int32_t *inverse = malloc(4 * (size_t)(rows * K + 1));
    for (int i = 0; i < rows * K; i++) inverse[i] = kt_below(6) ? kt_below(rows * K) : -1;
    kern_moe_combine_args a = {.expert = expert,
                               .shared = shared ? sh : (kern_tensor){0},
                               .out = out,
                               .inverse = inverse,
                               .weights = w.data,
                               .top_k = K,
                               .d = width,
                               .rows_cap = rows + 1,
                               .rows = &rows};
    kt_out o = KT_OUT(out, rows + 1);
    kt_same_bits(d, run_combine, &a, &o, 1);
    double *e = malloc(((size_t)(rows * width) + 1) * sizeof *e);
    for (int i = 0; i < rows * width; i++) {
        int r = i / width;
        e[i] = shared ? kt_get(&sh, i) : 0;
        for (int k = 0; k < K; k++)
            if (inverse[r * K + k] >= 0)
                e[i] +=
                    kt_get(&w, r * K + k) * kt_get(&expert, inverse[r * K + k] * expert.stride + i % width);
    }
    kt_near("combine", &out, rows, width, e, to == KERN_BF16 ? 2e-3 : 2e-6);
    kt_untouched(&out, rows);
    free(e);
    free(inverse);
    kt_free(&expert);
    kt_free(&sh);
    kt_free(&out);
    kt_free(&w);
}

static void combine_has_the_definitions_bits(void **state)
{
    for (int t = 0; t < 8; t++) {
        combine_case(*state, 0, 2, 8, t);
        combine_case(*state, 1, 1, 1, t);
        combine_case(*state, 3, 6, 33, t);
        combine_case(*state, 9, 6, 2048, t);
        combine_case(*state, 40, 8, 100, t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_of_the_sheets_logits_gives_its_numbers),
        cmocka_unit_test(d32_groups_by_maximum_factor_once_masked_with_minus_infinity),
        cmocka_unit_test(route_of_ties_takes_lower_ids_and_of_nan_takes_valid_distinct_ids),
        cmocka_unit_test(route_of_random_rows_is_the_sorted_scores_and_pads_with_minus_one),
        cmocka_unit_test(sort_is_stable_and_inverts),
        cmocka_unit_test(combine_has_the_definitions_bits),
    };
    return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
