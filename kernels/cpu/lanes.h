/* lanes.h - the order of every sum on the CPU.  Definitions and fast versions keep to it, so their bits agree
 * on every instruction set.
 *
 * Sums over contiguous elements (matmul, HEADS_OUT, attention scores, norms, log-sum-exp) run in 16 lanes:
 *   - lane l adds elements l, l + 16, l + 32 .. in ascending order, each product rounded before it is added
 *     (never fused), starting from +0; then one tree over the lanes, lanes_tree;
 *   - a tail shorter than 16 adds nothing to the lanes it lacks; padding it with zeros gives the same bits,
 *     since no lane is ever -0;
 *   - a score of two parts, q0.k0 + q1.k1, runs both through the same lanes, part 1 after part 0, each
 *     starting at lane 0.
 *
 * Sums down rows of a matrix (HEADS_IN, attention's P V, expert outputs) are one ascending chain per output
 * element, starting from +0. */
#ifndef LTD_KERNELS_CPU_LANES_H
#define LTD_KERNELS_CPU_LANES_H

#include "kernels/numerics.h"

enum { LANES = 16 };

static inline float lanes_tree(const float lane[LANES])
{
    float a[8];
    for (int l = 0; l < 8; l++) a[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++) a[l] = a[l] + a[l + 4];
    for (int l = 0; l < 2; l++) a[l] = a[l] + a[l + 2];
    return a[0] + a[1];
}

/* Attention is a fold of tiles of keys into (m, l, O[d_v]), from m = -inf, l = 0, O = 0:
 *   m' = max(m, scores), alpha = exp(m - m'), p_j = exp(s_j - m')
 *   l = l alpha + sum of p (16 lanes)
 *   O = O alpha, then O += round(p_j) v_j for j ascending
 * Where all is -inf so far, m' counts as 0 in exp: every p is then 0, and a NaN score still shows.
 * Tiles of attn_prefill are KERN_PREFILL_TILE keys from the block's start, those of attn_decode DECODE_TILE
 * keys from the unit's start; a row takes the keys of a tile that it sees, always the first n.
 * Units join in ascending order, a and b from lanes_pair: l = l a + l' b, O = O a + O' b. */
enum { DECODE_TILE = 64 };

/* What exp takes off: the maximum, or 0 while there is none. */
static inline float lanes_shift(float m)
{
    return m == -KERN_INF ? 0.0f : m;
}

/* Weights of two parts with maxima (or log-sum-exps) a and b: exp(a - max), exp(b - max).  An empty part
 * (-inf) weighs 0 beside one that is not. */
static inline float lanes_pair(float a, float b, float *wa, float *wb)
{
    float m = a > b ? a : b, shift = lanes_shift(m);
    *wa = kern_exp(a - shift);
    *wb = kern_exp(b - shift);
    return m;
}

#endif
