#include "kernels/cpu/cpu.h"

/* Index of the largest of v[0..n) that `out` does not exclude, the lowest on ties; -1 if all are out.  A NaN
 * is only taken where nothing else is left before it. */
static int32_t best(const float *v, const bool *out, int32_t n)
{
    int32_t at = -1;
    for (int32_t i = 0; i < n; i++)
        if (!out[i] && (at < 0 || v[i] > v[at])) at = i;
    return at;
}

/* Excludes the experts of all but the topk_group best groups. */
static void keep_groups(const kern_route_args *a, const float *choice, bool *out)
{
    float score[CPU_MAX_EXPERTS];
    bool taken[CPU_MAX_EXPERTS] = {0};
    int32_t size = a->n_experts / a->n_group;
    for (int32_t g = 0; g < a->n_group; g++) {
        const float *c = choice + g * size;
        bool *o = out + g * size;
        int32_t first = best(c, o, size);
        score[g] = c[first];
        if (a->method != KERN_ROUTE_NOAUX_TC) continue;
        o[first] = true;
        int32_t second = best(c, o, size);
        o[first] = false;
        if (second >= 0) score[g] += c[second];
    }
    for (int32_t k = 0; k < a->topk_group && k < a->n_group; k++)
        taken[best(score, taken, a->n_group)] = true;
    for (int32_t i = 0; i < size * a->n_group; i++) out[i] = !taken[i / size];
}

static void route_row(const kern_route_args *a, const float *logits, int32_t *ids, float *weights)
{
    float s[CPU_MAX_EXPERTS], choice[CPU_MAX_EXPERTS], lane[LANES] = {0}, m = -KERN_INF, sum = 0;
    bool out[CPU_MAX_EXPERTS] = {0}, sigmoid = a->method == KERN_ROUTE_NOAUX_TC;
    int32_t n = a->n_experts;
    for (int32_t i = 0; i < n; i++) m = logits[i] > m ? logits[i] : m;
    for (int32_t i = 0; i < n; i++) {
        s[i] = sigmoid ? kern_sigmoid(logits[i]) : kern_exp(logits[i] - lanes_shift(m));
        lane[i % LANES] += s[i];
    }
    float total = lanes_tree(lane);
    for (int32_t i = 0; i < n; i++) {
        if (!sigmoid) s[i] = s[i] / total;
        choice[i] = s[i] + (sigmoid && a->bias ? a->bias[i] : 0.0f);
    }
    if (a->method != KERN_ROUTE_GREEDY && a->n_group > 1) keep_groups(a, choice, out);
    for (int32_t k = 0; k < a->top_k; k++) {
        ids[k] = best(choice, out, n);
        weights[k] = ids[k] < 0 ? 0.0f : s[ids[k]];
        if (ids[k] >= 0) out[ids[k]] = true;
        sum += weights[k];
    }
    for (int32_t k = 0; k < a->top_k; k++)
        weights[k] = (a->normalize ? weights[k] / (sum + 1e-20f) : weights[k]) * a->scale;
}

void ref_route_rows(const kern_route_args *a, int32_t r0, int32_t r1)
{
    for (int32_t r = r0; r < r1; r++)
        route_row(a, (const float *)a->logits.data + r * a->logits.stride, a->ids + (int64_t)r * a->top_k,
                  a->weights + (int64_t)r * a->top_k);
}

ltd_status cpu_check_route(const kern_route_args *a)
{
    CPU_TRY(cpu_check_f32("route", "logits", &a->logits));
    if (a->n_experts <= CPU_MAX_EXPERTS &&
        (a->method == KERN_ROUTE_GREEDY || a->n_group <= 1 || a->n_experts % a->n_group == 0))
        return LTD_OK;
    log_error("kernels", "op=route n_experts=%d n_group=%d: at most %d experts, in equal groups",
              (int)a->n_experts, (int)a->n_group, CPU_MAX_EXPERTS);
    return LTD_UNSUPPORTED;
}

ltd_status ref_route(const kern_ctx *ctx, const kern_route_args *a)
{
    (void)ctx;
    CPU_TRY(cpu_check_route(a));
    int32_t n = cpu_rows(a->rows_cap, a->rows);
    ref_route_rows(a, 0, n);
    for (int64_t i = (int64_t)n * a->top_k; i < (int64_t)a->rows_cap * a->top_k; i++) a->ids[i] = -1;
    return LTD_OK;
}
