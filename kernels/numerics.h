/* numerics.h - the elementary functions of the operations: exp, log, SiLU, sampling noise; one definition for
 * the CPU and CUDA. Straight-line f32 (multiply, add, select, bit casts), so that compilers vectorise loops
 * of them and every instruction set gives the same bits (no fused multiply-add, nothing from libm but sqrt).
 * Errors measured in tests/test_kernels_math.c. */
#ifndef LTD_KERNELS_NUMERICS_H
#define LTD_KERNELS_NUMERICS_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define KERN_FN static __host__ __device__ inline
#else
#define KERN_FN static inline __attribute__((always_inline))
#endif

#define KERN_INF __builtin_inff()

KERN_FN uint32_t kern_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
KERN_FN float kern_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* e^x, within 1.2 ulp.  -inf and below -104: 0; above 88.7: inf; NaN: NaN.
 * x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r); 2^n in two factors, so that subnormal results
 * round once. */
KERN_FN float kern_exp(float x)
{
    const float magic =
        12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, which then sits in the low bits */
    x = x > 89.0f ? 89.0f : x; /* so written, NaN passes */
    x = x < -104.0f ? -104.0f : x;
    float t = x * 1.44269504f + magic;
    float n = t - magic;
    float r = x - n * 0.693359375f; /* 9 bits: n times it is exact */
    r = r - n * -2.12194440e-4f;
    float q = 1.39262038e-3f;
    q = q * r + 8.36319476e-3f;
    q = q * r + 4.16665561e-2f;
    q = q * r + 1.66665763e-1f;
    q = q * r + 0.5f;
    float p = (q * r) * r + r;
    p = p + 1.0f;
    int32_t i = (int32_t)(kern_bits(t) - kern_bits(magic)), half = i >> 1;
    return p * kern_float((uint32_t)(half + 127) << 23) * kern_float((uint32_t)(i - half + 127) << 23);
}

/* Natural logarithm, within 1.2 ulp.  0: -inf; negative and NaN: NaN; inf: inf; subnormals are exact.
 * x = 2^e m, m in [sqrt(1/2), sqrt(2)); with f = m - 1, s = f / (2 + f): log m = f - (f^2/2 - s (f^2/2 +
 * R(s^2))). */
KERN_FN float kern_log(float x)
{
    float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;
    int32_t e0 = x < 1.17549435e-38f ? -23 : 0;
    uint32_t u = kern_bits(scaled) - 0x3f3504f3u; /* bits of sqrt(1/2) */
    int32_t e = (int32_t)u >> 23;
    float m = kern_float((u & 0x7fffffu) + 0x3f3504f3u);
    float f = m - 1.0f, s = f / (2.0f + f), z = s * s, h = 0.5f * f * f;
    float r = 2.95803994e-1f;
    r = r * z + 3.99887711e-1f;
    r = r * z + 6.66666865e-1f;
    r = r * z;
    float k = (float)(e + e0);
    float y = f - (h - (s * (h + r) + k * -2.12194440e-4f)) + k * 0.693359375f;
    y = x == KERN_INF ? x : y;
    y = x == 0.0f ? -KERN_INF : y;
    return x >= 0.0f ? y : kern_float(0x7fc00000u);
}

KERN_FN float kern_sigmoid(float x)
{
    return 1.0f / (1.0f + kern_exp(-x));
}
KERN_FN float kern_silu(float x)
{
    return x / (1.0f + kern_exp(-x));
}

/* Sampling noise: a uniform number in (0, 1), a function of (seed, position, id) alone.  The key is made once
 * a row, by kern_noise_key. */
typedef struct kern_noise {
    uint32_t a, b;
} kern_noise;

KERN_FN uint64_t kern_mix64(uint64_t z)
{
    z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93ull;
    z = (z ^ (z >> 29)) * 0x9e3779b97f4a7c15ull;
    return z ^ (z >> 32);
}
KERN_FN kern_noise kern_noise_key(uint64_t seed, int32_t position)
{
    uint64_t k = kern_mix64(kern_mix64(seed + 0x9e3779b97f4a7c15ull) +
                            (uint64_t)(uint32_t)position * 0xd1342543de82ef95ull);
    kern_noise n = {(uint32_t)k, (uint32_t)(k >> 32)};
    return n;
}
KERN_FN uint32_t kern_noise_bits(kern_noise key, uint32_t id)
{
    uint32_t h = id * 0x9e3779b1u + key.a;
    h = (h ^ (h >> 16)) * 0x6a09e667u;
    h = (h ^ (h >> 15)) * 0xbb67ae85u;
    h = (h ^ (h >> 16)) + key.b;
    h = (h ^ (h >> 15)) * 0x3c6ef373u;
    h = (h ^ (h >> 12)) * 0xa54ff53bu;
    return h ^ (h >> 15);
}
/* -log(-log u): Gumbel noise.  23 bits of u, centred, so that 0 and 1 cannot occur. */
KERN_FN float kern_gumbel(kern_noise key, uint32_t id)
{
    int32_t top = (int32_t)(kern_noise_bits(key, id) >> 9);
    float u = (float)(2 * top + 1) * 5.9604644775390625e-8f; /* 2^-24 */
    return -kern_log(-kern_log(u));
}

#endif
