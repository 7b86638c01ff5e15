/* attn.c - attention over slots (decode) and over one context block (prefill).
 * A task is a few queries that share their keys: the heads of one row over the MLA pool, or some rows of one
 * head of a prompt.  It converts each tile of keys and values to padded f32 once, multiplies all its queries
 * with them, and keeps each query's running (m, l, O) in scratch.  Every fold stays in one task: threads
 * leave no trace.
 *
 * Scratch, all widths padded:
 *   q [n_q][d_q]
 *   k [tile][d_q]
 *   v [tile][d_v]
 *   s [n_q][tile]
 *   o [n_q][d_v]
 *   u [n_q][d_v]    decode: O of the unit in the making */
#include "kernels/cpu/fast.h"

enum { MAX_QUERIES = 32, DECODE_QUERIES = 16 };

typedef struct tile_dims {
    int32_t d0, d1, d_v, pad0, d_q, pad_v, tile;
} tile_dims;

typedef struct queries {
    int32_t n;
    float *q, *k, *v, *s, *o, *u;
    float m[MAX_QUERIES], l[MAX_QUERIES], um[MAX_QUERIES], ul[MAX_QUERIES];
} queries;

static tile_dims dims_of(int32_t d0, int32_t d1, int32_t d_v, int32_t tile)
{
    return (tile_dims){d0, d1, d_v, fast_pad(d0), fast_pad(d0) + fast_pad(d1), fast_pad(d_v), tile};
}

static int64_t floats_of(const tile_dims *d, int64_t n_q)
{
    return n_q * (d->d_q + d->tile + 2 * d->pad_v) + (int64_t)d->tile * (d->d_q + d->pad_v);
}

/* As many queries a task as scratch holds; the largest dims that are let through leave room for one. */
static int32_t queries_that_fit(const tile_dims *d, int32_t n_q)
{
    while (n_q > 1 && floats_of(d, n_q) > (int64_t)(CPU_SCRATCH_BYTES / 4)) n_q /= 2;
    return n_q;
}

static void lay_out(queries *x, const tile_dims *d, int32_t n, float *scratch)
{
    x->n = n;
    x->q = scratch;
    x->k = x->q + (int64_t)n * d->d_q;
    x->v = x->k + (int64_t)d->tile * d->d_q;
    x->s = x->v + (int64_t)d->tile * d->pad_v;
    x->o = x->s + (int64_t)n * d->tile;
    x->u = x->o + (int64_t)n * d->pad_v;
}

static void begin(float *m, float *l, float *o, int32_t n, const tile_dims *d)
{
    for (int32_t i = 0; i < n; i++) m[i] = -KERN_INF, l[i] = 0;
    memset(o, 0, (size_t)n * (size_t)d->pad_v * 4);
}

/* Scores of n keys, scaled, for queries i0 .. n. */
static void score(const cpu_vec *vec, const queries *x, const tile_dims *d, int32_t i0, int32_t n,
                  float scale)
{
    const float *q[MAX_QUERIES];
    for (int32_t i = i0; i < x->n; i++) q[i] = x->q + (int64_t)i * d->d_q;
    vec->dots(q + i0, x->n - i0, x->k, KERN_F32, d->d_q, d->d_q, n, x->s + (int64_t)i0 * d->tile, d->tile);
    for (int32_t i = i0; i < x->n; i++)
        vec->scale_to(x->s + (int64_t)i * d->tile, scale, n, x->s + (int64_t)i * d->tile);
}

/* One query's softmax over its n scores: p in place, o rescaled. */
static void weigh(const cpu_vec *vec, const tile_dims *d, float *s, int32_t n, kern_dtype v, float *m,
                  float *l, float *o)
{
    float top = vec->max(s, n, *m), shift = lanes_shift(top), alpha = kern_exp(*m - shift);
    *l = *l * alpha + vec->softmax(s, n, shift, v == KERN_BF16);
    if (alpha != 1.0f) vec->scale_to(o, alpha, d->pad_v, o);
    *m = top;
}

/* O / l to out, as f32 or through the unit's buffer; returns the log-sum-exp. */
static float finish(const cpu_vec *vec, const tile_dims *d, float m, float l, float *o,
                    const kern_tensor *out, int64_t at)
{
    if (l == 0)
        memset(o, 0, (size_t)d->d_v * 4);
    else
        vec->divide(o, l, d->d_v, o);
    fast_write(vec, out, at, d->d_v, o);
    return l == 0 ? -KERN_INF : m + kern_log(l);
}

/* ---------------------------------------------------------------- decode */

typedef struct decode_job {
    const cpu_vec *vec;
    const kern_attn_decode_args *a;
    tile_dims d;
    int32_t group, n_groups; /* heads of a task, tasks of a row */
    bool v_is_k;             /* values are the first part of the keys (MLA): converted once */
} decode_job;

/* Keys and values of n slots, for head h (where heads differ). */
static void load_slots(const decode_job *j, const queries *x, const int32_t *slots, int32_t n, int32_t h)
{
    const kern_attn_decode_args *a = j->a;
    const tile_dims *d = &j->d;
    for (int32_t t = 0; t < n; t++) {
        int64_t slot = slots[t];
        float *k = x->k + (int64_t)t * d->d_q;
        fast_read_padded(j->vec, &a->k0, slot * a->k0.stride + h * a->k0_head, d->d0, d->pad0, k);
        if (d->d1)
            fast_read_padded(j->vec, &a->k1, slot * a->k1.stride + h * a->k1_head, d->d1, d->d_q - d->pad0,
                             k + d->pad0);
        if (!j->v_is_k)
            fast_read_padded(j->vec, &a->v, slot * a->v.stride + h * a->v_head, d->d_v, d->pad_v,
                             x->v + (int64_t)t * d->pad_v);
    }
}

/* Positions p0 .. p1 into the unit state (m, l, o). */
static void decode_unit(const decode_job *j, queries *x, const int32_t *table, int32_t p0, int32_t p1,
                        int32_t h, float *m, float *l, float *o)
{
    const tile_dims *d = &j->d;
    begin(m, l, o, x->n, d);
    for (int32_t t = p0; t < p1; t += DECODE_TILE) {
        int32_t n = fast_min(p1 - t, DECODE_TILE);
        load_slots(j, x, table + t, n, h);
        score(j->vec, x, d, 0, n, j->a->scale);
        for (int32_t i = 0; i < x->n; i++)
            weigh(j->vec, d, x->s + (int64_t)i * d->tile, n, j->a->v.dtype, &m[i], &l[i],
                  o + (int64_t)i * d->pad_v);
        const float *v = j->v_is_k ? x->k : x->v;
        j->vec->chain(x->s, d->tile, x->n, v, KERN_F32, j->v_is_k ? d->d_q : d->pad_v, n, d->pad_v, o,
                      d->pad_v);
    }
}

static void decode_task(const void *arg, int32_t i, void *scratch)
{
    const decode_job *j = arg;
    const kern_attn_decode_args *a = j->a;
    const tile_dims *d = &j->d;
    queries x;
    int32_t r = i / j->n_groups, h0 = i % j->n_groups * j->group, len = a->len[r],
            unit = kern_decode_unit(len, a->n_heads);
    lay_out(&x, d, fast_min(j->group, a->n_heads - h0), scratch);
    for (int32_t g = 0; g < x.n; g++) {
        float *q = x.q + (int64_t)g * d->d_q;
        fast_read_padded(j->vec, &a->q0, r * a->q0.stride + (h0 + g) * a->q0_head, d->d0, d->pad0, q);
        if (d->d1)
            fast_read_padded(j->vec, &a->q1, r * a->q1.stride + (h0 + g) * a->q1_head, d->d1,
                             d->d_q - d->pad0, q + d->pad0);
    }
    begin(x.m, x.l, x.o, x.n, d);
    const int32_t *table = a->table + a->seq[r] * a->table_stride;
    for (int32_t p = 0; p < len; p += unit) {
        int32_t end = fast_min(len, p + unit);
        if (p == 0) {
            decode_unit(j, &x, table, p, end, h0, x.m, x.l, x.o);
            continue;
        }
        decode_unit(j, &x, table, p, end, h0, x.um, x.ul, x.u);
        for (int32_t g = 0; g < x.n; g++) {
            float wa, wb, m = lanes_pair(x.m[g], x.um[g], &wa, &wb);
            x.l[g] = x.l[g] * wa + x.ul[g] * wb;
            j->vec->join(x.o + (int64_t)g * d->pad_v, wa, x.u + (int64_t)g * d->pad_v, wb, d->pad_v);
            x.m[g] = m;
        }
    }
    for (int32_t g = 0; g < x.n; g++) {
        float lse = finish(j->vec, d, x.m[g], x.l[g], x.o + (int64_t)g * d->pad_v, &a->out,
                           r * a->out.stride + (int64_t)(h0 + g) * a->d_v);
        if (a->lse) a->lse[(int64_t)r * a->n_heads + h0 + g] = lse;
    }
}

ltd_status fast_attn_decode(const kern_ctx *ctx, const kern_attn_decode_args *a)
{
    CPU_TRY(cpu_check_attn_decode(a));
    int32_t rows = cpu_rows(a->rows_cap, a->rows), group = 1;
    decode_job j = {.vec = fast_vec(ctx), .a = a, .d = dims_of(a->d0, a->d1, a->d_v, DECODE_TILE)};
    if (!rows || !a->n_heads) return LTD_OK;
    if (a->k0_head == 0 && a->v_head == 0 && (!a->d1 || a->k1_head == 0)) {
        /* all heads read the same rows: as many together as leave every thread a task */
        int64_t share = ((int64_t)rows * a->n_heads + fast_threads(ctx) - 1) / fast_threads(ctx);
        group = queries_that_fit(&j.d, DECODE_QUERIES);
        if (share < group) group = (int32_t)share;
        if (group > a->n_heads) group = a->n_heads;
    }
    j.v_is_k = a->v.data == a->k0.data && a->v.stride == a->k0.stride && a->v_head == a->k0_head &&
               a->d_v == a->d0 && a->v.dtype == a->k0.dtype;
    j.group = group;
    j.n_groups = (a->n_heads + group - 1) / group;
    int64_t keys = 0;
    for (int32_t r = 0; r < rows; r++) keys += a->len[r];
    fast_run(ctx, keys * a->n_heads * (j.d.d_q + j.d.pad_v), rows * j.n_groups, decode_task, &j);
    return LTD_OK;
}

/* ---------------------------------------------------------------- prefill */

typedef struct prefill_job {
    const cpu_vec *vec;
    const kern_attn_prefill_args *a;
    tile_dims d;
    int32_t rows, block, n_blocks;
} prefill_job;

static void load_keys(const prefill_job *j, const queries *x, int32_t t, int32_t n, int32_t h)
{
    const kern_attn_prefill_args *a = j->a;
    const tile_dims *d = &j->d;
    for (int32_t i = 0; i < n; i++) {
        int64_t key = t + i;
        float *k = x->k + (int64_t)i * d->d_q;
        fast_read_padded(j->vec, &a->k0, key * a->k0.stride + h * a->k0_head, d->d0, d->pad0, k);
        if (d->d1)
            fast_read_padded(j->vec, &a->k1, key * a->k1.stride + h * a->k1_head, d->d1, d->d_q - d->pad0,
                             k + d->pad0);
        fast_read_padded(j->vec, &a->v, key * a->v.stride + h * a->v_head, d->d_v, d->pad_v,
                         x->v + (int64_t)i * d->pad_v);
    }
}

/* O += P V for queries from i0 on, query i over its first n[i] keys (ascending in i): four rows over the keys
 * that all see, then each over the rest. */
static void add_values(const prefill_job *j, const queries *x, int32_t i0, const int32_t *n)
{
    enum { ROWS = 4 };
    const tile_dims *d = &j->d;
    int32_t full = x->n;
    while (full > i0 && n[full - 1] == n[x->n - 1]) full--;
    for (int32_t i = i0; i < full; i += ROWS) {
        int32_t rows = fast_min(ROWS, full - i);
        j->vec->chain(x->s + (int64_t)i * d->tile, d->tile, rows, x->v, KERN_F32, d->pad_v, n[i], d->pad_v,
                      x->o + (int64_t)i * d->pad_v, d->pad_v);
        for (int32_t r = i + 1; r < i + rows; r++)
            j->vec->chain(x->s + (int64_t)r * d->tile + n[i], d->tile, 1, x->v + (int64_t)n[i] * d->pad_v,
                          KERN_F32, d->pad_v, n[r] - n[i], d->pad_v, x->o + (int64_t)r * d->pad_v, d->pad_v);
    }
    j->vec->chain(x->s + (int64_t)full * d->tile, d->tile, x->n - full, x->v, KERN_F32, d->pad_v, n[x->n - 1],
                  d->pad_v, x->o + (int64_t)full * d->pad_v, d->pad_v);
}

static void prefill_task(const void *arg, int32_t i, void *scratch)
{
    const prefill_job *j = arg;
    const kern_attn_prefill_args *a = j->a;
    const tile_dims *d = &j->d;
    queries x;
    int32_t h = i / j->n_blocks, r0 = i % j->n_blocks * j->block, n[MAX_QUERIES];
    lay_out(&x, d, fast_min(j->block, j->rows - r0), scratch);
    for (int32_t q = 0; q < x.n; q++) {
        int64_t at = (r0 + q) * a->q.stride + (int64_t)h * (d->d0 + d->d1);
        fast_read_padded(j->vec, &a->q, at, d->d0, d->pad0, x.q + (int64_t)q * d->d_q);
        if (d->d1)
            fast_read_padded(j->vec, &a->q, at + d->d0, d->d1, d->d_q - d->pad0,
                             x.q + (int64_t)q * d->d_q + d->pad0);
    }
    begin(x.m, x.l, x.o, x.n, d);
    int32_t seen = cpu_keys_seen(a, r0 + x.n - 1);
    for (int32_t t = 0; t < seen; t += KERN_PREFILL_TILE) {
        int32_t first = 0;
        for (int32_t q = 0; q < x.n; q++) {
            n[q] = cpu_keys_seen(a, r0 + q) - t;
            n[q] = n[q] < 0 ? 0 : fast_min(n[q], KERN_PREFILL_TILE);
            if (!n[q]) first = q + 1;
        }
        load_keys(j, &x, t, n[x.n - 1], h);
        score(j->vec, &x, d, first, n[x.n - 1], a->scale);
        for (int32_t q = first; q < x.n; q++)
            weigh(j->vec, d, x.s + (int64_t)q * d->tile, n[q], a->v.dtype, &x.m[q], &x.l[q],
                  x.o + (int64_t)q * d->pad_v);
        add_values(j, &x, first, n);
    }
    for (int32_t q = 0; q < x.n; q++)
        a->lse[(int64_t)(r0 + q) * a->n_heads + h] =
            finish(j->vec, d, x.m[q], x.l[q], x.o + (int64_t)q * d->pad_v, &a->out,
                   (r0 + q) * a->out.stride + (int64_t)h * a->d_v);
}

ltd_status fast_attn_prefill(const kern_ctx *ctx, const kern_attn_prefill_args *a)
{
    CPU_TRY(cpu_check_attn_prefill(a));
    prefill_job j = {.vec = fast_vec(ctx),
                     .a = a,
                     .d = dims_of(a->d0, a->d1, a->d_v, KERN_PREFILL_TILE),
                     .rows = cpu_rows(a->rows_cap, a->rows)};
    if (!j.rows || !a->n_heads) return LTD_OK;
    j.block = queries_that_fit(&j.d, MAX_QUERIES);
    j.n_blocks = (j.rows + j.block - 1) / j.block;
    fast_run(ctx, (int64_t)j.rows * a->n_keys * a->n_heads * (j.d.d_q + j.d.pad_v), a->n_heads * j.n_blocks,
             prefill_task, &j);
    return LTD_OK;
}
