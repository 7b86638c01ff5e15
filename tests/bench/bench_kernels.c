/* Speed of every op of the CPU backend at the real model's sizes (V2-Lite: hidden 2048, 16 heads, 64
 * experts), against two measured limits: the copy bandwidth of memory and the rate of multiply + add in
 * registers.  Volumes are computed by hand. bench_kernels [threads [isa]] */
#include "kernels/kernels.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kern_backend *backend;
static kern_ctx *ctx;
static double copy_gbs;
static uint64_t state = 88172645463325252ull;

static float noise(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static void *filled(kern_dtype t, int64_t n)
{
    void *p = NULL;
    if (backend->ops->alloc(backend, (size_t)n * kern_dtype_bytes(t), &p) != LTD_OK) exit(1);
    for (int64_t i = 0; i < n; i++) {
        if (t == KERN_BF16)
            ((uint16_t *)p)[i] = kern_f32_to_bf16(noise());
        else
            ((float *)p)[i] = noise();
    }
    return p;
}

static kern_tensor tensor(kern_dtype t, int64_t rows, int64_t cols)
{
    return (kern_tensor){.data = filled(t, rows * cols), .dtype = t, .stride = cols};
}
static void drop(kern_tensor t) { backend->ops->free(backend, t.data); }

static kern_weight *weight(kern_dtype t, int32_t count, int32_t n, int32_t k)
{
    kern_weight_part *parts = calloc((size_t)count, sizeof *parts);
    void *data = filled(t, (int64_t)n * k);
    for (int32_t i = 0; i < count; i++) parts[i] = (kern_weight_part){data, t, n};
    kern_weight_desc d = {"bench", count, 1, parts, k};
    kern_weight *w;
    if (backend->ops->weight_create(backend, &d, &w, NULL) != LTD_OK) exit(1);
    backend->ops->free(backend, data);
    free(parts);
    return w;
}

typedef void body(const void *args);

/* The fastest of many runs, for at least 0.3 s. */
static double seconds(body *f, const void *args)
{
    double best = 1e9;
    int64_t end = ltd_now_us() + 300000;
    f(args);
    do {
        int64_t t = ltd_now_us(), n = 0;
        while (n < 1 || ltd_now_us() - t < 2000) f(args), n++;
        double s = (double)(ltd_now_us() - t) * 1e-6 / (double)n;
        best = s < best ? s : best;
    } while (ltd_now_us() < end);
    return best;
}

static void report(const char *what, double s, double flops, double bytes)
{
    printf("%-46s %10.1f us %8.1f GFLOP/s %7.1f GB/s = %3.0f%% of copy\n", what, s * 1e6, flops / s * 1e-9,
           bytes / s * 1e-9, bytes / s * 1e-7 / copy_gbs);
}

/* ---------------------------------------------------------------- limits */

typedef struct pair {
    char *a, *b;
    size_t n;
} pair;
static void copy(const void *p)
{
    const pair *x = p;
    memcpy(x->a, x->b, x->n);
}

static void measure_copy(void)
{
    size_t n = 256u << 20;
    pair p = {malloc(n), malloc(n), n};
    memset(p.a, 1, n);
    memset(p.b, 2, n);
    copy_gbs = 2e-9 * (double)n / seconds(copy, &p);
    printf("memcpy of 256 MiB, one thread: %.1f GB/s read + written\n", copy_gbs);
    free(p.a);
    free(p.b);
}

/* ---------------------------------------------------------------- products */

#define BODY(op)                                                                                             \
    static void do_##op(const void *a)                                                                       \
    {                                                                                                        \
        if (ctx->ops->op(ctx, a) != LTD_OK) exit(1);                                                         \
    }
BODY(matmul)
BODY(grouped_matmul)
BODY(heads_matmul)
BODY(attn_decode)
BODY(attn_prefill)
BODY(add_norm)
BODY(silu_mul)
BODY(moe_combine)
BODY(route)
BODY(sample)
BODY(rope)

static void bench_matmul(int32_t rows, int32_t n, int32_t k, kern_dtype act, kern_dtype tw)
{
    char name[80];
    kern_weight *w = weight(tw, 1, n, k);
    kern_tensor x = tensor(act, rows, k), y = tensor(act, rows, n);
    kern_matmul_args a = {.w = w, .x = x, .out = y, .rows_cap = rows};
    snprintf(name, sizeof name, "matmul %d x %d x %d, %s weights, %s", rows, n, k,
             tw == KERN_BF16 ? "bf16" : "f32", act == KERN_BF16 ? "bf16" : "f32");
    report(name, seconds(do_matmul, &a), 2.0 * rows * n * k,
           (double)backend->ops->weight_bytes(w) + (double)(rows * (n + k)) * (double)kern_dtype_bytes(act));
    backend->ops->weight_destroy(backend, w);
    drop(x);
    drop(y);
}

static void bench_grouped(int32_t tokens)
{
    enum { E = 64, TOP = 6, N = 2816, K = 2048 };
    char name[80];
    kern_weight *w = weight(KERN_BF16, E, N, K);
    int32_t pairs = tokens * TOP, offsets[E + 1] = {0}, *perm = malloc((size_t)pairs * 4), used = 0;
    for (int32_t i = 0; i < pairs; i++) offsets[1 + (i * 11 + 5) % E]++;
    for (int32_t e = 0; e < E; e++) used += offsets[e + 1] > 0, offsets[e + 1] += offsets[e];
    for (int32_t i = 0; i < pairs; i++) perm[i] = i;
    kern_tensor x = tensor(KERN_F32, tokens, K), y = tensor(KERN_F32, pairs, N);
    kern_grouped_matmul_args a = {
        .w = w, .offsets = offsets, .gather = perm, .gather_div = TOP, .x = x, .out = y, .rows_cap = pairs};
    snprintf(name, sizeof name, "grouped_matmul gate+up, %d tokens, %d experts", tokens, used);
    report(name, seconds(do_grouped_matmul, &a), 2.0 * pairs * N * K, 2.0 * used * N * K + 4.0 * pairs * N);
    backend->ops->weight_destroy(backend, w);
    free(perm);
    drop(x);
    drop(y);
}

static void bench_heads(int32_t rows, kern_heads_dir dir)
{
    enum { H = 16, D = 128, C = 512 };
    char name[80];
    bool in = dir == KERN_HEADS_IN;
    kern_weight *w = weight(KERN_BF16, 1, H * 2 * D, C);
    kern_tensor x = tensor(KERN_F32, rows, H * C), y = tensor(KERN_F32, rows, H * C);
    kern_heads_matmul_args a = {.w = w,
                                .dir = dir,
                                .n_heads = H,
                                .head_rows = 2 * D,
                                .row0 = in ? 0 : D,
                                .d = D,
                                .x = x,
                                .out = y,
                                .x_head = in ? D : C,
                                .out_head = in ? C : D,
                                .rows_cap = rows};
    snprintf(name, sizeof name, "heads_matmul %s, %d rows", in ? "in" : "out", rows);
    report(name, seconds(do_heads_matmul, &a), 2.0 * rows * H * D * C,
           2.0 * H * D * C + 4.0 * rows * H * (D + C));
    backend->ops->weight_destroy(backend, w);
    drop(x);
    drop(y);
}

/* ---------------------------------------------------------------- attention */

static void bench_decode(int32_t rows, int32_t len, bool mla, kern_dtype cache)
{
    char name[80];
    int32_t H = 16, d0 = mla ? 512 : 192, d1 = mla ? 64 : 0, d_v = mla ? 512 : 128, n = rows * len;
    int32_t *table = malloc((size_t)n * 4), *seq = malloc((size_t)rows * 4), *lens = malloc((size_t)rows * 4);
    for (int32_t i = 0; i < n; i++) table[i] = (int32_t)((int64_t)i * 7919 % n);
    for (int32_t r = 0; r < rows; r++) seq[r] = r, lens[r] = len;
    kern_tensor q0 = tensor(KERN_F32, rows, H * d0), q1 = tensor(KERN_F32, rows, H * 64),
                k = tensor(cache, n, mla ? 576 : H * d0), v = mla ? k : tensor(cache, n, H * d_v),
                out = tensor(KERN_F32, rows, H * d_v), k1 = k;
    k1.data = (char *)k.data + 512 * kern_dtype_bytes(cache);
    kern_attn_decode_args a = {.q0 = q0,
                               .q1 = q1,
                               .k0 = k,
                               .k1 = k1,
                               .v = v,
                               .out = out,
                               .q0_head = d0,
                               .q1_head = 64,
                               .k0_head = mla ? 0 : d0,
                               .v_head = mla ? 0 : d_v,
                               .n_heads = H,
                               .d0 = d0,
                               .d1 = d1,
                               .d_v = d_v,
                               .scale = 0.1f,
                               .seq = seq,
                               .len = lens,
                               .len_cap = len,
                               .table = table,
                               .table_stride = len,
                               .rows_cap = rows};
    snprintf(name, sizeof name, "attn_decode %s, %d rows of %d, %s cache", mla ? "MLA" : "MHA", rows, len,
             cache == KERN_BF16 ? "bf16" : "f32");
    report(name, seconds(do_attn_decode, &a), 2.0 * n * H * (d0 + d1 + d_v),
           (double)n * (mla ? 576.0 : H * (d0 + d_v)) * (double)kern_dtype_bytes(cache));
    drop(q0);
    drop(q1);
    if (!mla) drop(v);
    drop(k);
    drop(out);
    free(table);
    free(seq);
    free(lens);
}

static void bench_prefill(int32_t rows, int32_t n_keys)
{
    enum { H = 16, N = 128, R = 64, V = 128 };
    char name[80];
    kern_tensor q = tensor(KERN_F32, rows, H * (N + R)), kv = tensor(KERN_F32, n_keys, H * (N + V)),
                pe = tensor(KERN_F32, n_keys, R), v = kv, out = tensor(KERN_F32, rows, H * V),
                lse = tensor(KERN_F32, rows, H);
    v.data = (float *)kv.data + N;
    kern_attn_prefill_args a = {.q = q,
                                .k0 = kv,
                                .k1 = pe,
                                .v = v,
                                .out = out,
                                .k0_head = N + V,
                                .v_head = N + V,
                                .n_heads = H,
                                .d0 = N,
                                .d1 = R,
                                .d_v = V,
                                .scale = 0.1f,
                                .q_pos0 = n_keys - rows,
                                .n_keys = n_keys,
                                .lse = lse.data,
                                .rows_cap = rows};
    snprintf(name, sizeof name, "attn_prefill %d rows, %d keys", rows, n_keys);
    report(name, seconds(do_attn_prefill, &a), 2.0 * rows * (n_keys - rows / 2.0) * H * (N + R + V),
           4.0 * n_keys * (H * (N + V) + R));
    drop(q);
    drop(kv);
    drop(pe);
    drop(out);
    drop(lse);
}

/* ---------------------------------------------------------------- rows and tokens */

static void bench_rows(int32_t rows)
{
    enum { D = 2048, I = 10944, E = 64, TOP = 6 };
    char name[80];
    kern_tensor x = tensor(KERN_F32, rows, 2 * I), y = tensor(KERN_F32, rows, I), w = tensor(KERN_F32, 1, D),
                z = tensor(KERN_F32, rows * TOP, D), angles = tensor(KERN_F32, 1, 64);
    int32_t *ids = malloc((size_t)(rows * TOP) * 4), *pos = calloc((size_t)rows, 4);
    float *weights = malloc((size_t)(rows * TOP) * 4);
    kern_add_norm_args n = {.x = {.data = x.data, .stride = D},
                            .delta = {.data = z.data, .stride = D},
                            .out = {.data = y.data, .stride = D},
                            .weight = w.data,
                            .eps = 1e-6f,
                            .d = D,
                            .rows_cap = rows};
    snprintf(name, sizeof name, "add_norm %d x %d", rows, D);
    memset(z.data, 0, (size_t)(rows * TOP * D) * 4);
    report(name, seconds(do_add_norm, &n), 0, 16.0 * rows * D);
    kern_silu_mul_args s = {.x = x, .out = y, .d = I, .rows_cap = rows};
    snprintf(name, sizeof name, "silu_mul %d x %d", rows, I);
    report(name, seconds(do_silu_mul, &s), 0, 12.0 * rows * I);
    kern_route_args r = {.logits = {.data = x.data, .stride = E},
                         .n_experts = E,
                         .top_k = TOP,
                         .scale = 1,
                         .ids = ids,
                         .weights = weights,
                         .rows_cap = rows};
    snprintf(name, sizeof name, "route %d rows, %d experts", rows, E);
    report(name, seconds(do_route, &r), 0, 4.0 * rows * E);
    for (int32_t i = 0; i < rows * TOP; i++) ids[i] = i;
    kern_moe_combine_args c = {.expert = z,
                               .shared = {.data = x.data, .stride = D},
                               .out = {.data = y.data, .stride = D},
                               .inverse = ids,
                               .weights = weights,
                               .top_k = TOP,
                               .d = D,
                               .rows_cap = rows};
    snprintf(name, sizeof name, "moe_combine %d x %d", rows, D);
    report(name, seconds(do_moe_combine, &c), 0, 4.0 * rows * D * (TOP + 2));
    kern_rope_args p = {.q = {.data = x.data, .stride = 3072},
                        .n_heads = 16,
                        .d_head = 192,
                        .d_rope = 64,
                        .pos = pos,
                        .cos_sin = angles.data,
                        .rows_cap = rows};
    snprintf(name, sizeof name, "rope %d rows, 16 heads", rows);
    report(name, seconds(do_rope, &p), 0, 8.0 * rows * 16 * 64);
    drop(x);
    drop(y);
    drop(w);
    drop(z);
    drop(angles);
    free(ids);
    free(pos);
    free(weights);
}

static void bench_sample(int32_t rows, const char *what, kern_sample_params with)
{
    enum { VOCAB = 102400 };
    char name[80];
    kern_tensor x = tensor(KERN_F32, rows, VOCAB);
    for (int64_t i = 0; i < (int64_t)rows * VOCAB; i++) ((float *)x.data)[i] *= 8;
    kern_sample_params *p = malloc(sizeof *p * (size_t)rows);
    for (int32_t r = 0; r < rows; r++) p[r] = with, p[r].position = r;
    int32_t *ids = malloc((size_t)rows * 4 * (KERN_MAX_TOP_LOGPROBS + 1));
    float *logs = malloc((size_t)rows * 4 * (KERN_MAX_TOP_LOGPROBS + 1));
    kern_sample_args a = {.logits = x,
                          .vocab = VOCAB,
                          .params = p,
                          .tokens = ids,
                          .top_ids = ids + rows,
                          .logprobs = logs,
                          .top_logprobs = logs + rows,
                          .rows_cap = rows};
    snprintf(name, sizeof name, "sample %d x %d, %s", rows, VOCAB, what);
    report(name, seconds(do_sample, &a), 0, 4.0 * rows * VOCAB);
    drop(x);
    free(p);
    free(ids);
    free(logs);
}

int main(int argc, char **argv)
{
    kern_backend_options o = {.n_threads = argc > 1 ? atoi(argv[1]) : 0, .isa = argc > 2 ? argv[2] : NULL};
    ltd_err err;
    if (kern_backend_open("cpu", &o, &backend, &err) != LTD_OK ||
        backend->ops->ctx_create(backend, 0, 0, 0, &ctx, &err) != LTD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("%s\n", backend->description);
    measure_copy();
    bench_matmul(1, 2048, 2048, KERN_F32, KERN_BF16);
    bench_matmul(1, 3648, 2048, KERN_F32, KERN_BF16);
    bench_matmul(1, 102400, 2048, KERN_F32, KERN_BF16);
    bench_matmul(1, 21888, 2048, KERN_BF16, KERN_BF16);
    bench_matmul(1, 512, 512, KERN_F32, KERN_BF16);
    bench_matmul(4, 2048, 2048, KERN_F32, KERN_BF16);
    bench_matmul(16, 2048, 2048, KERN_F32, KERN_BF16);
    bench_matmul(128, 2048, 2048, KERN_F32, KERN_BF16);
    bench_matmul(128, 2048, 2048, KERN_F32, KERN_F32);
    bench_matmul(128, 2048, 2048, KERN_BF16, KERN_BF16);
    bench_matmul(128, 2048, 10944, KERN_F32, KERN_BF16);
    bench_matmul(128, 512, 512, KERN_F32, KERN_BF16);
    bench_matmul(1024, 4096, 512, KERN_F32, KERN_BF16);
    bench_grouped(1);
    bench_grouped(16);
    bench_grouped(128);
    for (int32_t rows = 1; rows < 17; rows *= 16)
        bench_heads(rows, KERN_HEADS_IN), bench_heads(rows, KERN_HEADS_OUT);
    bench_decode(1, 256, true, KERN_F32);
    bench_decode(1, 4096, true, KERN_F32);
    bench_decode(1, 4096, true, KERN_BF16);
    bench_decode(16, 512, true, KERN_F32);
    bench_decode(1, 1024, false, KERN_F32);
    bench_prefill(128, 128);
    bench_prefill(128, 4096);
    bench_prefill(16, 2048);
    bench_rows(1);
    bench_rows(128);
    bench_sample(
        1, "greedy",
        (kern_sample_params){.top_p = 1, .target = -1, .repetition = 1, .mask_row = -1, .n_logprobs = -1});
    bench_sample(
        1, "temperature",
        (kern_sample_params){
            .temperature = 1, .top_p = 1, .target = -1, .repetition = 1, .mask_row = -1, .n_logprobs = -1});
    bench_sample(1, "top_k 50",
                 (kern_sample_params){.temperature = 1,
                                      .top_p = 1,
                                      .top_k = 50,
                                      .target = -1,
                                      .repetition = 1,
                                      .mask_row = -1,
                                      .n_logprobs = -1});
    bench_sample(1, "top_p 0.95, 20 logprobs",
                 (kern_sample_params){.temperature = 1,
                                      .top_p = 0.95f,
                                      .target = -1,
                                      .repetition = 1,
                                      .mask_row = -1,
                                      .n_logprobs = 20});
    bench_sample(16, "top_p 0.95",
                 (kern_sample_params){.temperature = 1,
                                      .top_p = 0.95f,
                                      .target = -1,
                                      .repetition = 1,
                                      .mask_row = -1,
                                      .n_logprobs = -1});
    backend->ops->ctx_destroy(ctx);
    kern_backend_close(backend);
    return 0;
}
