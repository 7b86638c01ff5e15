/* sample_ref.c - one row of logits to one token, by the steps of kernels.h in their order.
 * The candidates are sorted whole, which is the definition and slow; the fast version sorts what it needs. */
#include "kernels/cpu/cpu.h"
#include <stdlib.h>

void cpu_sample_adjust(const kern_sample_args *a, const kern_sample_params *p, float *x)
{
    if (p->mask_row >= 0 && a->masks) {
        const uint32_t *mask = a->masks + (int64_t)p->mask_row * ((a->vocab + 31) / 32);
        for (int32_t i = 0; i < a->vocab; i++) x[i] = cpu_bit(mask, i) ? x[i] : -KERN_INF;
    }
    for (int32_t i = p->counts_first; i < p->counts_first + p->n_counts; i++) {
        int32_t id = a->count_ids[i], n = (int32_t)((uint32_t)a->counts[i] & 0x7fffffffu);
        x[id] = x[id] > 0 ? x[id] / p->repetition : x[id] * p->repetition;
        if (n > 0) x[id] = x[id] - (p->frequency * (float)n + p->presence);
    }
    for (int32_t i = p->bias_first; i < p->bias_first + p->n_bias; i++)
        x[a->bias_ids[i]] += a->bias_values[i];
}

void cpu_sample_fail(const kern_sample_args *a, int32_t r)
{
    a->tokens[r] = -1;
    a->logprobs[r] = -KERN_INF;
    for (int32_t k = 0; k < KERN_MAX_TOP_LOGPROBS; k++) cpu_sample_top(a, r, k, -1, -KERN_INF);
}

/* Temperature under CPU_GREEDY_BELOW, top_k 1 and top_p 0 are the highest logit whatever the noise. */
bool cpu_sample_is_greedy(const kern_sample_params *p)
{
    return p->temperature < CPU_GREEDY_BELOW || p->top_k == 1 || p->top_p <= 0;
}

typedef struct candidate {
    float z;
    int32_t id;
} candidate;

static int descending(const void *pa, const void *pb)
{
    const candidate *a = pa, *b = pb;
    return a->z != b->z ? (a->z < b->z ? 1 : -1) : (a->id > b->id) - (a->id < b->id);
}

/* Sum of exp(z), in lanes over ids, of the candidates down to the last one kept. */
static float total_of(const float *x, float m, float t, int32_t vocab, const candidate *last)
{
    float lane[LANES] = {0};
    for (int32_t i = 0; i < vocab; i++) {
        candidate one = {(x[i] - m) / t, i};
        if (descending(&one, last) <= 0) lane[i % LANES] += kern_exp(one.z);
    }
    return lanes_tree(lane);
}

static int32_t draw(const kern_sample_params *p, const float *x, float m, int32_t vocab, candidate *c)
{
    int32_t n = 0, token = -1;
    float best = -KERN_INF;
    kern_noise key = kern_noise_key(p->seed, p->position);
    for (int32_t i = 0; i < vocab; i++)
        if (x[i] > -KERN_INF) c[n++] = (candidate){(x[i] - m) / p->temperature, i};
    qsort(c, (size_t)n, sizeof *c, descending);
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    if (p->top_p < 1) {
        double mass = (double)p->top_p * (double)total_of(x, m, p->temperature, vocab, &c[n - 1]), sum = 0;
        int32_t most = n;
        for (n = 0; n < most && (n == 0 || sum < mass); n++) sum += kern_exp(c[n].z);
    }
    for (int32_t i = 0; i < n; i++) {
        if (p->min_p > 0 && c[i].z < 0 && kern_exp(c[i].z) < p->min_p) continue;
        float g = c[i].z + kern_gumbel(key, (uint32_t)c[i].id);
        if (token < 0 || g > best || (g == best && c[i].id < token)) best = g, token = c[i].id;
    }
    return token;
}

static void sample_row(const kern_sample_args *a, int32_t r, void *scratch)
{
    const kern_sample_params *p = &a->params[r];
    float *x = (float *)a->logits.data + r * a->logits.stride, m = -KERN_INF, lane[LANES] = {0};
    int32_t top = -1;
    bool nan = false;
    cpu_sample_adjust(a, p, x);
    for (int32_t i = 0; i < a->vocab; i++) {
        nan |= x[i] != x[i];
        if (x[i] > m) m = x[i], top = i;
    }
    if (nan || m == -KERN_INF || m == KERN_INF) {
        cpu_sample_fail(a, r);
        return;
    }
    a->tokens[r] = p->target >= 0            ? p->target
                   : cpu_sample_is_greedy(p) ? top
                                             : draw(p, x, m, a->vocab, scratch);
    for (int32_t i = 0; i < a->vocab; i++) lane[i % LANES] += kern_exp(x[i] - m);
    float log_sum = kern_log(lanes_tree(lane));
    a->logprobs[r] = (x[a->tokens[r]] - m) - log_sum;
    for (int32_t k = 0, last = -1; k < KERN_MAX_TOP_LOGPROBS; k++) {
        int32_t at = -1; /* the best that comes after the last one taken */
        for (int32_t i = 0; k < p->n_logprobs && i < a->vocab; i++)
            if ((last < 0 || x[i] < x[last] || (x[i] == x[last] && i > last)) && (at < 0 || x[i] > x[at]))
                at = i;
        cpu_sample_top(a, r, k, at, at < 0 ? -KERN_INF : (x[at] - m) - log_sum);
        last = at < 0 ? last : at;
    }
}

ltd_status ref_sample(const kern_ctx *ctx, const kern_sample_args *a)
{
    CPU_TRY(cpu_check_sample(a));
    int32_t n = cpu_rows(a->rows_cap, a->rows);
    for (int32_t r = 0; r < n; r++) sample_row(a, r, ((const cpu_ctx *)ctx)->scratch);
    return LTD_OK;
}
