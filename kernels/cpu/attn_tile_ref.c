#include "kernels/cpu/cpu.h"

float ref_score(const kern_tensor *q0, int64_t iq0, const kern_tensor *k0, int64_t ik0, int32_t d0,
                const kern_tensor *q1, int64_t iq1, const kern_tensor *k1, int64_t ik1, int32_t d1)
{
    float lane[LANES] = {0};
    for (int32_t i = 0; i < d0; i++) lane[i % LANES] += cpu_get(q0, iq0 + i) * cpu_get(k0, ik0 + i);
    for (int32_t i = 0; i < d1; i++) lane[i % LANES] += cpu_get(q1, iq1 + i) * cpu_get(k1, ik1 + i);
    return lanes_tree(lane);
}

void ref_fold_begin(ref_fold *f, int32_t d_v)
{
    f->m = -KERN_INF;
    f->l = 0;
    for (int32_t c = 0; c < d_v; c++) f->o[c] = 0;
}

void ref_fold_tile(ref_fold *f, const float *s, int32_t n, const kern_tensor *v, const int64_t *iv,
                   int32_t d_v)
{
    float m = f->m, lane[LANES] = {0};
    for (int32_t j = 0; j < n; j++) m = s[j] > m ? s[j] : m;
    float shift = lanes_shift(m), alpha = kern_exp(f->m - shift);
    for (int32_t j = 0; j < n; j++) lane[j % LANES] += kern_exp(s[j] - shift);
    f->l = f->l * alpha + lanes_tree(lane);
    for (int32_t c = 0; c < d_v; c++) {
        f->o[c] = f->o[c] * alpha;
        for (int32_t j = 0; j < n; j++)
            f->o[c] += cpu_round(v->dtype, kern_exp(s[j] - shift)) * cpu_get(v, iv[j] + c);
    }
    f->m = m;
}

void ref_fold_join(ref_fold *f, const ref_fold *unit, int32_t d_v)
{
    float a, b, m = lanes_pair(f->m, unit->m, &a, &b);
    f->l = f->l * a + unit->l * b;
    for (int32_t c = 0; c < d_v; c++) f->o[c] = f->o[c] * a + unit->o[c] * b;
    f->m = m;
}

float ref_fold_end(const ref_fold *f, const kern_tensor *out, int64_t at, int32_t d_v)
{
    for (int32_t c = 0; c < d_v; c++) cpu_put(out, at + c, f->l == 0 ? 0.0f : f->o[c] / f->l);
    return f->l == 0 ? -KERN_INF : f->m + kern_log(f->l);
}
