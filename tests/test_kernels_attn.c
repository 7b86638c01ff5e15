/* attn_decode and attn_prefill. */
#include "tests/support/ktest.h"

static ltd_status run_decode(const kern_ctx *c, const void *a) { return c->ops->attn_decode(c, a); }
static ltd_status run_prefill(const kern_ctx *c, const void *a) { return c->ops->attn_prefill(c, a); }

static kern_dtype dtype(int bit) { return bit ? KERN_BF16 : KERN_F32; }

static kern_tensor part(kern_tensor t, int64_t elements)
{
    t.data = (char *)t.data + elements * (int64_t)kern_dtype_bytes(t.dtype);
    return t;
}

/* softmax(s) . v in double; s is overwritten. */
static void attend(double *s, int32_t n, const kern_tensor *v, const int64_t *at, int32_t d_v, double *out,
                   double *lse)
{
    double m = -INFINITY, l = 0;
    for (int32_t j = 0; j < n; j++) m = fmax(m, s[j]);
    for (int32_t j = 0; j < n; j++) l += s[j] = exp(s[j] - m);
    for (int32_t c = 0; c < d_v; c++) {
        out[c] = 0;
        for (int32_t j = 0; j < n; j++) out[c] += s[j] / l * kt_get(v, at[j] + c);
    }
    *lse = n ? m + log(l) : -INFINITY;
}

static double dot(const kern_tensor *a, int64_t ia, const kern_tensor *b, int64_t ib, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += kt_get(a, ia + i) * kt_get(b, ib + i);
    return sum;
}

/* ---------------------------------------------------------------- decode */

enum { ABSURD = 0x7ffffff0 };

typedef struct decode {
    kern_attn_decode_args a;
    kern_tensor lse;
    int32_t n_slots, rows_cap;
    int32_t *seq, *len, *table, rows;
} decode;

typedef enum layout { MLA, MHA, SPLIT } layout; /* SPLIT: two key planes with heads of their own */

/* Sequences of the lengths given, one row each in shuffled order, every position on a slot of its own; unused
 * slots NaN, table entries past a length absurd. */
static decode decode_create(layout l, int32_t heads, int32_t d0, int32_t d1, int32_t d_v, const int32_t *lens,
                            int32_t n, kern_dtype act, kern_dtype cache)
{
    decode x = {.rows = n, .rows_cap = n + 1};
    int64_t longest = 1, used = 0;
    for (int32_t i = 0; i < n; i++) {
        used += lens[i];
        if (lens[i] > longest) longest = lens[i];
    }
    x.n_slots = (int32_t)used + 8;
    x.seq = malloc(4 * (size_t)x.rows_cap);
    x.len = malloc(4 * (size_t)x.rows_cap);
    x.table = malloc(4 * (size_t)((n + 1) * (longest + 1)));
    for (int64_t i = 0; i < (n + 1) * (longest + 1); i++) x.table[i] = ABSURD;
    int32_t *order = malloc(4 * (size_t)x.n_slots), next = 0;
    for (int32_t i = 0; i < x.n_slots; i++) {
        int32_t j = kt_below(i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    bool mla = l == MLA;
    int64_t k_width = mla ? d0 + d1 : heads * d0;
    kern_tensor k = kt_poison(cache, x.n_slots, k_width),
                k1 = mla ? part(k, d0) : kt_poison(cache, x.n_slots, heads * d1 + 1),
                v = mla ? k : kt_poison(cache, x.n_slots, heads * d_v);
    for (int32_t r = 0; r < n; r++) {
        x.seq[r] = n - 1 - r;
        x.len[r] = lens[r];
        for (int32_t p = 0; p < lens[r]; p++) {
            int64_t slot = x.table[x.seq[r] * (longest + 1) + p] = order[next++];
            for (int64_t i = 0; i < k_width; i++) kt_put(&k, slot * k.stride + i, kt_uniform(-1, 1));
            for (int64_t i = 0; !mla && i < heads * d1; i++)
                kt_put(&k1, slot * k1.stride + i, kt_uniform(-1, 1));
            for (int64_t i = 0; !mla && i < heads * d_v; i++)
                kt_put(&v, slot * v.stride + i, kt_uniform(-1, 1));
        }
    }
    x.seq[n] = x.len[n] = ABSURD;
    kern_tensor q0 = kt_tensor(act, n + 1, heads * (d0 + 1), heads * (d0 + 1), -1, 1),
                q1 = d1 ? kt_tensor(act, n + 1, heads * (d1 + 2), heads * (d1 + 2) + 1, -1, 1)
                        : (kern_tensor){0};
    x.lse = kt_poison(KERN_F32, n + 1, heads);
    x.a = (kern_attn_decode_args){.q0 = q0,
                                  .q1 = q1,
                                  .k0 = k,
                                  .k1 = d1 ? k1 : (kern_tensor){0},
                                  .v = v,
                                  .out = kt_poison(act, n + 1, heads * d_v + 1),
                                  .q0_head = d0 + 1,
                                  .q1_head = d1 + 2,
                                  .k0_head = mla ? 0 : d0,
                                  .k1_head = mla ? 0 : d1,
                                  .v_head = mla ? 0 : d_v,
                                  .n_heads = heads,
                                  .d0 = d0,
                                  .d1 = d1,
                                  .d_v = d_v,
                                  .scale = 2.0f / sqrtf((float)(d0 + d1)),
                                  .len_cap = (int32_t)longest,
                                  .table_stride = longest + 1,
                                  .lse = x.lse.data,
                                  .rows_cap = n + 1};
    x.a.seq = x.seq, x.a.len = x.len, x.a.table = x.table;
    free(order);
    if (!mla && !d1) kt_free(&k1);
    return x;
}

static void decode_destroy(decode *x)
{
    bool mla = x->a.v.data == x->a.k0.data;
    if (!mla) kt_free(&x->a.v);
    if (!mla && x->a.d1) kt_free(&x->a.k1);
    kt_free(&x->a.k0);
    kt_free(&x->a.q0);
    if (x->a.d1) kt_free(&x->a.q1);
    kt_free(&x->a.out);
    kt_free(&x->lse);
    free(x->seq);
    free(x->len);
    free(x->table);
}

static void decode_check(const decode *x, double tolerance)
{
    const kern_attn_decode_args *a = &x->a;
    double *e = malloc(((size_t)(x->rows * a->n_heads * a->d_v) + 1) * sizeof *e),
           *lse = malloc(((size_t)(x->rows * a->n_heads) + 1) * sizeof *lse),
           *s = malloc(sizeof *s * (size_t)(a->len_cap + 1));
    int64_t *at = malloc(sizeof *at * (size_t)(a->len_cap + 1));
    for (int32_t r = 0; r < x->rows; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            for (int32_t p = 0; p < x->len[r]; p++) {
                int64_t slot = x->table[x->seq[r] * a->table_stride + p];
                s[p] = dot(&a->q0, r * a->q0.stride + h * a->q0_head, &a->k0,
                           slot * a->k0.stride + h * a->k0_head, a->d0);
                if (a->d1)
                    s[p] += dot(&a->q1, r * a->q1.stride + h * a->q1_head, &a->k1,
                                slot * a->k1.stride + h * a->k1_head, a->d1);
                s[p] *= a->scale;
                at[p] = slot * a->v.stride + h * a->v_head;
            }
            attend(s, x->len[r], &a->v, at, a->d_v, e + ((int64_t)r * a->n_heads + h) * a->d_v,
                   &lse[r * a->n_heads + h]);
        }
    kt_near("attn_decode", &a->out, x->rows, a->n_heads * a->d_v, e, tolerance);
    kt_near("attn_decode lse", &x->lse, x->rows, a->n_heads, lse, 2e-6);
    kt_untouched(&a->out, x->rows);
    kt_untouched(&x->lse, x->rows);
    free(e);
    free(lse);
    free(s);
    free(at);
}

static void decode_case(const kt_devices *d, layout l, int32_t heads, int32_t d0, int32_t d1, int32_t d_v,
                        const int32_t *lens, int32_t n, int t)
{
    decode x = decode_create(l, heads, d0, d1, d_v, lens, n, dtype(t & 1), dtype(t & 2));
    x.a.rows = &x.rows;
    kt_out o[] = {KT_OUT(x.a.out, x.rows_cap), KT_OUT(x.lse, x.rows_cap)};
    kt_same_bits(d, run_decode, &x.a, o, 2);
    decode_check(&x, t ? 4e-3 : 4e-6);
    decode_destroy(&x);
}

static void decode_over_the_mla_pool_has_the_definitions_bits(void **state)
{
    const int32_t lens[] = {0, 1, 63, 64, 65, 200, 16, 129}, few[] = {300, 7, 0};
    for (int t = 0; t < 4; t++) {
        decode_case(*state, MLA, 1, 1, 1, 1, lens, 8, t);
        decode_case(*state, MLA, 3, 48, 16, 48, lens, 8, t);
        decode_case(*state, MLA, 5, 17, 6, 17, lens, 8, t);
        decode_case(*state, MLA, 16, 512, 64, 512, few, 3, t);
        decode_case(*state, MLA, 40, 32, 16, 32, few, 3, t);
        decode_case(*state, MLA, 2, 32, 0, 32, lens, 8, t);
        decode_case(*state, MLA, 2, 32, 16, 32, lens, 0, t);
    }
}

static void decode_over_the_mha_pool_has_the_definitions_bits(void **state)
{
    const int32_t lens[] = {0, 1, 63, 64, 65, 200, 16, 129}, few[] = {150, 1, 0};
    for (int t = 0; t < 4; t++) {
        decode_case(*state, MHA, 1, 1, 0, 1, lens, 8, t);
        decode_case(*state, MHA, 3, 40, 0, 20, lens, 8, t);
        decode_case(*state, MHA, 16, 192, 0, 128, few, 3, t);
        decode_case(*state, SPLIT, 3, 24, 16, 20, lens, 8, t);
    }
}

/* Lengths around every step of the unit table, at dims that keep it quick. */
static void decode_of_long_rows_folds_units_of_every_size(void **state)
{
    const int32_t lens[] = {4095, 4096, 4097, 16384, 16385, 65537};
    decode_case(*state, MLA, 2, 8, 2, 8, lens, KT_LEN(lens), 0);
    decode_case(*state, MLA, 2, 8, 2, 8, lens, 3, 3);
    const int32_t heads33[] = {2047, 2048, 2049, 5000};
    decode_case(*state, MLA, 33, 4, 2, 4, heads33, 4, 0);
}

static void decode_of_a_row_alone_has_its_bits_in_the_batch(void **state)
{
    const kt_devices *d = *state;
    const int32_t lens[] = {70, 1, 333, 64, 0, 90, 700};
    for (int t = 0; t < 2; t++)
        for (int l = 0; l < 2; l++) {
            decode x =
                decode_create(l ? MHA : MLA, 6, 48, l ? 0 : 16, 48, lens, KT_LEN(lens), dtype(t), dtype(t));
            x.a.rows = &x.rows;
            size_t row_bytes = (size_t)(6 * 48) * kern_dtype_bytes(dtype(t));
            kern_tensor one = kt_poison(dtype(t), 1, 6 * 48), lse = kt_poison(KERN_F32, 1, 6);
            for (int i = 0; i < d->n; i++) {
                assert_int_equal(run_decode(d->at[i].ctx, &x.a), LTD_OK);
                for (int32_t r = 0; r < x.rows; r++) {
                    kern_attn_decode_args a = x.a;
                    a.q0 = part(a.q0, r * a.q0.stride);
                    if (a.d1) a.q1 = part(a.q1, r * a.q1.stride);
                    a.seq += r, a.len += r, a.rows = NULL, a.rows_cap = 1, a.out = one, a.lse = lse.data,
                                            a.len_cap = 100000;
                    assert_int_equal(run_decode(d->at[i].ctx, &a), LTD_OK);
                    assert_memory_equal(one.data, part(x.a.out, r * x.a.out.stride).data, row_bytes);
                    assert_memory_equal(lse.data, (float *)x.lse.data + r * 6, 6 * 4);
                }
            }
            kt_free(&one);
            kt_free(&lse);
            decode_destroy(&x);
        }
}

/* MLA's two planes and MHA's one hold the same numbers here: same sums in the same order. */
static void decode_of_one_key_plane_or_two_gives_the_same_bits(void **state)
{
    const kt_devices *d = *state;
    const int32_t lens[] = {100, 65};
    decode x = decode_create(MLA, 4, 32, 16, 32, lens, 2, KERN_F32, KERN_F32);
    kern_tensor q = kt_poison(KERN_F32, 2, 4 * 48), out = kt_poison(KERN_F32, 2, 4 * 32);
    for (int r = 0; r < 2; r++)
        for (int h = 0; h < 4; h++)
            for (int i = 0; i < 48; i++)
                kt_put(&q, r * q.stride + h * 48 + i,
                       (float)(i < 32 ? kt_get(&x.a.q0, r * x.a.q0.stride + h * x.a.q0_head + i)
                                      : kt_get(&x.a.q1, r * x.a.q1.stride + h * x.a.q1_head + i - 32)));
    for (int i = 0; i < d->n; i++) {
        kern_attn_decode_args a = x.a;
        a.rows = &x.rows;
        assert_int_equal(run_decode(d->at[i].ctx, &a), LTD_OK);
        a.q0 = q, a.q0_head = 48, a.d0 = 48, a.d1 = 0, a.q1 = a.k1 = (kern_tensor){0}, a.out = out;
        assert_int_equal(run_decode(d->at[i].ctx, &a), LTD_OK);
        for (int r = 0; r < 2; r++)
            assert_memory_equal((float *)out.data + r * 128, (float *)x.a.out.data + r * x.a.out.stride,
                                128 * 4);
    }
    kt_free(&q);
    kt_free(&out);
    decode_destroy(&x);
}

static void decode_with_huge_scores_stays_finite_and_with_nan_shows_it(void **state)
{
    const kt_devices *d = *state;
    const int32_t lens[] = {130, 130};
    decode x = decode_create(MLA, 2, 16, 4, 16, lens, 2, KERN_F32, KERN_F32);
    x.a.rows = &x.rows;
    x.a.scale = 3e4f;
    for (int i = 0; i < 16; i++) kt_put(&x.a.q0, x.a.q0.stride + i, NAN); /* row 1, head 0 */
    for (int i = 0; i < d->n; i++) {
        assert_int_equal(run_decode(d->at[i].ctx, &x.a), LTD_OK);
        for (int c = 0; c < 32; c++) {
            assert_true(isfinite(kt_get(&x.a.out, c)));
            assert_true(isnan(kt_get(&x.a.out, x.a.out.stride + c)) == (c < 16));
        }
    }
    decode_destroy(&x);
}

/* ---------------------------------------------------------------- prefill */

typedef struct prefill {
    kern_attn_prefill_args a;
    kern_tensor lse;
} prefill;

static prefill prefill_create(int32_t heads, int32_t d0, int32_t d1, int32_t d_v, bool shared1, int32_t rows,
                              int32_t q_pos0, int32_t k_pos0, int32_t n_keys, int t)
{
    kern_dtype act = dtype(t & 1);
    /* keys and values of a head side by side, as kv_b_proj leaves them */
    kern_tensor kv = kt_tensor(act, n_keys, heads * (d0 + d_v), heads * (d0 + d_v) + 1, -1, 1);
    prefill x = {.lse = kt_poison(KERN_F32, rows, heads)};
    x.a = (kern_attn_prefill_args){.q = kt_tensor(act, rows, heads * (d0 + d1), heads * (d0 + d1) + 3, -1, 1),
                                   .k0 = kv,
                                   .k0_head = d0 + d_v,
                                   .v = part(kv, d0),
                                   .v_head = d0 + d_v,
                                   .out = kt_poison(KERN_F32, rows, heads * d_v + 2),
                                   .n_heads = heads,
                                   .d0 = d0,
                                   .d1 = d1,
                                   .d_v = d_v,
                                   .scale = 2.0f / sqrtf((float)(d0 + d1)),
                                   .q_pos0 = q_pos0,
                                   .k_pos0 = k_pos0,
                                   .n_keys = n_keys,
                                   .lse = x.lse.data,
                                   .rows_cap = rows};
    if (d1)
        x.a.k1 = kt_tensor(act, n_keys, (shared1 ? 1 : heads) * d1, (shared1 ? 1 : heads) * d1 + 1, -1, 1);
    x.a.k1_head = shared1 ? 0 : d1;
    return x;
}

static void prefill_destroy(prefill *x)
{
    kt_free(&x->a.q);
    kt_free(&x->a.k0);
    if (x->a.d1) kt_free(&x->a.k1);
    kt_free(&x->a.out);
    kt_free(&x->lse);
}

static void prefill_case(const kt_devices *d, int32_t heads, int32_t d0, int32_t d1, int32_t d_v,
                         bool shared1, int32_t rows, int32_t q_pos0, int32_t k_pos0, int32_t n_keys, int t)
{
    prefill x = prefill_create(heads, d0, d1, d_v, shared1, rows, q_pos0, k_pos0, n_keys, t);
    const kern_attn_prefill_args *a = &x.a;
    kt_out o[] = {KT_OUT(a->out, rows), KT_OUT(x.lse, rows)};
    kt_same_bits(d, run_prefill, a, o, 2);
    double *e = malloc(((size_t)(rows * heads * d_v) + 1) * sizeof *e),
           *lse = malloc(((size_t)(rows * heads) + 1) * sizeof *lse),
           *s = malloc(sizeof *s * (size_t)(n_keys + 1));
    int64_t *at = malloc(sizeof *at * (size_t)(n_keys + 1));
    for (int32_t r = 0; r < rows; r++)
        for (int32_t h = 0; h < heads; h++) {
            int32_t n = 0;
            for (int32_t j = 0; j < n_keys && k_pos0 + j <= q_pos0 + r; j++, n++) {
                s[j] = dot(&a->q, r * a->q.stride + h * (d0 + d1), &a->k0, j * a->k0.stride + h * a->k0_head,
                           d0);
                if (d1)
                    s[j] += dot(&a->q, r * a->q.stride + h * (d0 + d1) + d0, &a->k1,
                                j * a->k1.stride + h * a->k1_head, d1);
                s[j] *= a->scale;
                at[j] = j * a->v.stride + h * a->v_head;
            }
            attend(s, n, &a->v, at, d_v, e + ((int64_t)r * heads + h) * d_v, &lse[r * heads + h]);
        }
    kt_near("attn_prefill", &a->out, rows, heads * d_v, e, t ? 4e-3 : 4e-6);
    kt_near("attn_prefill lse", &x.lse, rows, heads, lse, 2e-6);
    free(e);
    free(lse);
    free(s);
    free(at);
    prefill_destroy(&x);
}

static void prefill_of_every_shape_has_the_definitions_bits(void **state)
{
    for (int t = 0; t < 2; t++) {
        prefill_case(*state, 1, 1, 1, 1, true, 1, 0, 0, 1, t);
        prefill_case(*state, 2, 24, 16, 20, true, 0, 0, 0, 5, t);
        prefill_case(*state, 2, 24, 16, 20, true, 3, 0, 0, 0, t);
        prefill_case(*state, 2, 24, 16, 20, true, 33, 0, 0, 33, t);     /* own block */
        prefill_case(*state, 2, 24, 16, 20, false, 70, 128, 0, 128, t); /* an earlier block: no mask */
        prefill_case(*state, 3, 24, 16, 20, true, 150, 100, 0, 250, t); /* begins inside its block */
        prefill_case(*state, 2, 24, 16, 20, true, 40, 236, 256, 20,
                     t);                                               /* rows before the block see nothing */
        prefill_case(*state, 2, 17, 0, 19, true, 5, 600, 512, 130, t); /* keys past the last row */
        prefill_case(*state, 2, 32, 16, 32, true, 130, 0, 0, 260, t);
        prefill_case(*state, 16, 128, 64, 128, true, 20, 128, 0, 148, t);
    }
}

/* A row's bits do not depend on the chunk that it came in, nor on keys after it. */
static void prefill_of_a_row_alone_has_its_bits_in_any_chunk(void **state)
{
    const kt_devices *d = *state;
    enum { HEADS = 2, ROWS = 75, V = 20 };
    for (int t = 0; t < 2; t++) {
        prefill x = prefill_create(HEADS, 24, 16, V, true, ROWS, 100, 0, 100 + ROWS, t);
        kern_tensor out = kt_poison(KERN_F32, ROWS, HEADS * V), lse = kt_poison(KERN_F32, ROWS, HEADS);
        for (int i = 0; i < d->n; i++) {
            assert_int_equal(run_prefill(d->at[i].ctx, &x.a), LTD_OK);
            for (int32_t first = 0; first < ROWS; first += 1 + first % 7)
                for (int32_t n = 1; first + n <= ROWS; n = n * 3 + 1) {
                    kern_attn_prefill_args a = x.a;
                    a.q = part(a.q, first * a.q.stride), a.q_pos0 += first, a.rows_cap = n,
                    a.n_keys = 100 + first + n, a.out = out, a.lse = lse.data;
                    assert_int_equal(run_prefill(d->at[i].ctx, &a), LTD_OK);
                    for (int32_t r = 0; r < n; r++)
                        assert_memory_equal((float *)out.data + r * HEADS * V,
                                            (float *)x.a.out.data + (first + r) * x.a.out.stride,
                                            HEADS * V * 4);
                    assert_memory_equal(lse.data, (float *)x.lse.data + first * HEADS,
                                        (size_t)(n * HEADS) * 4);
                }
        }
        kt_free(&out);
        kt_free(&lse);
        prefill_destroy(&x);
    }
}

static void prefill_rows_past_the_real_ones_are_untouched(void **state)
{
    const kt_devices *d = *state;
    prefill x = prefill_create(2, 16, 8, 16, true, 6, 0, 0, 6, 0);
    int32_t rows = 4;
    x.a.rows = &rows;
    kt_out o[] = {KT_OUT(x.a.out, 6), KT_OUT(x.lse, 6)};
    kt_same_bits(d, run_prefill, &x.a, o, 2);
    for (int r = 4; r < 6; r++) kt_untouched(&x.a.out, r), kt_untouched(&x.lse, r);
    prefill_destroy(&x);
}

static void attention_that_is_too_wide_is_refused(void **state)
{
    const kt_devices *d = *state;
    prefill x = prefill_create(1, 1, 0, 4097, true, 1, 0, 0, 1, 0);
    for (int i = 0; i < d->n; i += d->n - 1)
        assert_int_equal(run_prefill(d->at[i].ctx, &x.a), LTD_UNSUPPORTED);
    x.a.d_v = 1, x.a.out.dtype = KERN_BF16;
    for (int i = 0; i < d->n; i += d->n - 1)
        assert_int_equal(run_prefill(d->at[i].ctx, &x.a), LTD_UNSUPPORTED);
    prefill_destroy(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_over_the_mla_pool_has_the_definitions_bits),
        cmocka_unit_test(decode_over_the_mha_pool_has_the_definitions_bits),
        cmocka_unit_test(decode_of_long_rows_folds_units_of_every_size),
        cmocka_unit_test(decode_of_a_row_alone_has_its_bits_in_the_batch),
        cmocka_unit_test(decode_of_one_key_plane_or_two_gives_the_same_bits),
        cmocka_unit_test(decode_with_huge_scores_stays_finite_and_with_nan_shows_it),
        cmocka_unit_test(prefill_of_every_shape_has_the_definitions_bits),
        cmocka_unit_test(prefill_of_a_row_alone_has_its_bits_in_any_chunk),
        cmocka_unit_test(prefill_rows_past_the_real_ones_are_untouched),
        cmocka_unit_test(attention_that_is_too_wide_is_refused),
    };
    return cmocka_run_group_tests(tests, kt_setup, kt_teardown);
}
