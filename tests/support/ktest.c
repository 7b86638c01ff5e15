#include "tests/support/ktest.h"
#include <stdio.h>

/* ---------------------------------------------------------------- devices */

kt_device kt_open(const char *name, const char *isa, int threads)
{
    kt_device d = {0};
    ltd_err err;
    kern_backend_options o = {.n_threads = threads, .isa = isa};
    if (kern_backend_open(name, &o, &d.backend, &err) != LTD_OK) return d;
    if (d.backend->ops->ctx_create(d.backend, 0, 0, 0, &d.ctx, &err) != LTD_OK) fail_msg("%s", err.text);
    snprintf(d.name, sizeof d.name, "%s/%d", isa ? isa : name, threads);
    return d;
}

void kt_close(kt_device *d)
{
    if (!d->backend) return;
    d->backend->ops->ctx_destroy(d->ctx);
    kern_backend_close(d->backend);
}

int kt_setup(void **state)
{
    static const char *const isas[] = {"v2", "v3", "v4", "base"};
    kt_devices *d = calloc(1, sizeof *d);
    d->at[d->n++] = kt_open("cpu-ref", NULL, 1);
    for (int i = 0; i < KT_LEN(isas); i++)
        for (int threads = 1; threads <= 3; threads++) {
            kt_device one = kt_open("cpu", isas[i], threads);
            if (one.backend) d->at[d->n++] = one;
        }
    *state = d;
    return d->n < 2;
}

int kt_teardown(void **state)
{
    kt_devices *d = *state;
    for (int i = 0; i < d->n; i++) kt_close(&d->at[i]);
    free(d);
    return 0;
}

/* ---------------------------------------------------------------- random numbers */

static uint64_t seed;

uint64_t kt_random(void)
{
    if (!seed) {
        const char *set = getenv("KT_SEED");
        seed = set ? strtoull(set, NULL, 10) : 20261;
        print_message("KT_SEED=%llu\n", (unsigned long long)seed);
    }
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed * 0x2545f4914f6cdd1dull;
}

float kt_uniform(float lo, float hi)
{
    return lo + (hi - lo) * (float)((double)(kt_random() >> 11) * 0x1p-53);
}
int32_t kt_below(int32_t n) { return (int32_t)(kt_random() % (uint64_t)n); }

/* ---------------------------------------------------------------- tensors */

void kt_put(const kern_tensor *t, int64_t i, float v)
{
    if (t->dtype == KERN_BF16)
        ((uint16_t *)t->data)[i] = kern_f32_to_bf16(v);
    else
        ((float *)t->data)[i] = v;
}

double kt_get(const kern_tensor *t, int64_t i)
{
    return t->dtype == KERN_BF16 ? kern_bf16_to_f32(((uint16_t *)t->data)[i]) : ((float *)t->data)[i];
}
float kt_round(kern_dtype t, float v) { return t == KERN_BF16 ? kern_bf16_to_f32(kern_f32_to_bf16(v)) : v; }

kern_tensor kt_poison(kern_dtype dtype, int64_t rows, int64_t stride)
{
    size_t bytes = (size_t)(rows * stride) * kern_dtype_bytes(dtype);
    kern_tensor t = {.data = malloc(bytes ? bytes : 1), .dtype = dtype, .stride = stride};
    for (int64_t i = 0; i < rows * stride; i++) kt_put(&t, i, NAN);
    return t;
}

kern_tensor kt_tensor(kern_dtype dtype, int64_t rows, int64_t cols, int64_t stride, float lo, float hi)
{
    kern_tensor t = kt_poison(dtype, rows, stride);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) kt_put(&t, r * stride + c, kt_uniform(lo, hi));
    return t;
}

void kt_free(kern_tensor *t)
{
    free(t->data);
    *t = (kern_tensor){0};
}

kern_weight *kt_weight(const kt_device *d, kern_dtype dtype, int32_t count, int32_t n, int32_t k, float scale,
                       float **values)
{
    kern_tensor t = kt_tensor(dtype, (int64_t)count * n, k, k, -scale, scale);
    kern_weight_part *parts = calloc((size_t)count, sizeof *parts);
    for (int32_t i = 0; i < count; i++)
        parts[i] = (kern_weight_part){.data = (char *)t.data +
                                              (size_t)i * (size_t)n * (size_t)k * kern_dtype_bytes(dtype),
                                      .dtype = dtype,
                                      .n = n};
    kern_weight_desc desc = {.name = "test", .count = count, .n_parts = 1, .parts = parts, .k = k};
    kern_weight *w = NULL;
    ltd_err err;
    if (d->backend->ops->weight_create(d->backend, &desc, &w, &err) != LTD_OK) fail_msg("%s", err.text);
    *values = malloc(((size_t)count * (size_t)n * (size_t)k + 1) * 4);
    for (int64_t i = 0; i < (int64_t)count * n * k; i++) (*values)[i] = (float)kt_get(&t, i);
    free(parts);
    kt_free(&t);
    return w;
}

/* ---------------------------------------------------------------- comparison */

void kt_same_bits(const kt_devices *d, kt_run *run, const void *args, const kt_out *outs, int n_outs)
{
    enum { MAX_OUTS = 8 };
    void *initial[MAX_OUTS], *expected[MAX_OUTS];
    assert_true(n_outs <= MAX_OUTS);
    for (int o = 0; o < n_outs; o++) {
        initial[o] = malloc(outs[o].bytes + 1);
        expected[o] = malloc(outs[o].bytes + 1);
        memcpy(initial[o], outs[o].data, outs[o].bytes);
    }
    for (int i = 0; i < d->n; i++) {
        for (int o = 0; o < n_outs; o++) memcpy(outs[o].data, initial[o], outs[o].bytes);
        assert_int_equal(run(d->at[i].ctx, args), LTD_OK);
        for (int o = 0; o < n_outs; o++) {
            if (i == 0) memcpy(expected[o], outs[o].data, outs[o].bytes);
            const unsigned char *a = expected[o], *b = outs[o].data;
            size_t at = 0;
            while (at < outs[o].bytes && a[at] == b[at]) at++;
            if (at == outs[o].bytes) continue;
            uint32_t wa = 0, wb = 0;
            size_t word = at & ~(size_t)3, n = outs[o].bytes - word < 4 ? outs[o].bytes - word : 4;
            memcpy(&wa, a + word, n);
            memcpy(&wb, b + word, n);
            fail_msg("%s on %s differs from the definition at byte %zu of %zu: %08x, not %08x", outs[o].name,
                     d->at[i].name, at, outs[o].bytes, wb, wa);
        }
    }
    for (int o = 0; o < n_outs; o++) {
        free(initial[o]);
        free(expected[o]);
    }
}

void kt_near(const char *what, const kern_tensor *t, int64_t rows, int64_t cols, const double *expected,
             double tolerance)
{
    double error = 0, norm = 0, worst = -1;
    /* too few values for errors to average; a single sum may cancel almost wholly */
    tolerance *= rows * cols < 10 ? 30 : rows * cols < 1000 ? 2 : 1;
    int64_t worst_r = 0, worst_c = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            double a = kt_get(t, r * t->stride + c), e = expected[r * cols + c];
            if (isnan(a) != isnan(e) || isinf(a) != isinf(e) || (isinf(a) && a != e))
                fail_msg("%s[%lld][%lld] is %g, not %g", what, (long long)r, (long long)c, a, e);
            if (!isfinite(e)) continue;
            error += (a - e) * (a - e);
            norm += e * e;
            if (fabs(a - e) > worst) worst = fabs(a - e), worst_r = r, worst_c = c;
        }
    if (sqrt(error) > tolerance * sqrt(norm) + 1e-30)
        fail_msg("%s: relative distance %.3g over %.3g; worst at [%lld][%lld]: %g, not %g", what,
                 sqrt(error / norm), tolerance, (long long)worst_r, (long long)worst_c,
                 kt_get(t, worst_r * t->stride + worst_c), expected[worst_r * cols + worst_c]);
}

void kt_untouched(const kern_tensor *t, int64_t row)
{
    for (int64_t c = 0; c < t->stride; c++)
        if (!isnan(kt_get(t, row * t->stride + c)))
            fail_msg("row %lld was touched at %lld: %g", (long long)row, (long long)c,
                     kt_get(t, row * t->stride + c));
}
