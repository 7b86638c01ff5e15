/* sample.c - tokens from logits: one task a row.  Passes over the vocabulary are vectorised; only candidates
 * that may survive top_k and top_p are sorted.
 * Scratch: z [vocab], then two lists of (key, id) for sorting; or a buffer for exp. */
#include "kernels/cpu/fast.h"

/* Order of candidates: descending z, which is <= 0, is ascending bits of |z|; ids ascending, since lists are
 * filled so and the sort is stable. */
typedef struct list {
    uint32_t *key;
    int32_t *id;
    int32_t n;
} list;

enum { RADIX_BITS = 11, RADIX = 1 << RADIX_BITS, FEW = 48 };

static void sort_few(list *a)
{
    for (int32_t i = 1; i < a->n; i++) {
        uint32_t key = a->key[i];
        int32_t id = a->id[i], j = i;
        for (; j > 0 && a->key[j - 1] > key; j--) a->key[j] = a->key[j - 1], a->id[j] = a->id[j - 1];
        a->key[j] = key;
        a->id[j] = id;
    }
}

static void sort_pass(const list *from, list *to, int shift)
{
    int32_t at[RADIX] = {0}, sum = 0;
    for (int32_t i = 0; i < from->n; i++) at[(from->key[i] >> shift) & (RADIX - 1)]++;
    for (int32_t b = 0; b < RADIX; b++) {
        int32_t n = at[b];
        at[b] = sum;
        sum += n;
    }
    for (int32_t i = 0; i < from->n; i++) {
        int32_t p = at[(from->key[i] >> shift) & (RADIX - 1)]++;
        to->key[p] = from->key[i];
        to->id[p] = from->id[i];
    }
    to->n = from->n;
}

/* Sorts *a; the result is in *a, b is room for as many. */
static void sort_list(list *a, list *b)
{
    if (a->n <= FEW) {
        sort_few(a);
        return;
    }
    sort_pass(a, b, 0);
    sort_pass(b, a, RADIX_BITS);
    sort_pass(a, b, 2 * RADIX_BITS);
    list swap = *a;
    *a = *b;
    *b = swap;
}

static float z_of(const list *a, int32_t i) { return -kern_float(a->key[i]); }

/* How many candidates of the sorted list reach mass, or -1 when the list is too short for it. */
static int32_t count_for_mass(const list *a, int32_t n, double mass)
{
    double sum = 0;
    int32_t m = 0;
    while (m < n && (m == 0 || sum < mass)) sum += kern_exp(z_of(a, m++));
    return sum < mass ? -1 : m;
}

/* Whether the list, not sorted yet, looks as if it reached mass: so that lists too short are not sorted for
 * nothing. */
static bool may_reach(const list *a, double mass)
{
    double sum = 0;
    for (int32_t i = 0; i < a->n; i++) sum += kern_exp(z_of(a, i));
    return sum >= mass * (1 - 1e-6);
}

/* Leaves in *a, sorted, what top_k and top_p keep.  Looks at ever more candidates until they are enough. */
static void nucleus(const cpu_vec *vec, const kern_sample_params *p, const float *z, int32_t vocab, list *a,
                    list *b)
{
    bool by_count = p->top_k > 0 && p->top_k < vocab, by_mass = p->top_p < 1;
    double mass =
        by_mass && !by_count ? (double)p->top_p * (double)vec->sum_exp(z, vocab, 0, (float *)a->key) : 0;
    for (float reach = 1;; reach *= reach < 64 ? 2 : 64) {
        bool all = reach > 1e30f;
        a->n = vec->gather(z, vocab, all ? 3.4028234e38f : reach, a->key, a->id);
        if (!all && (by_count ? a->n < p->top_k : !may_reach(a, mass))) continue;
        sort_list(a, b);
        if (by_count) {
            a->n = fast_min(a->n, p->top_k);
            if (by_mass)
                mass = (double)p->top_p *
                       (double)vec->sum_kept(z, vocab, z_of(a, a->n - 1), a->id[a->n - 1], (float *)b->key);
        }
        int32_t n = by_mass ? count_for_mass(a, a->n, mass) : a->n;
        if (n < 0 && !by_count && !all) continue;
        if (n >= 0) a->n = n;
        return;
    }
}

static int32_t draw(const cpu_vec *vec, const kern_sample_params *p, const float *x, float m, int32_t vocab,
                    float *scratch)
{
    float *z = scratch, best = -KERN_INF;
    kern_noise key = kern_noise_key(p->seed, p->position);
    vec->tempered(x, vocab, m, p->temperature, z);
    bool by_count = p->top_k > 0 && p->top_k < vocab;
    if (!by_count && p->top_p >= 1) return vec->gumbel(z, vocab, p->min_p, key);
    uint32_t *room = (uint32_t *)scratch + vocab;
    list a = {room, (int32_t *)room + vocab, 0},
         b = {room + 2 * (int64_t)vocab, (int32_t *)room + 3 * (int64_t)vocab, 0};
    nucleus(vec, p, z, vocab, &a, &b);
    int32_t token = -1;
    for (int32_t i = 0; i < a.n; i++) {
        float zi = z_of(&a, i);
        if (zi < 0 && p->min_p > 0 && kern_exp(zi) < p->min_p) continue;
        float g = zi + kern_gumbel(key, (uint32_t)a.id[i]);
        if (token < 0 || g > best || (g == best && a.id[i] < token)) best = g, token = a.id[i];
    }
    return token;
}

/* The n best of x, best first, lowest id first on ties. */
static int32_t top_ids(const cpu_vec *vec, const float *x, int32_t vocab, int32_t n, int32_t *ids)
{
    int32_t have = fast_min(n, vocab), at;
    if (have <= 0) return 0;
    for (int32_t i = 0; i < vocab;) {
        int32_t filled = fast_min(i, have);
        for (at = filled; at > 0 && x[ids[at - 1]] < x[i]; at--)
            if (at < have) ids[at] = ids[at - 1];
        if (at < have) ids[at] = i;
        i++;
        if (i >= have) i = vec->find_above(x, i, vocab, x[ids[have - 1]]);
    }
    return have;
}

typedef struct sample_job {
    const cpu_vec *vec;
    const kern_sample_args *a;
} sample_job;

static void sample_task(const void *arg, int32_t r, void *scratch)
{
    const sample_job *j = arg;
    const kern_sample_args *a = j->a;
    const kern_sample_params *p = &a->params[r];
    float *x = (float *)a->logits.data + r * a->logits.stride;
    cpu_sample_adjust(a, p, x);
    float m = j->vec->max(x, a->vocab, -KERN_INF);
    if (m == -KERN_INF || m == KERN_INF || j->vec->has_nan(x, a->vocab)) {
        cpu_sample_fail(a, r);
        return;
    }
    a->tokens[r] = p->target >= 0            ? p->target
                   : cpu_sample_is_greedy(p) ? j->vec->find(x, a->vocab, m)
                                             : draw(j->vec, p, x, m, a->vocab, scratch);
    float log_sum = kern_log(j->vec->sum_exp(x, a->vocab, m, scratch));
    a->logprobs[r] = (x[a->tokens[r]] - m) - log_sum;
    int32_t ids[KERN_MAX_TOP_LOGPROBS],
        n = top_ids(j->vec, x, a->vocab, fast_min(p->n_logprobs, KERN_MAX_TOP_LOGPROBS), ids);
    for (int32_t k = 0; k < KERN_MAX_TOP_LOGPROBS; k++)
        cpu_sample_top(a, r, k, k < n ? ids[k] : -1, k < n ? (x[ids[k]] - m) - log_sum : -KERN_INF);
}

ltd_status fast_sample(const kern_ctx *ctx, const kern_sample_args *a)
{
    CPU_TRY(cpu_check_sample(a));
    sample_job j = {.vec = fast_vec(ctx), .a = a};
    int32_t rows = cpu_rows(a->rows_cap, a->rows);
    fast_run(ctx, (int64_t)rows * a->vocab * 4, rows, sample_task, &j);
    return LTD_OK;
}
