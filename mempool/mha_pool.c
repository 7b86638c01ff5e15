/* mha_pool.c - the MHA kind: per layer a store of keys and one of values, all heads of a token in one row.
 * Serves --disable-mla: the same model decompressed, the independent check on the MLA path. */
#include "mempool/mempool_private.h"

static void mha_row_elems(const pool_tokens_desc *d, int64_t elems[POOL_MAX_STORES])
{
    elems[0] = (int64_t)d->n_heads * (d->d_nope + d->d_rope);
    elems[1] = (int64_t)d->n_heads * d->d_v;
}

static pool_view mha_view(const pool_tokens_desc *d, pool_plane plane)
{
    (void)d;
    if (plane == POOL_K) return (pool_view){0, 0};
    if (plane == POOL_V) return (pool_view){1, 0};
    return (pool_view){-1, 0};
}

const pool_kind_ops pool__mha = {"mha", mha_row_elems, mha_view};
