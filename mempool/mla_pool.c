/* mla_pool.c - the MLA kind: per layer one store; a row is the latent, then the rotated shared key.
 * One row of d_c + d_rope, so that the absorbed path reads a token's key in one stretch (576 elements for
 * DeepSeek). */
#include "mempool/mempool_private.h"

static void mla_row_elems(const pool_tokens_desc *d, int64_t elems[POOL_MAX_STORES])
{
    elems[0] = (int64_t)d->d_c + d->d_rope;
    elems[1] = 0;
}

static pool_view mla_view(const pool_tokens_desc *d, pool_plane plane)
{
    if (plane == POOL_LATENT) return (pool_view){0, 0};
    if (plane == POOL_ROPE) return (pool_view){0, d->d_c};
    return (pool_view){-1, 0};
}

const pool_kind_ops pool__mla = {"mla", mla_row_elems, mla_view};
