/* vec_matmul.c - the two inner products of everything: dots (sums over contiguous elements, in lanes) and
 * chain (sums down rows). Register tiles: rows x outputs accumulators of LANES lanes for dots, rows x columns
 * for chain.  Tiles differ in width from one instruction set to the next, and at the edges; an output's own
 * sum never does. */
#include "kernels/cpu/vec.h"

#define INLINE static inline __attribute__((always_inline))
#if VEC_W == 16
enum { MR = 4, NR = 4, CV = 4, CR = 4 }; /* 16 accumulators of 32 registers */
#elif VEC_W == 8
enum { MR = 2, NR = 2, CV = 2, CR = 4 }; /* 8 of 16 */
#elif defined(__aarch64__)
enum { MR = 2, NR = 2, CV = 4, CR = 4 }; /* 16 of 32 */
#else
enum { MR = 1, NR = 2, CV = 4, CR = 2 }; /* 8 of 16 */
#endif

INLINE vf load_any(const void *p, int64_t i, bool bf16)
{
    return bf16 ? vec_load_bf16((const uint16_t *)p + i) : vec_load((const float *)p + i);
}

/* mr x nr outputs; nr <= 4.  mr, nr and bf16 are constants at every call. */
INLINE void dots_tile(int mr, int nr, bool bf16, const float *const *x, const void *w, int64_t w_stride,
                      int32_t steps, float *out, int64_t out_stride)
{
    vf acc[4][4][VEC_L];
    const float *xp[4];
    const char *wp[4];
    int64_t w_bytes = bf16 ? 2 : 4;
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
        xp[r] = x[r];
#pragma GCC unroll 4
        for (int j = 0; j < nr; j++)
#pragma GCC unroll 4
            for (int l = 0; l < VEC_L; l++) acc[r][j][l] = (vf){0};
    }
#pragma GCC unroll 4
    for (int j = 0; j < nr; j++) wp[j] = (const char *)w + j * w_stride * w_bytes;
    for (int64_t s = 0; s < (int64_t)steps * LANES; s += LANES) {
#pragma GCC unroll 4
        for (int l = 0; l < VEC_L; l++) {
            vf wv[4];
#pragma GCC unroll 4
            for (int j = 0; j < nr; j++) wv[j] = load_any(wp[j], s + l * VEC_W, bf16);
#pragma GCC unroll 4
            for (int r = 0; r < mr; r++) {
                vf xv = vec_load(xp[r] + s + l * VEC_W);
#pragma GCC unroll 4
                for (int j = 0; j < nr; j++) acc[r][j][l] += xv * wv[j];
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
        v4 q[4] = {{0}};
#pragma GCC unroll 4
        for (int j = 0; j < nr; j++) q[j] = vec_quad(acc[r][j]);
        /* transposed, so that the last two levels of four trees run at once */
        v4 ab =
            __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5) + __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
        v4 cd =
            __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5) + __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
        v4 y = __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
        memcpy(out + r * out_stride, &y, (size_t)nr * 4);
    }
}

/* All rows against outputs j .. j + nr. */
INLINE void dots_panel(int nr, bool bf16, const float *const *x, int32_t rows, const void *w,
                       int64_t w_stride, int32_t steps, float *out, int64_t out_stride)
{
    int32_t r = 0;
    for (; r + MR <= rows; r += MR)
        dots_tile(MR, nr, bf16, x + r, w, w_stride, steps, out + r * out_stride, out_stride);
    if (MR > 2 && r + 2 <= rows) {
        dots_tile(2, nr, bf16, x + r, w, w_stride, steps, out + r * out_stride, out_stride);
        r += 2;
    }
    if (r < rows) dots_tile(1, nr, bf16, x + r, w, w_stride, steps, out + r * out_stride, out_stride);
}

INLINE void dots_all(bool bf16, const float *const *x, int32_t rows, const void *w, int64_t w_stride,
                     int32_t steps, int32_t n, float *out, int64_t out_stride)
{
    int32_t j = 0;
    int64_t w_bytes = bf16 ? 2 : 4;
    const char *wp = w;
    for (; j + NR <= n; j += NR)
        dots_panel(NR, bf16, x, rows, wp + j * w_stride * w_bytes, w_stride, steps, out + j, out_stride);
    for (; j < n; j++)
        dots_panel(1, bf16, x, rows, wp + j * w_stride * w_bytes, w_stride, steps, out + j, out_stride);
}

void VEC_DOTS(const float *const *x, int32_t rows, const void *w, kern_dtype dtype, int64_t w_stride,
              int32_t k, int32_t n, float *out, int64_t out_stride)
{
    int32_t steps = (k + LANES - 1) / LANES;
    if (dtype == KERN_BF16)
        dots_all(true, x, rows, w, w_stride, steps, n, out, out_stride);
    else
        dots_all(false, x, rows, w, w_stride, steps, n, out, out_stride);
}

/* nr rows x nc vectors of columns. */
INLINE void chain_tile(int nr, int nc, bool bf16, const float *p, int64_t p_stride, const void *v,
                       int64_t v_stride, int32_t n_j, float *o, int64_t o_stride)
{
    vf acc[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 4
        for (int c = 0; c < nc; c++) acc[r][c] = vec_load(o + r * o_stride + c * VEC_W);
    for (int32_t j = 0; j < n_j; j++) {
        vf vv[4];
#pragma GCC unroll 4
        for (int c = 0; c < nc; c++) vv[c] = load_any(v, j * v_stride + c * VEC_W, bf16);
#pragma GCC unroll 4
        for (int r = 0; r < nr; r++) {
            vf pv = vec_all(p[r * p_stride + j]);
#pragma GCC unroll 4
            for (int c = 0; c < nc; c++) acc[r][c] += pv * vv[c];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 4
        for (int c = 0; c < nc; c++) vec_store(o + r * o_stride + c * VEC_W, acc[r][c]);
}

INLINE void chain_rows(int nr, bool bf16, const float *p, int64_t p_stride, const void *v, int64_t v_stride,
                       int32_t n_j, int32_t n_c, float *o, int64_t o_stride)
{
    int32_t c = 0;
    int64_t v_bytes = bf16 ? 2 : 4;
    for (; c + CV * VEC_W <= n_c; c += CV * VEC_W)
        chain_tile(nr, CV, bf16, p, p_stride, (const char *)v + c * v_bytes, v_stride, n_j, o + c, o_stride);
    for (; c < n_c; c += VEC_W)
        chain_tile(nr, 1, bf16, p, p_stride, (const char *)v + c * v_bytes, v_stride, n_j, o + c, o_stride);
}

INLINE void chain_all(bool bf16, const float *p, int64_t p_stride, int32_t rows, const void *v,
                      int64_t v_stride, int32_t n_j, int32_t n_c, float *o, int64_t o_stride)
{
    int32_t r = 0;
    for (; r + CR <= rows; r += CR)
        chain_rows(CR, bf16, p + r * p_stride, p_stride, v, v_stride, n_j, n_c, o + r * o_stride, o_stride);
    for (; r < rows; r++)
        chain_rows(1, bf16, p + r * p_stride, p_stride, v, v_stride, n_j, n_c, o + r * o_stride, o_stride);
}

void VEC_CHAIN(const float *p, int64_t p_stride, int32_t rows, const void *v, kern_dtype dtype,
               int64_t v_stride, int32_t n_j, int32_t n_c, float *o, int64_t o_stride)
{
    if (dtype == KERN_BF16)
        chain_all(true, p, p_stride, rows, v, v_stride, n_j, n_c, o, o_stride);
    else
        chain_all(false, p, p_stride, rows, v, v_stride, n_j, n_c, o, o_stride);
}
