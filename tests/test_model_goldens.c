/* test_model_goldens.c - the forward pass against transformers, and against itself.
 * Every checkpoint of tests/models with a goldens.safetensors: teacher-forced logits within 1e-3 of transformers' fp32 run, as one prefill, in
 * chunks, after a prefix hit, in a mixed batch, as generated (absorbed) rows, and through the MHA pool.  Chunks, hits and company must give the same bits. */
#include <stdarg.h>
#include <setjmp.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "tests/support/model_runner.h"

enum { MAX_PROMPTS = 8, MAX_LEN = 512 };

typedef struct golden {
    int32_t n, n_pos;
    const int32_t *ids;
    int32_t pos[MAX_LEN]; /* positions whose logits are stored */
    const float *f32;     /* [n_pos][vocab] */
    const float *bf16;    /* the last n_bf16 positions, or NULL */
    int32_t n_bf16;
} golden;

static const st_tensor *find(const st_files *f, int p, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "p%d.%s", p, what);
    return st_find(f, name);
}

static int load_goldens(const st_files *f, golden *g)
{
    int n = 0;
    for (; n < MAX_PROMPTS; n++) {
        const st_tensor *ids = find(f, n, "ids"), *f32 = find(f, n, "logits_f32"), *pos = find(f, n, "pos");
        if (!ids) break;
        assert_non_null(f32);
        g[n] = (golden){
            .n = (int32_t)ids->shape[0], .n_pos = (int32_t)f32->shape[0], .ids = ids->data, .f32 = f32->data};
        assert_true(g[n].n <= MAX_LEN);
        assert_true(((uintptr_t)ids->data & 3) == 0 && ((uintptr_t)f32->data & 3) == 0);
        for (int32_t i = 0; i < g[n].n_pos; i++) g[n].pos[i] = pos ? ((const int32_t *)pos->data)[i] : i;
        const st_tensor *b = find(f, n, "logits_bf16"), *last = find(f, n, "logits_bf16_last8");
        if (!b) b = last;
        if (b) g[n].bf16 = b->data, g[n].n_bf16 = (int32_t)b->shape[0];
    }
    return n;
}

/* Relative Frobenius distance of ours (all positions) from the stored rows. */
static double distance(const golden *g, const float *ours, int32_t vocab)
{
    double d = 0, norm = 0;
    for (int32_t i = 0; i < g->n_pos; i++)
        for (int32_t j = 0; j < vocab; j++) {
            double want = g->f32[(int64_t)i * vocab + j], got = ours[(int64_t)g->pos[i] * vocab + j];
            d += (got - want) * (got - want);
            norm += want * want;
        }
    return sqrt(d / norm); /* NaN fails every comparison below */
}

static void near_golden(const char *name, const char *how, int p, const golden *g, const float *ours,
                        int32_t vocab)
{
    double d = distance(g, ours, vocab);
    if (!(d < 1e-3))
        fail_msg("%s: prompt %d %s: %.3g from transformers' fp32, more than 1e-3", name, p, how, d);
}

static void same_bits(const char *name, const char *how, int p, const float *a, const float *b, int64_t n)
{
    if (memcmp(a, b, (size_t)n * sizeof *a) == 0) return;
    int64_t i = 0;
    while (memcmp(&a[i], &b[i], sizeof *a) == 0) i++;
    fail_msg("%s: prompt %d %s: other bits, first at element %lld: %.9g, was %.9g", name, p, how,
             (long long)i, (double)a[i], (double)b[i]);
}

/* Slots are dealt in a shuffled order, so that nothing works by being contiguous. */
static void deal(int32_t *slots, int32_t n, int32_t first)
{
    for (int32_t i = 0; i < n; i++) slots[i] = first + (i * 37) % 512;
}

static void run_chunks(runner *r, const golden *g, int32_t req_row, const int32_t *slots, int32_t from,
                       int32_t chunk, float *out)
{
    int64_t vocab = r->info->vocab_size;
    for (int32_t pos = from; pos < g->n; pos += chunk) {
        int32_t n = g->n - pos < chunk ? g->n - pos : chunk;
        runner_rows q = {.req_row = req_row, .ids = g->ids, .slots = slots, .pos0 = pos, .n = n};
        runner_step(r, &q, 1, 0);
        memcpy(out + pos * vocab, r->logits, (size_t)(n * vocab) * sizeof *out);
    }
}

static void as_generated(const char *name, runner *r, const golden *g, int p, const float *whole)
{
    int64_t vocab = r->info->vocab_size;
    int32_t half = g->n / 2, slots[MAX_LEN];
    float *out = ltd_alloc((size_t)(g->n * vocab) * sizeof *out);
    memcpy(out, whole, (size_t)(g->n * vocab) * sizeof *out);
    deal(slots, g->n, 1025);
    for (int32_t pos = 0; pos < g->n; pos += pos ? 1 : half) {
        runner_rows q = {.req_row = 2,
                         .ids = g->ids,
                         .slots = slots,
                         .pos0 = pos,
                         .n = pos ? 1 : half,
                         .absorbed = pos > 0};
        runner_step(r, &q, 1, 0);
        memcpy(out + pos * vocab, r->logits, (size_t)(q.n * vocab) * sizeof *out);
        if (!pos && !half) break;
    }
    near_golden(name, "with its second half generated", p, g, out, (int32_t)vocab);
    ltd_free(out);
}

/* Every way of computing the same prompt. */
static void check_prompt(const char *name, runner *r, const golden *g, int p, float *whole)
{
    static const int32_t chunks[] = {1, 7, 16, 64};
    int64_t vocab = r->info->vocab_size, size = g->n * vocab;
    int32_t slots[MAX_LEN], hit[MAX_LEN];
    float *out = ltd_alloc((size_t)size * sizeof *out);
    deal(slots, g->n, 1);
    run_chunks(r, g, 0, slots, 0, g->n, whole);
    near_golden(name, "in one prefill", p, g, whole, (int32_t)vocab);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        char how[64];
        snprintf(how, sizeof how, "in chunks of %d", chunks[i]);
        deal(hit, g->n, 513);
        run_chunks(r, g, 1, hit, 0, chunks[i], out);
        same_bits(name, how, p, out, whole, size);
    }
    /* a prefix hit: the first positions are another sequence's slots */
    for (int32_t from = 1; from < g->n; from += 1 + g->n / 4) {
        memcpy(hit, slots, sizeof hit);
        for (int32_t i = from; i < g->n; i++) hit[i] = 2049 + i;
        memcpy(out, whole, (size_t)size * sizeof *out);
        run_chunks(r, g, 1, hit, from, 16, out);
        same_bits(name, "after a prefix hit", p, out, whole, size);
    }
    as_generated(name, r, g, p, whole);
    ltd_free(out);
}

/* All prompts in one step, in company. */
static void check_batch(const char *name, runner *r, const golden *g, int n, float *const *whole)
{
    static int32_t slots[MAX_PROMPTS][MAX_LEN];
    runner_rows q[MAX_PROMPTS];
    int64_t vocab = r->info->vocab_size, at = 0, rows = 0;
    for (int i = 0; i < n; i++) {
        deal(slots[i], g[i].n, 1 + 512 * i);
        q[i] = (runner_rows){.req_row = i, .ids = g[i].ids, .slots = slots[i], .n = g[i].n};
        rows += g[i].n;
    }
    assert_true(rows <= r->limits.max_rows);
    runner_step(r, q, n, 0);
    for (int i = 0; i < n; at += g[i++].n * vocab)
        same_bits(name, "in a mixed batch", i, r->logits + at, whole[i], g[i].n * vocab);
}

static void check_checkpoint(const char *dir, const char *name, bool mha)
{
    char path[512];
    golden g[MAX_PROMPTS];
    st_files *f;
    ltd_err err;
    runner r;
    snprintf(path, sizeof path, "%s/goldens.safetensors", dir);
    if (st_open_file(path, &f, &err) != LTD_OK) fail_msg("%s", err.text);
    int n = load_goldens(f, g);
    assert_true(n > 0);
    ltd_options o = runner_options(dir);
    o.disable_mla = mha;
    runner_open(&r, &o, MAX_LEN, MAX_PROMPTS);
    float *whole[MAX_PROMPTS];
    for (int i = 0; i < n; i++) {
        whole[i] = ltd_alloc((size_t)g[i].n * (size_t)r.info->vocab_size * sizeof(float));
        check_prompt(name, &r, &g[i], i, whole[i]);
    }
    check_batch(name, &r, g, n, whole);
    for (int i = 0; i < n; i++) ltd_free(whole[i]);
    runner_close(&r);
    st_close(f);
}

/* bf16 activations and cache: no further from the fp32 truth than 1.25 times transformers in bf16 (numerics.md), over all prompts together. */
static void check_bf16(const char *dir, const char *name)
{
    char path[512];
    golden g[MAX_PROMPTS];
    st_files *f;
    ltd_err err;
    runner r;
    double ours = 0, theirs = 0;
    snprintf(path, sizeof path, "%s/goldens.safetensors", dir);
    if (st_open_file(path, &f, &err) != LTD_OK) fail_msg("%s", err.text);
    int n = load_goldens(f, g);
    ltd_options o = runner_options(dir);
    o.dtype = OPT_DTYPE_BF16;
    runner_open(&r, &o, MAX_LEN, MAX_PROMPTS);
    int64_t vocab = r.info->vocab_size;
    for (int p = 0; p < n; p++) {
        int32_t slots[MAX_LEN];
        if (!g[p].bf16) continue;
        deal(slots, g[p].n, 1);
        float *out = ltd_alloc((size_t)(g[p].n * vocab) * sizeof *out);
        run_chunks(&r, &g[p], 0, slots, 0, g[p].n, out);
        int32_t k =
            g[p].n_bf16 < g[p].n_pos ? g[p].n_bf16 : g[p].n_pos; /* the last k positions are in all three */
        for (int32_t i = 0; i < k; i++)
            for (int64_t j = 0; j < vocab; j++) {
                double truth = g[p].f32[(g[p].n_pos - k + i) * vocab + j];
                double a = out[(int64_t)(g[p].n - k + i) * vocab + j] - truth,
                       b = g[p].bf16[(int64_t)(g[p].n_bf16 - k + i) * vocab + j] - truth;
                ours += a * a, theirs += b * b;
            }
        ltd_free(out);
    }
    runner_close(&r);
    st_close(f);
    if (!(theirs > 0)) fail_msg("%s: its goldens have no bf16 logits to compare with", name);
    if (!(sqrt(ours) <= 1.25 * sqrt(theirs)))
        fail_msg("%s: bf16 logits are %.3g from fp32, transformers' bf16 %.3g: more than 1.25 times", name,
                 sqrt(ours), sqrt(theirs));
    print_message("%s: bf16 distance from fp32 %.4g, transformers %.4g\n", name, sqrt(ours), sqrt(theirs));
}

static const char *models_dir(void)
{
    const char *d = getenv("LTD_TEST_MODELS");
    return d ? d : "tests/models";
}

static void for_each(void (*fn)(const char *dir, const char *name))
{
    DIR *d = opendir(models_dir());
    if (!d) fail_msg("%s is not there: run from the top of the repository", models_dir());
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char dir[384], file[512];
        struct stat st;
        snprintf(dir, sizeof dir, "%s/%s", models_dir(), e->d_name);
        snprintf(file, sizeof file, "%s/goldens.safetensors", dir);
        if (e->d_name[0] == '.' || stat(file, &st) != 0) continue;
        print_message("%s\n", e->d_name);
        fn(dir, e->d_name);
        n++;
    }
    closedir(d);
    assert_true(n > 0);
}

static void mla(const char *dir, const char *name) { check_checkpoint(dir, name, false); }
static void mha(const char *dir, const char *name) { check_checkpoint(dir, name, true); }

static void logits_match_transformers_and_themselves(void **state)
{
    (void)state;
    for_each(mla);
}
static void logits_through_the_mha_pool_match_too(void **state)
{
    (void)state;
    for_each(mha);
}
static void bf16_is_as_near_to_fp32_as_transformers(void **state)
{
    (void)state;
    for_each(check_bf16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_match_transformers_and_themselves),
        cmocka_unit_test(logits_through_the_mha_pool_match_too),
        cmocka_unit_test(bf16_is_as_near_to_fp32_as_transformers),
    };
    log_start(&(log_config){.level = LOG_WARN, .fd = 2});
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    log_stop();
    return failed;
}
