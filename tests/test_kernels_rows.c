/* The ops that go row by row: embed, add_norm, rope, latent, copy_rows, mha_write, silu_mul, merge. */
#include "tests/support/ktest.h"

#define RUN(op)                                                                                              \
    static ltd_status run_##op(const kern_ctx *c, const void *a) { return c->ops->op(c, a); }
RUN(embed)
RUN(add_norm)
RUN(rope)
RUN(latent)
RUN(copy_rows)
RUN(mha_write)
RUN(silu_mul)
RUN(merge)

static double tolerance(kern_dtype t) { return t == KERN_BF16 ? 2e-3 : 2e-6; }

static kern_dtype dtype(int bit) { return bit ? KERN_BF16 : KERN_F32; }

/* ---------------------------------------------------------------- embed */

static void embed_of_ids_and_padding_writes_rows_and_zeros(void **state)
{
    const kt_devices *d = *state;
    for (int t = 0; t < 4; t++)
        for (int32_t k = 1; k < 100; k = 3 * k + 4) {
            float *w;
            int32_t ids[6] = {3, -1, 0, 4, -1, 1 << 20}, rows = 5;
            kern_tensor out = kt_poison(dtype(t & 1), 6, k + 1);
            kern_embed_args a = {.table = kt_weight(&d->at[0], dtype(t & 2), 1, 5, k, 1, &w),
                                 .ids = ids,
                                 .out = out,
                                 .rows_cap = 6,
                                 .rows = &rows};
            kt_out o = KT_OUT(out, 6);
            kt_same_bits(d, run_embed, &a, &o, 1);
            for (int r = 0; r < 5; r++)
                for (int32_t i = 0; i < k; i++)
                    assert_true(kt_get(&out, r * (k + 1) + i) ==
                                (ids[r] < 0 ? 0 : kt_round(out.dtype, w[ids[r] * k + i])));
            kt_untouched(&out, 5);
            d->at[0].backend->ops->weight_destroy(d->at[0].backend, (kern_weight *)a.table);
            free(w);
            kt_free(&out);
        }
}

/* ---------------------------------------------------------------- add_norm */

static void add_norm_case(const kt_devices *d, int32_t rows, int32_t width, int t)
{
    bool add = t & 1, norm = !(t & 2) || !add;
    kern_dtype tx = dtype(t & 4), to = dtype(t & 8);
    kern_tensor x = kt_tensor(tx, rows + 1, width, width + 2, -3, 3),
                delta = kt_tensor(tx, rows, width, width, -1, 1), out = kt_poison(to, rows + 1, width + 1),
                weight = kt_tensor(KERN_F32, 1, width, width, 0.5f, 2);
    double *sum = malloc(((size_t)rows * (size_t)width + 1) * sizeof *sum),
           *e = malloc(((size_t)rows * (size_t)width + 1) * sizeof *e);
    for (int32_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int32_t i = 0; i < width; i++) {
            double v = kt_get(&x, r * x.stride + i);
            if (add) v = kt_round(tx, (float)v + (float)kt_get(&delta, r * delta.stride + i));
            sum[r * width + i] = v;
            squares += v * v;
        }
        for (int32_t i = 0; i < width; i++)
            e[r * width + i] = sum[r * width + i] / sqrt(squares / width + 1e-6) * kt_get(&weight, i);
    }
    kern_add_norm_args a = {.x = x,
                            .delta = add ? delta : (kern_tensor){0},
                            .out = norm ? out : (kern_tensor){0},
                            .weight = weight.data,
                            .eps = 1e-6f,
                            .d = width,
                            .rows_cap = rows + 1,
                            .rows = &rows};
    kt_out o[] = {KT_OUT(x, rows + 1), KT_OUT(out, rows + 1)};
    kt_same_bits(d, run_add_norm, &a, o, 2);
    kt_near("x + delta", &x, rows, width, sum, 0);
    if (norm)
        kt_near("norm", &out, rows, width, e, to == KERN_BF16 ? 4e-3 : 2e-6);
    else
        kt_untouched(&out, 0);
    kt_untouched(&out, rows);
    free(sum);
    free(e);
    kt_free(&x);
    kt_free(&delta);
    kt_free(&out);
    kt_free(&weight);
}

static void add_norm_in_every_form_has_the_definitions_bits(void **state)
{
    const int32_t widths[] = {1, 16, 17, 48, 100, 2048};
    for (int i = 0; i < KT_LEN(widths); i++)
        for (int t = 0; t < 16; t++)
            for (int32_t rows = 0; rows < 40; rows = rows * 4 + 1) add_norm_case(*state, rows, widths[i], t);
}

/* Both roundings: y / rms to bf16, times weight to bf16, as transformers. */
static void add_norm_in_bf16_rounds_twice(void **state)
{
    const kt_devices *d = *state;
    enum { D = 64 };
    kern_tensor x = kt_tensor(KERN_BF16, 1, D, D, -2, 2), out = kt_poison(KERN_BF16, 1, D),
                w = kt_tensor(KERN_F32, 1, D, D, 0, 3);
    kern_add_norm_args a = {.x = x, .out = out, .weight = w.data, .eps = 1e-5f, .d = D, .rows_cap = 1};
    assert_int_equal(run_add_norm(d->at[d->n - 1].ctx, &a), LTD_OK);
    float squares = 0;
    for (int i = 0; i < D; i++) squares += (float)(kt_get(&x, i) * kt_get(&x, i));
    float rms = sqrtf(squares / D + 1e-5f);
    int off = 0;
    for (int i = 0; i < D; i++)
        off += kt_get(&out, i) !=
               kt_round(KERN_BF16, kt_round(KERN_BF16, (float)kt_get(&x, i) / rms) * ((float *)w.data)[i]);
    assert_true(off <= 1); /* a tie decided by the last bit of the sum */
    kt_free(&x);
    kt_free(&out);
    kt_free(&w);
}

/* ---------------------------------------------------------------- rope */

static void fill_angles(float *cos_sin, int32_t n_pos, int32_t d_rope, double theta)
{
    for (int32_t p = 0; p < n_pos; p++)
        for (int32_t i = 0; i < d_rope / 2; i++) {
            float angle = (float)p * (float)pow(theta, -2.0 * i / d_rope);
            cos_sin[(p * d_rope / 2 + i) * 2] = cosf(angle);
            cos_sin[(p * d_rope / 2 + i) * 2 + 1] = sinf(angle);
        }
}

static void d31_rope_pairs_neighbours(void **state)
{
    const kt_devices *d = *state;
    float q[4] = {1, 0, 0, 0}, k[4] = {0, 1, 0, 0}, table[2 * 4];
    int32_t one = 1, zero = 0;
    fill_angles(table, 2, 4, 10000);
    kern_rope_args a = {.q = {.data = q, .stride = 4},
                        .n_heads = 1,
                        .d_head = 4,
                        .d_rope = 4,
                        .pos = &one,
                        .cos_sin = table,
                        .rows_cap = 1};
    assert_int_equal(run_rope(d->at[1].ctx, &a), LTD_OK);
    a.q.data = k, a.pos = &zero;
    assert_int_equal(run_rope(d->at[1].ctx, &a), LTD_OK);
    assert_true(fabs(q[0] * k[0] + q[1] * k[1] + q[2] * k[2] + q[3] * k[3] - 0.8414710) < 1e-6);
}

static void rope_of_the_sheets_vector_gives_its_numbers(void **state)
{
    const kt_devices *d = *state;
    const double expected[8] = {0.2489707, -2.2221642, -2.7076487, 4.2034080,
                                7.6282804, 1.6761080,  3.7103053,  -9.9616080};
    float *table = malloc(11 * 64 * 4), x[64] = {0};
    for (int i = 0; i < 8; i++) x[i] = (float)(i + 1);
    fill_angles(table, 11, 64, 10000);
    int32_t pos = 10;
    kern_rope_args a = {.q = {.data = x, .stride = 64},
                        .n_heads = 1,
                        .d_head = 64,
                        .d_rope = 64,
                        .pos = &pos,
                        .cos_sin = table,
                        .rows_cap = 1};
    assert_int_equal(run_rope(d->at[1].ctx, &a), LTD_OK);
    for (int i = 0; i < 8; i++) assert_true(fabs(x[i] - expected[i]) < 5e-6);
    free(table);
}

static void rope_turns_only_the_last_part_of_each_head(void **state)
{
    const kt_devices *d = *state;
    enum { ROWS = 5, HEADS = 3, D = 40, ROPE = 16, N_POS = 9 };
    float table[N_POS * ROPE];
    int32_t pos[ROWS + 1] = {8, 0, 3, 3, 1, 1 << 30}, rows = ROWS;
    fill_angles(table, N_POS, ROPE, 10000);
    for (int t = 0; t < 2; t++) {
        kern_tensor q = kt_tensor(dtype(t), ROWS + 1, HEADS * D, HEADS * D + 7, -2, 2);
        double e[ROWS * HEADS * D];
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < HEADS * D; i++) {
                int64_t at = r * q.stride + i;
                int in = i % D - (D - ROPE);
                const float *cs = table + pos[r] * ROPE + in / 2 * 2;
                e[r * HEADS * D + i] = in < 0   ? kt_get(&q, at)
                                       : in % 2 ? kt_get(&q, at - 1) * cs[1] + kt_get(&q, at) * cs[0]
                                                : kt_get(&q, at) * cs[0] - kt_get(&q, at + 1) * cs[1];
            }
        kern_rope_args a = {.q = q,
                            .n_heads = HEADS,
                            .d_head = D,
                            .d_rope = ROPE,
                            .pos = pos,
                            .cos_sin = table,
                            .rows_cap = ROWS + 1,
                            .rows = &rows};
        kt_out o = KT_OUT(q, ROWS + 1);
        kt_same_bits(d, run_rope, &a, &o, 1);
        kt_near("rope", &q, ROWS, HEADS * D, e, tolerance(q.dtype));
        kt_free(&q);
    }
}

/* ---------------------------------------------------------------- latent */

static void latent_case(const kt_devices *d, int32_t rows, int32_t d_c, int32_t d_rope, int t, bool slots)
{
    enum { N_POS = 50, N_SLOTS = 64 };
    kern_dtype in = dtype(t & 1), cache = dtype(t & 2);
    float *table = malloc((size_t)(N_POS * d_rope) * 4);
    int32_t pos[N_SLOTS], slot[N_SLOTS];
    fill_angles(table, N_POS, d_rope, 10000);
    for (int i = 0; i < N_SLOTS; i++) pos[i] = kt_below(N_POS), slot[i] = (i * 29 + 1) % N_SLOTS;
    /* one row holds latent and rope, as the pool's planes may */
    kern_tensor kv = kt_tensor(in, rows, d_c + d_rope, d_c + d_rope + 1, -2, 2),
                pool = kt_poison(cache, N_SLOTS, d_c + d_rope), rope = pool,
                w = kt_tensor(KERN_F32, 1, d_c, d_c, 0.5f, 2);
    rope.data = (char *)pool.data + (size_t)d_c * kern_dtype_bytes(cache);
    kern_latent_args a = {.kv_a = kv,
                          .norm_weight = w.data,
                          .eps = 1e-6f,
                          .d_c = d_c,
                          .d_rope = d_rope,
                          .pos = pos,
                          .cos_sin = table,
                          .slots = slots ? slot : NULL,
                          .latent = pool,
                          .rope = rope,
                          .rows_cap = rows};
    kt_out o = KT_OUT(pool, N_SLOTS);
    kt_same_bits(d, run_latent, &a, &o, 1);
    bool written[N_SLOTS] = {0};
    double *e = malloc((size_t)(d_c + d_rope) * sizeof *e);
    for (int32_t r = 0; r < rows; r++) {
        double squares = 0;
        int64_t from = r * kv.stride;
        for (int32_t i = 0; i < d_c; i++) squares += kt_get(&kv, from + i) * kt_get(&kv, from + i);
        for (int32_t i = 0; i < d_c; i++)
            e[i] = kt_get(&kv, from + i) / sqrt(squares / d_c + 1e-6) * kt_get(&w, i);
        for (int32_t i = 0; i < d_rope; i += 2) {
            const float *cs = table + pos[r] * d_rope + i;
            double p = kt_get(&kv, from + d_c + i), q = kt_get(&kv, from + d_c + i + 1);
            e[d_c + i] = p * cs[0] - q * cs[1];
            e[d_c + i + 1] = p * cs[1] + q * cs[0];
        }
        kern_tensor row = pool;
        int32_t to = slots ? slot[r] : r;
        row.data = (char *)pool.data + (size_t)(to * pool.stride) * kern_dtype_bytes(cache);
        kt_near("latent", &row, 1, d_c + d_rope, e, in == KERN_BF16 || cache == KERN_BF16 ? 4e-3 : 2e-6);
        written[to] = true;
    }
    for (int i = 0; i < N_SLOTS; i++)
        if (!written[i]) kt_untouched(&pool, i);
    free(e);
    free(table);
    kt_free(&kv);
    kt_free(&pool);
    kt_free(&w);
}

static void latent_in_every_form_has_the_definitions_bits(void **state)
{
    for (int t = 0; t < 4; t++)
        for (int slots = 0; slots < 2; slots++) {
            latent_case(*state, 0, 16, 4, t, slots);
            latent_case(*state, 1, 48, 16, t, slots);
            latent_case(*state, 33, 19, 6, t, slots);
            latent_case(*state, 9, 512, 64, t, slots);
        }
}

/* bf16 values go to an f32 cache as bf16 values. */
static void latent_of_bf16_input_in_an_f32_cache_holds_bf16_values(void **state)
{
    const kt_devices *d = *state;
    enum { D = 48, R = 16 };
    float table[R];
    int32_t pos = 0;
    fill_angles(table, 1, R, 10000);
    for (int i = 0; i < R; i++) table[i] = 0.7071f;
    kern_tensor kv = kt_tensor(KERN_BF16, 1, D + R, D + R, -2, 2), out = kt_poison(KERN_F32, 1, D),
                rope = kt_poison(KERN_F32, 1, R), w = kt_tensor(KERN_F32, 1, D, D, 0.5f, 2);
    kern_latent_args a = {.kv_a = kv,
                          .norm_weight = w.data,
                          .eps = 1e-6f,
                          .d_c = D,
                          .d_rope = R,
                          .pos = &pos,
                          .cos_sin = table,
                          .latent = out,
                          .rope = rope,
                          .rows_cap = 1};
    assert_int_equal(run_latent(d->at[1].ctx, &a), LTD_OK);
    for (int i = 0; i < D; i++) assert_true(kt_get(&out, i) == kt_round(KERN_BF16, (float)kt_get(&out, i)));
    for (int i = 0; i < R; i++) assert_true(kt_get(&rope, i) == kt_round(KERN_BF16, (float)kt_get(&rope, i)));
    kt_free(&kv);
    kt_free(&out);
    kt_free(&rope);
    kt_free(&w);
}

/* ---------------------------------------------------------------- copy_rows, mha_write */

static void copy_rows_gathers_scatters_and_converts(void **state)
{
    const kt_devices *d = *state;
    enum { N = 40, ROWS = 17 };
    int32_t from[ROWS], to[ROWS], rows = ROWS - 1;
    for (int i = 0; i < ROWS; i++) from[i] = kt_below(N), to[i] = (i * 7 + 3) % N;
    from[ROWS - 1] = to[ROWS - 1] = 1 << 30;
    for (int t = 0; t < 16; t++)
        for (int32_t width = 1; width < 700; width = width * 5 + 2) {
            kern_tensor src = kt_tensor(dtype(t & 1), N, width, width + 1, -5, 5),
                        dst = kt_poison(dtype(t & 2), N, width + 2);
            kern_copy_rows_args a = {.src = src,
                                     .dst = dst,
                                     .src_index = t & 4 ? from : NULL,
                                     .dst_index = t & 8 ? to : NULL,
                                     .d = width,
                                     .rows_cap = ROWS,
                                     .rows = &rows};
            kt_out o = KT_OUT(dst, N);
            kt_same_bits(d, run_copy_rows, &a, &o, 1);
            for (int i = 0; i < ROWS - 1; i++)
                for (int32_t c = 0; c < width; c++)
                    assert_true(
                        kt_get(&dst, (t & 8 ? to[i] : i) * dst.stride + c) ==
                        kt_round(dst.dtype, (float)kt_get(&src, (t & 4 ? from[i] : i) * src.stride + c)));
            kt_free(&src);
            kt_free(&dst);
        }
    int32_t tokens[3] = {-1, 7, 0x7fc00001}, out[3] = {0};
    kern_copy_rows_args a = {.src = {.data = tokens, .dtype = KERN_I32, .stride = 1},
                             .dst = {.data = out, .dtype = KERN_I32, .stride = 1},
                             .d = 1,
                             .rows_cap = 3};
    for (int i = 0; i < d->n; i++) {
        memset(out, 0, sizeof out);
        assert_int_equal(run_copy_rows(d->at[i].ctx, &a), LTD_OK);
        assert_memory_equal(out, tokens, sizeof out);
    }
}

static void bf16_rounding_is_to_nearest_even_with_nan_kept(void **state)
{
    const kt_devices *d = *state;
    const struct {
        uint32_t f32;
        uint16_t bf16;
    } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82},
                 {0x3f817fff, 0x3f81}, {0x7f7fffff, 0x7f80}, {0xff800000, 0xff80}, {0x7f800001, 0x7fc0},
                 {0xffffffff, 0xffff}, {0x00000001, 0},      {0x80008000, 0x8000}, {0x80018000, 0x8002}};
    enum { N = KT_LEN(cases) };
    uint32_t in[3 * N];
    uint16_t out[3 * N];
    for (int i = 0; i < 3 * N; i++) in[i] = cases[i % N].f32;
    kern_copy_rows_args a = {.src = {.data = in, .dtype = KERN_F32, .stride = 3 * N},
                             .dst = {.data = out, .dtype = KERN_BF16, .stride = 3 * N},
                             .d = 3 * N,
                             .rows_cap = 1};
    for (int i = 0; i < d->n; i++) {
        assert_int_equal(run_copy_rows(d->at[i].ctx, &a), LTD_OK);
        for (int j = 0; j < 3 * N; j++) assert_int_equal(out[j], cases[j % N].bf16);
    }
}

static void mha_write_splits_keys_and_values(void **state)
{
    const kt_devices *d = *state;
    const struct {
        int32_t heads, nope, rope, v;
    } dims[] = {{1, 1, 2, 1}, {3, 24, 16, 20}, {16, 128, 64, 128}};
    enum { ROWS = 6, SLOTS = 20 };
    int32_t slots[ROWS] = {19, 1, 7, 2, 11, 3};
    for (int s = 0; s < KT_LEN(dims); s++)
        for (int t = 0; t < 4; t++) {
            int32_t H = dims[s].heads, N = dims[s].nope, R = dims[s].rope, V = dims[s].v, K = N + R;
            kern_tensor kv = kt_tensor(dtype(t & 1), ROWS, H * (N + V), H * (N + V), -1, 1),
                        pe = kt_tensor(dtype(t & 1), ROWS, R, R + 1, -1, 1),
                        k = kt_poison(dtype(t & 2), SLOTS, H * K), v = kt_poison(dtype(t & 2), SLOTS, H * V);
            kern_mha_write_args a = {.kv = kv,
                                     .k_pe = pe,
                                     .k = k,
                                     .v = v,
                                     .n_heads = H,
                                     .d_nope = N,
                                     .d_rope = R,
                                     .d_v = V,
                                     .slots = slots,
                                     .rows_cap = ROWS};
            kt_out o[] = {KT_OUT(k, SLOTS), KT_OUT(v, SLOTS)};
            kt_same_bits(d, run_mha_write, &a, o, 2);
            for (int r = 0; r < ROWS; r++)
                for (int h = 0; h < H; h++) {
                    for (int i = 0; i < K; i++)
                        assert_true(
                            kt_get(&k, slots[r] * k.stride + h * K + i) ==
                            kt_round(k.dtype, (float)(i < N ? kt_get(&kv, r * kv.stride + h * (N + V) + i)
                                                            : kt_get(&pe, r * pe.stride + i - N))));
                    for (int i = 0; i < V; i++)
                        assert_true(
                            kt_get(&v, slots[r] * v.stride + h * V + i) ==
                            kt_round(v.dtype, (float)kt_get(&kv, r * kv.stride + h * (N + V) + N + i)));
                }
            kt_untouched(&k, 0);
            kt_untouched(&v, 18);
            kt_free(&kv);
            kt_free(&pe);
            kt_free(&k);
            kt_free(&v);
        }
}

/* ---------------------------------------------------------------- silu_mul */

static void silu_mul_has_the_definitions_bits(void **state)
{
    for (int t = 0; t < 4; t++)
        for (int32_t width = 1; width < 1500; width = width * 3 + 1)
            for (int32_t rows = 0; rows < 20; rows = rows * 3 + 1) {
                kern_tensor x = kt_tensor(dtype(t & 1), rows + 1, 2 * width, 2 * width + 1, -6, 6),
                            out = kt_poison(dtype(t & 2), rows + 1, width + 3);
                kern_silu_mul_args a = {.x = x, .out = out, .d = width, .rows_cap = rows + 1, .rows = &rows};
                kt_out o = KT_OUT(out, rows + 1);
                kt_same_bits(*state, run_silu_mul, &a, &o, 1);
                double *e = malloc(((size_t)(rows * width) + 1) * sizeof *e);
                for (int32_t i = 0; i < rows * width; i++) {
                    double g = kt_get(&x, i / width * x.stride + i % width);
                    e[i] = g / (1 + exp(-g)) * kt_get(&x, i / width * x.stride + width + i % width);
                }
                kt_near("silu_mul", &out, rows, width, e, tolerance(out.dtype));
                kt_untouched(&out, rows);
                free(e);
                kt_free(&x);
                kt_free(&out);
            }
}

/* ---------------------------------------------------------------- merge */

static void merge_two(const kt_device *d, float x, float lse_x, float y, float lse_y, float *out, float *lse)
{
    *out = x, *lse = lse_x;
    kern_merge_args a = {.acc = {.data = out, .stride = 1},
                         .acc_lse = lse,
                         .part = {.data = &y, .stride = 1},
                         .part_lse = &lse_y,
                         .n_heads = 1,
                         .d_v = 1,
                         .rows_cap = 1};
    assert_int_equal(run_merge(d->ctx, &a), LTD_OK);
}

static void d29_merge_is_in_natural_logarithms_and_safe_at_minus_infinity(void **state)
{
    const kt_devices *d = *state;
    for (int i = 0; i < d->n; i++) {
        const kt_device *b = &d->at[i];
        const float empties[] = {0, 3, NAN, INFINITY};
        float out, lse;
        merge_two(b, 1, 2, 0, 1, &out, &lse);
        assert_true(fabs(out - 0.731059) < 1e-6 && fabs(lse - 2.313262) < 1e-6);
        for (int e = 0; e < KT_LEN(empties); e++) {
            merge_two(b, empties[e], -INFINITY, 0.25f, 0.5f, &out, &lse);
            assert_true(out == 0.25f && lse == 0.5f);
            merge_two(b, 0.25f, 0.5f, empties[e], -INFINITY, &out, &lse);
            assert_true(out == 0.25f && lse == 0.5f);
        }
        merge_two(b, 0, -INFINITY, 0, -INFINITY, &out, &lse);
        assert_true(out == 0 && lse == -INFINITY);
        merge_two(b, 1, 200, 5, -200, &out, &lse);
        assert_true(out == 1 && lse == 200);
    }
}

static void merge_of_rows_has_the_definitions_bits(void **state)
{
    const struct {
        int32_t rows, heads, d_v;
    } dims[] = {{0, 2, 4}, {1, 1, 1}, {3, 2, 20}, {5, 16, 128}, {40, 3, 33}};
    for (int s = 0; s < KT_LEN(dims); s++)
        for (int t = 0; t < 6; t++) {
            int32_t rows = dims[s].rows, H = dims[s].heads, V = dims[s].d_v, w = H * V;
            bool part = t % 3 != 2, out = t % 3 != 0;
            kern_tensor acc = kt_tensor(KERN_F32, rows + 1, w, w + 1, -1, 1),
                        p = kt_tensor(KERN_F32, rows, w, w, -1, 1),
                        y = kt_poison(dtype(t & 1), rows + 1, w + 2),
                        la = kt_tensor(KERN_F32, rows + 1, H, H, -2, 2),
                        lp = kt_tensor(KERN_F32, rows, H, H, -2, 2);
            for (int32_t i = 0; i < rows * H; i++) {
                if (kt_below(4) == 0) ((float *)la.data)[i] = -INFINITY;
                if (kt_below(4) == 0) ((float *)lp.data)[i] = -INFINITY;
            }
            double *e = malloc(((size_t)(rows * w) + 1) * sizeof *e);
            for (int32_t i = 0; i < rows * w; i++) {
                int32_t r = i / w, h = i % w / V;
                double a = exp(kt_get(&la, r * H + h)), b = part ? exp(kt_get(&lp, r * H + h)) : 0,
                       x = kt_get(&acc, r * acc.stride + i % w), z = kt_get(&p, i);
                e[i] = b == 0 ? x : a == 0 ? z : (a * x + b * z) / (a + b);
            }
            kern_merge_args m = {.acc = acc,
                                 .acc_lse = la.data,
                                 .part = part ? p : (kern_tensor){0},
                                 .part_lse = part ? lp.data : NULL,
                                 .out = out ? y : (kern_tensor){0},
                                 .n_heads = H,
                                 .d_v = V,
                                 .rows_cap = rows + 1,
                                 .rows = &rows};
            kt_out o[] = {KT_OUT(acc, rows + 1), KT_OUT(la, rows + 1), KT_OUT(y, rows + 1)};
            kt_same_bits(*state, run_merge, &m, o, 3);
            kt_near("merge", &acc, rows, w, e, 2e-6);
            if (out) kt_near("merge out", &y, rows, w, e, tolerance(y.dtype));
            kt_untouched(&y, rows);
            free(e);
            kt_free(&acc);
            kt_free(&p);
            kt_free(&y);
            kt_free(&la);
            kt_free(&lp);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_of_ids_and_padding_writes_rows_and_zeros),
        cmocka_unit_test(add_norm_in_every_form_has_the_definitions_bits),
        cmocka_unit_test(add_norm_in_bf16_rounds_twice),
        cmocka_unit_test(d31_rope_pairs_neighbours),
        cmocka_unit_test(rope_of_the_sheets_vector_gives_its_numbers),
        cmocka_unit_test(rope_turns_only_the_last_part_of_each_head),
        cmocka_unit_test(latent_in_every_form_has_the_definitions_bits),
        cmocka_unit_test(latent_of_bf16_input_in_an_f32_cache_holds_bf16_values),
        cmocka_unit_test(copy_rows_gathers_scatters_and_converts),
        cmocka_unit_test(bf16_rounding_is_to_nearest_even_with_nan_kept),
        cmocka_unit_test(mha_write_splits_keys_and_values),
        cmocka_unit_test(silu_mul_has_the_definitions_bits),
        cmocka_unit_test(d29_merge_is_in_natural_logarithms_and_safe_at_minus_infinity),
        cmocka_unit_test(merge_of_rows_has_the_definitions_bits),
    };
    return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
