/* vec_rows.c - loops over one row: conversions, norms, SiLU, softmax, merges; and the table of this
 * instruction set. */
#include "kernels/cpu/vec.h"

static void widen(const uint16_t *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i++) dst[i] = kern_float((uint32_t)src[i] << 16);
}

/* kern_f32_to_bf16 without its branch. */
static inline uint32_t rounded(uint32_t u)
{
    uint32_t nan = (u >> 16) | 0x40u, even = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? nan : even;
}
static void narrow(const float *src, int64_t n, uint16_t *dst)
{
    for (int64_t i = 0; i < n; i++) dst[i] = (uint16_t)rounded(kern_bits(src[i]));
}
static void round_row(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = kern_float(rounded(kern_bits(x[i])) << 16);
}

static void add(float *restrict x, const float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = x[i] + y[i];
}
static void scale_to(const float *x, float s, int64_t n, float *y) /* y may be x */
{
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * s;
}
static void multiply(float *restrict x, const float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = x[i] * y[i];
}
static void add_scaled(float *restrict o, float s, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) o[i] = o[i] + s * x[i];
}
static void silu_mul(const float *restrict gate, const float *restrict up, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++) out[i] = kern_silu(gate[i]) * up[i];
}
static void merge(float *restrict acc, float wa, const float *restrict part, float wb, int64_t n)
{
    float sum = wa + wb;
    for (int64_t i = 0; i < n; i++) acc[i] = (wa * acc[i] + wb * part[i]) / sum;
}
static void join(float *restrict acc, float a, const float *restrict part, float b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) acc[i] = acc[i] * a + part[i] * b;
}
static void divide(const float *restrict x, float d, int64_t n, float *restrict y)
{
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / d;
}

/* Sets of lanes of a row whose tail may be short. */
static inline void lanes_row(const float *x, int64_t i, int64_t n, vf *v)
{
    float tail[LANES] = {0};
    if (n - i < LANES) {
        memcpy(tail, x + i, (size_t)(n - i) * 4);
        x = tail, i = 0;
    }
    for (int l = 0; l < VEC_L; l++) v[l] = vec_load(x + i + l * VEC_W);
}

static float sum_squares(const float *x, int64_t n)
{
    vf acc[VEC_L] = {{0}}, v[VEC_L];
    for (int64_t i = 0; i < n; i += LANES) {
        lanes_row(x, i, n, v);
        for (int l = 0; l < VEC_L; l++) acc[l] += v[l] * v[l];
    }
    return vec_tree(acc);
}

static float sum(const float *x, int64_t n)
{
    vf acc[VEC_L] = {{0}}, v[VEC_L];
    for (int64_t i = 0; i < n; i += LANES) {
        lanes_row(x, i, n, v);
        for (int l = 0; l < VEC_L; l++) acc[l] += v[l];
    }
    return vec_tree(acc);
}

static float max(const float *x, int64_t n, float m)
{
    vf best = vec_all(m);
    int64_t i = 0;
    for (; i + VEC_W <= n; i += VEC_W) best = vec_max(vec_load(x + i), best);
    for (int l = 0; l < VEC_W; l++) m = best[l] > m ? best[l] : m;
    for (; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

static float softmax(float *s, int64_t n, float shift, bool round)
{
    for (int64_t i = 0; i < n; i++) s[i] = kern_exp(s[i] - shift);
    float l = sum(s, n);
    if (round) round_row(s, n);
    return l;
}

/* ---------------------------------------------------------------- sampling */

static bool has_nan(const float *x, int32_t n)
{
    uint32_t any = 0;
    for (int32_t i = 0; i < n; i++) any |= (kern_bits(x[i]) & 0x7fffffffu) > 0x7f800000u;
    return any != 0;
}

static float sum_exp(const float *restrict x, int32_t n, float m, float *restrict buffer)
{
    for (int32_t i = 0; i < n; i++) buffer[i] = kern_exp(x[i] - m);
    return sum(buffer, n);
}

static float sum_kept(const float *restrict z, int32_t n, float last_z, int32_t last_id,
                      float *restrict buffer)
{
    for (int32_t i = 0; i < n; i++)
        buffer[i] = z[i] > last_z || (z[i] == last_z && i <= last_id) ? kern_exp(z[i]) : 0.0f;
    return sum(buffer, n);
}

static void tempered(const float *restrict x, int32_t n, float m, float t, float *restrict z)
{
    for (int32_t i = 0; i < n; i++) z[i] = (x[i] - m) / t;
}

static int32_t find(const float *x, int32_t n, float value)
{
    enum { BLOCK = 64 };
    int32_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        int32_t any = 0;
        for (int32_t j = 0; j < BLOCK; j++) any |= x[i + j] == value;
        if (any) break;
    }
    while (i < n && x[i] != value) i++;
    return i;
}

static int32_t find_above(const float *x, int32_t i, int32_t n, float value)
{
    enum { BLOCK = 64 };
    for (; i + BLOCK <= n; i += BLOCK) {
        int32_t any = 0;
        for (int32_t j = 0; j < BLOCK; j++) any |= x[i + j] > value;
        if (any) break;
    }
    while (i < n && !(x[i] > value)) i++;
    return i;
}

static int32_t gather(const float *z, int32_t n, float reach, uint32_t *key, int32_t *id)
{
    enum { BLOCK = 64 };
    int32_t found = 0;
    for (int32_t i = 0; i < n; i += BLOCK) {
        int32_t m = n - i < BLOCK ? n - i : BLOCK, any = 0;
        for (int32_t j = 0; j < m; j++) any |= z[i + j] >= -reach;
        for (int32_t j = 0; any && j < m; j++) {
            key[found] = kern_bits(z[i + j]) & 0x7fffffffu;
            id[found] = i + j;
            found += z[i + j] >= -reach; /* found <= i + j: what is written too much is still in room for n */
        }
    }
    return found;
}

static int32_t gumbel(const float *z, int32_t n, float min_p, kern_noise key)
{
    enum { BLOCK = 256 };
    float g[BLOCK], best = -KERN_INF;
    int32_t token = -1;
    for (int32_t i = 0; i < n; i += BLOCK) {
        int32_t m = n - i < BLOCK ? n - i : BLOCK;
        for (int32_t j = 0; j < m; j++) g[j] = z[i + j] + kern_gumbel(key, (uint32_t)(i + j));
        if (min_p > 0)
            for (int32_t j = 0; j < m; j++)
                g[j] = z[i + j] < 0 && kern_exp(z[i + j]) < min_p ? -KERN_INF : g[j];
        float top = max(g, m, best);
        if (top > best) best = top, token = i + find(g, m, top);
    }
    return token;
}

const cpu_vec VEC_NAME(cpu_vec) = {
    .isa = VEC_TEXT(VEC_ISA),
    .dots = VEC_DOTS,
    .chain = VEC_CHAIN,
    .widen = widen,
    .narrow = narrow,
    .round = round_row,
    .add = add,
    .sum_squares = sum_squares,
    .scale_to = scale_to,
    .multiply = multiply,
    .add_scaled = add_scaled,
    .silu_mul = silu_mul,
    .merge = merge,
    .join = join,
    .divide = divide,
    .max = max,
    .softmax = softmax,
    .has_nan = has_nan,
    .sum_exp = sum_exp,
    .sum_kept = sum_kept,
    .tempered = tempered,
    .gather = gather,
    .gumbel = gumbel,
    .find = find,
    .find_above = find_above,
};
