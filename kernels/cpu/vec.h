/* vec.h - the loops that are compiled once per instruction set (vec_*.c) and chosen at run time.
 * All work on f32 in memory; widening and rounding are calls of their own, but for weights, which are widened
 * where they are used. "Padded" rows are followed by zeros up to a multiple of LANES. */
#ifndef LTD_KERNELS_CPU_VEC_H
#define LTD_KERNELS_CPU_VEC_H

#include "kernels/cpu/cpu.h"

typedef struct cpu_vec {
    const char *isa;

    /* vec_matmul.c */
    /* out[r][j] = x[r] . w[j] in lanes, r < rows, j < n.  x: padded rows; w: padded rows of `dtype`, w_stride
     * elements apart; out[r] points at column 0. */
    void (*dots)(const float *const *x, int32_t rows, const void *w, kern_dtype dtype, int64_t w_stride,
                 int32_t k, int32_t n, float *out, int64_t out_stride);
    /* o[r][c] += sum_j p[r][j] v[j][c], one chain in ascending j; c < n_c, a multiple of LANES.  v: rows of
     * `dtype`. */
    void (*chain)(const float *p, int64_t p_stride, int32_t rows, const void *v, kern_dtype dtype,
                  int64_t v_stride, int32_t n_j, int32_t n_c, float *o, int64_t o_stride);

    /* vec_rows.c */
    void (*widen)(const uint16_t *src, int64_t n, float *dst);
    void (*narrow)(const float *src, int64_t n, uint16_t *dst);
    void (*round)(float *x, int64_t n);                               /* to bf16 and back */
    void (*add)(float *x, const float *y, int64_t n);                 /* x += y */
    float (*sum_squares)(const float *x, int64_t n);                  /* lanes */
    void (*scale_to)(const float *x, float s, int64_t n, float *y);   /* y = x s; y may be x */
    void (*multiply)(float *x, const float *y, int64_t n);            /* x *= y */
    void (*add_scaled)(float *o, float s, const float *x, int64_t n); /* o += s x */
    void (*silu_mul)(const float *gate, const float *up, int64_t n, float *out);
    void (*merge)(float *acc, float wa, const float *part, float wb,
                  int64_t n); /* acc = (wa acc + wb part) / (wa + wb) */
    void (*join)(float *acc, float a, const float *part, float b, int64_t n); /* acc = acc a + part b */
    void (*divide)(const float *x, float d, int64_t n, float *y);             /* y = x / d */
    float (*max)(const float *x, int64_t n, float m);                         /* NaN passed over; from m */
    /* p = exp(s - shift) in place, returns their sum (lanes); then rounds p to bf16 where asked. */
    float (*softmax)(float *s, int64_t n, float shift, bool round);

    /* over one row of logits */
    bool (*has_nan)(const float *x, int32_t n);
    float (*sum_exp)(const float *x, int32_t n, float m,
                     float *buffer); /* sum exp(x - m), lanes; buffer of n */
    /* sum exp(z) of those down to (last_z, last_id) in descending order, ids ascending on ties; lanes */
    float (*sum_kept)(const float *z, int32_t n, float last_z, int32_t last_id, float *buffer);
    void (*tempered)(const float *x, int32_t n, float m, float t, float *z); /* (x - m) / t */
    /* The largest z + noise over those with z == 0 or exp(z) >= min_p (all when min_p is 0), lowest id on
     * ties. */
    int32_t (*gumbel)(const float *z, int32_t n, float min_p, kern_noise key);
    /* Bits of |z| and ids of all with z >= -reach, ids ascending; returns how many. */
    int32_t (*gather)(const float *z, int32_t n, float reach, uint32_t *key, int32_t *id);
    int32_t (*find)(const float *x, int32_t n, float value); /* first i with x[i] == value; n if none */
    int32_t (*find_above)(const float *x, int32_t from, int32_t n,
                          float value); /* first i >= from with x[i] > value; n if none */
} cpu_vec;

#ifdef VEC_ISA /* inside a vec_*.c */
#define VEC_JOIN_(a, b) a##_##b
#define VEC_JOIN(a, b)  VEC_JOIN_(a, b)
#define VEC_NAME(x)     VEC_JOIN(x, VEC_ISA)
#define VEC_TEXT_(x)    #x
#define VEC_TEXT(x)     VEC_TEXT_(x)

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define VEC_W 16
#elif defined(__AVX__)
#define VEC_W 8
#else
#define VEC_W 4
#endif
#define VEC_L (LANES / VEC_W) /* vectors of one set of lanes */

typedef float vf __attribute__((vector_size(VEC_W * 4)));
typedef int32_t vi __attribute__((vector_size(VEC_W * 4)));
typedef uint32_t vu __attribute__((vector_size(VEC_W * 4)));
typedef uint16_t vh __attribute__((vector_size(VEC_W * 2)));
typedef float v4 __attribute__((vector_size(16)));
typedef float v8 __attribute__((vector_size(32)));

static inline __attribute__((always_inline)) vf vec_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline __attribute__((always_inline)) void vec_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
static inline __attribute__((always_inline)) vf vec_load_bf16(const uint16_t *p)
{
    /* on x86 gcc 12 widens in halves and joins them, three or more instructions for one */
#if VEC_W == 16
    return (vf)((vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)p)) << 16);
#elif VEC_W == 8
    return (vf)((vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i_u *)p)) << 16);
#elif defined(__SSE4_1__)
    return (vf)((vu)_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i_u *)p)) << 16);
#else
    vh h;
    memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}
static inline __attribute__((always_inline)) vf vec_all(float x)
{
    return x - (vf){0};
}
static inline __attribute__((always_inline)) vf vec_max(vf x, vf m)
{
    vi take = x > m;
    return (vf)((take & (vi)x) | (~take & (vi)m));
}

/* lanes_tree's first two levels: (l, l + 8), (l, l + 4). */
static inline __attribute__((always_inline)) v4 vec_quad(const vf *a)
{
#if VEC_W == 16
    v8 b = __builtin_shufflevector(a[0], a[0], 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(a[0], a[0], 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(b, b, 0, 1, 2, 3) + __builtin_shufflevector(b, b, 4, 5, 6, 7);
#elif VEC_W == 8
    v8 b = a[0] + a[1];
    return __builtin_shufflevector(b, b, 0, 1, 2, 3) + __builtin_shufflevector(b, b, 4, 5, 6, 7);
#else
    return (a[0] + a[2]) + (a[1] + a[3]);
#endif
}
static inline __attribute__((always_inline)) float vec_tree(const vf *a)
{
    v4 q = vec_quad(a);
    return (q[0] + q[2]) + (q[1] + q[3]);
}

/* One definition of each function per instruction set; the tables name them. */
#define VEC_DOTS  VEC_NAME(cpu_dots)
#define VEC_CHAIN VEC_NAME(cpu_chain)
void VEC_DOTS(const float *const *x, int32_t rows, const void *w, kern_dtype dtype, int64_t w_stride,
              int32_t k, int32_t n, float *out, int64_t out_stride);
void VEC_CHAIN(const float *p, int64_t p_stride, int32_t rows, const void *v, kern_dtype dtype,
               int64_t v_stride, int32_t n_j, int32_t n_c, float *o, int64_t o_stride);
extern const cpu_vec VEC_NAME(cpu_vec);
#endif

#endif
