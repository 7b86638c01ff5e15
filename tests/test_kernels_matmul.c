/* matmul, grouped_matmul, heads_matmul and the weights that they read. */
#include "tests/support/ktest.h"

static ltd_status run_matmul(const kern_ctx *c, const void *a) { return c->ops->matmul(c, a); }
static ltd_status run_grouped(const kern_ctx *c, const void *a) { return c->ops->grouped_matmul(c, a); }
static ltd_status run_heads(const kern_ctx *c, const void *a) { return c->ops->heads_matmul(c, a); }

static double dot(const kern_tensor *x, int64_t at, const float *w, int32_t k)
{
    double sum = 0;
    for (int32_t i = 0; i < k; i++) sum += kt_get(x, at + i) * (double)w[i];
    return sum;
}

static double tolerance(kern_dtype out) { return out == KERN_BF16 ? 2e-3 : 2e-6; }

/* ---------------------------------------------------------------- dense */

typedef struct shape {
    int32_t rows, k, n;
} shape;

static void dense(const kt_devices *d, shape s, kern_dtype tx, kern_dtype tw, kern_dtype to)
{
    float *w;
    int32_t real = s.rows > 2 ? s.rows - 1 : s.rows;
    kern_tensor x = kt_tensor(tx, s.rows, s.k, s.k + 3, -1, 1), out = kt_poison(to, s.rows, s.n + 5);
    kern_matmul_args a = {.w = kt_weight(&d->at[0], tw, 1, s.n, s.k, 0.1f, &w),
                          .x = x,
                          .out = out,
                          .rows_cap = s.rows,
                          .rows = &real};
    kt_out o = KT_OUT(out, s.rows);
    kt_same_bits(d, run_matmul, &a, &o, 1);
    double *e = malloc(((size_t)real * (size_t)s.n + 1) * sizeof *e);
    for (int32_t r = 0; r < real; r++)
        for (int32_t j = 0; j < s.n; j++)
            e[(int64_t)r * s.n + j] = dot(&x, r * x.stride, w + (int64_t)j * s.k, s.k);
    kt_near("matmul", &out, real, s.n, e, tolerance(to));
    for (int32_t r = real; r < s.rows; r++) kt_untouched(&out, r);
    for (int32_t r = 0; r < real; r++)
        for (int32_t j = s.n; j < s.n + 5; j++) assert_true(isnan(kt_get(&out, r * out.stride + j)));
    free(e);
    d->at[0].backend->ops->weight_destroy(d->at[0].backend, (kern_weight *)a.w);
    free(w);
    kt_free(&x);
    kt_free(&out);
}

static void matmul_of_every_shape_and_dtype_has_the_definitions_bits(void **state)
{
    const shape shapes[] = {{0, 16, 4},    {1, 1, 1},      {1, 16, 1},     {2, 15, 3},
                            {3, 17, 5},    {5, 31, 7},     {4, 48, 20},    {7, 24, 33},
                            {9, 64, 64},   {1, 512, 300},  {13, 100, 130}, {67, 40, 70},
                            {130, 33, 19}, {3, 2048, 576}, {2, 2048, 64},  {2, 10944, 40}};
    for (int i = 0; i < KT_LEN(shapes); i++)
        for (int t = 0; t < 8; t++) {
            if (shapes[i].k > 1000 && t % 3) continue;
            dense(*state, shapes[i], t & 1 ? KERN_BF16 : KERN_F32, t & 2 ? KERN_BF16 : KERN_F32,
                  t & 4 ? KERN_BF16 : KERN_F32);
        }
}

/* Each row alone and in every place of a batch. */
static void a_row_has_the_same_bits_alone_and_in_any_company(void **state)
{
    const kt_devices *d = *state;
    enum { ROWS = 21, K = 129, N = 37 };
    for (int t = 0; t < 2; t++) {
        kern_dtype act = t ? KERN_BF16 : KERN_F32;
        size_t bytes = N * kern_dtype_bytes(act);
        float *w;
        kern_tensor x = kt_tensor(act, ROWS, K, K, -1, 1), all = kt_poison(act, ROWS, N),
                    one = kt_poison(act, 1, N);
        kern_weight *weight = kt_weight(&d->at[0], KERN_BF16, 1, N, K, 1, &w);
        for (int i = 0; i < d->n; i++) {
            const kern_ctx *c = d->at[i].ctx;
            for (int32_t first = 0; first < ROWS; first++) {
                kern_tensor from = x, to = all;
                from.data = (char *)x.data + (size_t)(first * K) * kern_dtype_bytes(act);
                kern_matmul_args batch = {.w = weight, .x = from, .out = to, .rows_cap = ROWS - first};
                assert_int_equal(run_matmul(c, &batch), LTD_OK);
                for (int32_t r = 0; r < ROWS - first; r++) {
                    kern_tensor row = from;
                    row.data = (char *)from.data + (size_t)(r * K) * kern_dtype_bytes(act);
                    kern_matmul_args alone = {.w = weight, .x = row, .out = one, .rows_cap = 1};
                    assert_int_equal(run_matmul(c, &alone), LTD_OK);
                    assert_memory_equal(one.data, (char *)all.data + (size_t)r * bytes, bytes);
                }
            }
        }
        d->at[0].backend->ops->weight_destroy(d->at[0].backend, weight);
        free(w);
        kt_free(&x);
        kt_free(&all);
        kt_free(&one);
    }
}

/* Lanes: element k goes to lane k mod 16; (l, l + 8), (l, l + 4), (l, l + 2), (l, l + 1).  Written here once
 * more, from the words. */
static void the_order_of_a_sum_is_sixteen_lanes_and_one_tree(void **state)
{
    const kt_devices *d = *state;
    enum { K = 200 };
    float *w, lane[16] = {0};
    kern_tensor x = kt_tensor(KERN_F32, 1, K, K, -100, 100), out = kt_poison(KERN_F32, 1, 1);
    kern_weight *weight = kt_weight(&d->at[0], KERN_F32, 1, 1, K, 1, &w);
    for (int i = 0; i < K; i++) {
        volatile float product = ((float *)x.data)[i] * w[i];
        lane[i % 16] += product;
    }
    for (int step = 8; step; step /= 2)
        for (int l = 0; l < step; l++) lane[l] += lane[l + step];
    kern_matmul_args a = {.w = weight, .x = x, .out = out, .rows_cap = 1};
    for (int i = 0; i < d->n; i++) {
        assert_int_equal(run_matmul(d->at[i].ctx, &a), LTD_OK);
        assert_memory_equal(out.data, lane, 4);
    }
    d->at[0].backend->ops->weight_destroy(d->at[0].backend, weight);
    free(w);
    kt_free(&x);
    kt_free(&out);
}

static void zeros_of_either_sign_sum_to_plus_zero(void **state)
{
    const kt_devices *d = *state;
    float x[18], y = NAN, w[18];
    for (int i = 0; i < 18; i++) x[i] = -0.0f, w[i] = i % 2 ? 1.0f : 0.0f;
    kern_weight_part part = {w, KERN_F32, 1};
    kern_weight_desc desc = {"zeros", 1, 1, &part, 18};
    kern_weight *weight;
    assert_int_equal(d->at[0].backend->ops->weight_create(d->at[0].backend, &desc, &weight, NULL), LTD_OK);
    kern_matmul_args a = {
        .w = weight, .x = {.data = x, .stride = 18}, .out = {.data = &y, .stride = 1}, .rows_cap = 1};
    for (int i = 0; i < d->n; i++) {
        assert_int_equal(run_matmul(d->at[i].ctx, &a), LTD_OK);
        assert_true(y == 0 && !signbit(y));
    }
    d->at[0].backend->ops->weight_destroy(d->at[0].backend, weight);
}

/* ---------------------------------------------------------------- weights */

static void weights_of_unaligned_parts_in_three_dtypes_are_read_as_they_are(void **state)
{
    const kt_devices *d = *state;
    enum { K = 37 };
    const uint16_t half[8] = {0x3c00, 0xc000, 0x0001, 0x8001, 0x7bff, 0x03ff, 0x0400, 0x8000};
    const float value[8] = {1, -2, 0x1p-24f, -0x1p-24f, 65504, 1023 * 0x1p-24f, 0x1p-14f, -0.0f};
    char *raw = malloc(2 + 2 * K * 4 + 2 * K * 2 + 2 * K * 2 + 16);
    float expected[6][K];
    char *f32 = raw + 1, *bf16 = f32 + 2 * K * 4 + 2, *f16 = bf16 + 2 * K * 2;
    for (int i = 0; i < 2 * K; i++) {
        float v = kt_uniform(-1, 1);
        uint16_t b = kern_f32_to_bf16(kt_uniform(-1, 1));
        memcpy(f32 + 4 * i, &v, 4);
        memcpy(bf16 + 2 * i, &b, 2);
        memcpy(f16 + 2 * i, &half[i % 8], 2);
        expected[i / K][i % K] = v;
        expected[2 + i / K][i % K] = kern_bf16_to_f32(b);
        expected[4 + i / K][i % K] = value[i % 8];
    }
    kern_weight_part parts[3] = {{f32, KERN_F32, 2}, {bf16, KERN_BF16, 2}, {f16, KERN_F16, 2}};
    kern_weight_desc desc = {"parts", 1, 3, parts, K};
    for (int i = 0; i < d->n; i++) {
        kern_weight *w;
        assert_int_equal(d->at[i].backend->ops->weight_create(d->at[i].backend, &desc, &w, NULL), LTD_OK);
        assert_true(d->at[i].backend->ops->weight_bytes(w) >= 6 * K * 4);
        int32_t ids[6] = {0, 1, 2, 3, 4, 5};
        kern_tensor out = kt_poison(KERN_F32, 6, K);
        kern_embed_args a = {.table = w, .ids = ids, .out = out, .rows_cap = 6};
        assert_int_equal(d->at[i].ctx->ops->embed(d->at[i].ctx, &a), LTD_OK);
        assert_memory_equal(out.data, expected, sizeof expected);
        kt_free(&out);
        d->at[i].backend->ops->weight_destroy(d->at[i].backend, w);
    }
    free(raw);
}

static void weights_of_matrices_that_differ_in_shape_are_refused(void **state)
{
    const kt_devices *d = *state;
    float w[12] = {0};
    ltd_err err = {{0}};
    kern_weight *out = NULL;
    kern_weight_part parts[2] = {{w, KERN_F32, 2}, {w, KERN_F32, 3}};
    kern_weight_desc desc = {"model.layers.1.mlp", 2, 1, parts, 4};
    assert_int_equal(d->at[0].backend->ops->weight_create(d->at[0].backend, &desc, &out, &err), LTD_INVALID);
    assert_non_null(strstr(err.text, "model.layers.1.mlp"));
    parts[1] = (kern_weight_part){w, KERN_I32, 2};
    assert_int_equal(d->at[0].backend->ops->weight_create(d->at[0].backend, &desc, &out, &err),
                     LTD_UNSUPPORTED);
}

static void matmul_with_another_matrix_of_a_stack_uses_that_matrix(void **state)
{
    const kt_devices *d = *state;
    float *w;
    kern_tensor x = kt_tensor(KERN_F32, 2, 20, 20, -1, 1), out = kt_poison(KERN_F32, 2, 6);
    kern_matmul_args a = {.w = kt_weight(&d->at[0], KERN_BF16, 3, 6, 20, 1, &w),
                          .matrix = 2,
                          .x = x,
                          .out = out,
                          .rows_cap = 2};
    kt_out o = KT_OUT(out, 2);
    kt_same_bits(d, run_matmul, &a, &o, 1);
    double e[12];
    for (int i = 0; i < 12; i++) e[i] = dot(&x, i / 6 * 20, w + (12 + i % 6) * 20, 20);
    kt_near("matrix 2", &out, 2, 6, e, 2e-6);
    d->at[0].backend->ops->weight_destroy(d->at[0].backend, (kern_weight *)a.w);
    free(w);
    kt_free(&x);
    kt_free(&out);
}

/* ---------------------------------------------------------------- grouped */

static void grouped(const kt_devices *d, int32_t groups, int32_t pairs, int32_t k, int32_t n, bool gather,
                    kern_dtype act, kern_dtype tw)
{
    enum { DIV = 3, SPARE = 2 };
    float *w;
    int32_t *offsets = calloc((size_t)groups + 1, 4), *perm = calloc((size_t)pairs + 1, 4);
    kern_tensor x = kt_tensor(act, gather ? pairs / DIV + 1 : pairs, k, k + 1, -1, 1),
                out = kt_poison(act, pairs + SPARE, n);
    for (int32_t i = 0; i < pairs; i++)
        perm[i] = kt_below(pairs), offsets[1 + (kt_below(3) ? kt_below(groups) : groups / 2)]++;
    for (int32_t e = 0; e < groups; e++) offsets[e + 1] += offsets[e];
    kern_grouped_matmul_args a = {.w = kt_weight(&d->at[0], tw, groups, n, k, 0.3f, &w),
                                  .offsets = offsets,
                                  .gather = gather ? perm : NULL,
                                  .gather_div = DIV,
                                  .x = x,
                                  .out = out,
                                  .rows_cap = pairs + SPARE};
    kt_out o = KT_OUT(out, pairs + SPARE);
    kt_same_bits(d, run_grouped, &a, &o, 1);
    double *expected = malloc(((size_t)pairs * (size_t)n + 1) * sizeof *expected);
    for (int32_t e = 0; e < groups; e++)
        for (int32_t r = offsets[e]; r < offsets[e + 1]; r++)
            for (int32_t j = 0; j < n; j++)
                expected[(int64_t)r * n + j] =
                    dot(&x, (gather ? perm[r] / DIV : r) * x.stride, w + ((int64_t)e * n + j) * k, k);
    kt_near("grouped_matmul", &out, pairs, n, expected, tolerance(act));
    for (int32_t r = pairs; r < pairs + SPARE; r++) kt_untouched(&out, r);
    free(expected);
    d->at[0].backend->ops->weight_destroy(d->at[0].backend, (kern_weight *)a.w);
    free(w);
    free(offsets);
    free(perm);
    kt_free(&x);
    kt_free(&out);
}

static void grouped_matmul_has_the_definitions_bits(void **state)
{
    for (int t = 0; t < 4; t++) {
        kern_dtype act = t & 1 ? KERN_BF16 : KERN_F32, tw = t & 2 ? KERN_BF16 : KERN_F32;
        grouped(*state, 1, 0, 16, 8, false, act, tw);
        grouped(*state, 1, 1, 7, 3, true, act, tw);
        grouped(*state, 4, 9, 33, 21, true, act, tw);
        grouped(*state, 5, 170, 24, 18, false, act, tw);
        grouped(*state, 64, 48, 64, 70, true, act, tw);
    }
    grouped(*state, 8, 12, 2048, 96, true, KERN_BF16, KERN_BF16);
}

/* ---------------------------------------------------------------- per head */

typedef struct heads_shape {
    int32_t rows, heads, d_nope, d_v, d_c;
} heads_shape;

static void heads(const kt_devices *d, heads_shape s, kern_heads_dir dir, kern_dtype act, kern_dtype tw)
{
    bool in = dir == KERN_HEADS_IN;
    float *w;
    int32_t head_rows = s.d_nope + s.d_v, width = in ? s.d_nope : s.d_c, n = in ? s.d_c : s.d_v,
            x_head = width + 2;
    kern_tensor x = kt_tensor(act, s.rows, s.heads * x_head, s.heads * x_head + 1, -1, 1),
                out = kt_poison(act, s.rows, s.heads * n + 3);
    kern_heads_matmul_args a = {.w = kt_weight(&d->at[0], tw, 1, s.heads * head_rows, s.d_c, 0.2f, &w),
                                .dir = dir,
                                .n_heads = s.heads,
                                .head_rows = head_rows,
                                .row0 = in ? 0 : s.d_nope};
    a.d = in ? s.d_nope : s.d_v;
    a.x = x, a.x_head = x_head, a.out = out, a.out_head = n, a.rows_cap = s.rows;
    kt_out o = KT_OUT(out, s.rows);
    kt_same_bits(d, run_heads, &a, &o, 1);
    double *e = calloc((size_t)(s.rows * s.heads * n) + 1, sizeof *e);
    for (int32_t i = 0; i < s.rows * s.heads * n; i++) {
        int32_t r = i / (s.heads * n), h = i / n % s.heads, c = i % n;
        for (int32_t k = 0; k < width; k++) {
            int64_t row = h * head_rows + a.row0 + (in ? k : c);
            e[i] += kt_get(&x, r * x.stride + h * x_head + k) * (double)w[row * s.d_c + (in ? c : k)];
        }
    }
    kt_near(in ? "heads in" : "heads out", &out, s.rows, s.heads * n, e, tolerance(act));
    free(e);
    d->at[0].backend->ops->weight_destroy(d->at[0].backend, (kern_weight *)a.w);
    free(w);
    kt_free(&x);
    kt_free(&out);
}

static void heads_matmul_in_both_directions_has_the_definitions_bits(void **state)
{
    const heads_shape shapes[] = {{1, 1, 1, 1, 1},        {2, 3, 24, 20, 48},     {5, 2, 17, 19, 33},
                                  {1, 16, 128, 128, 512}, {3, 16, 128, 128, 512}, {70, 2, 16, 16, 32},
                                  {0, 2, 8, 8, 8}};
    for (int i = 0; i < KT_LEN(shapes); i++)
        for (int t = 0; t < 8; t++) {
            if (shapes[i].d_c == 512 && t % 3) continue;
            heads(*state, shapes[i], t & 1 ? KERN_HEADS_IN : KERN_HEADS_OUT, t & 2 ? KERN_BF16 : KERN_F32,
                  t & 4 ? KERN_BF16 : KERN_F32);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_of_every_shape_and_dtype_has_the_definitions_bits),
        cmocka_unit_test(a_row_has_the_same_bits_alone_and_in_any_company),
        cmocka_unit_test(the_order_of_a_sum_is_sixteen_lanes_and_one_tree),
        cmocka_unit_test(zeros_of_either_sign_sum_to_plus_zero),
        cmocka_unit_test(weights_of_unaligned_parts_in_three_dtypes_are_read_as_they_are),
        cmocka_unit_test(weights_of_matrices_that_differ_in_shape_are_refused),
        cmocka_unit_test(matmul_with_another_matrix_of_a_stack_uses_that_matrix),
        cmocka_unit_test(grouped_matmul_has_the_definitions_bits),
        cmocka_unit_test(heads_matmul_in_both_directions_has_the_definitions_bits),
    };
    return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
