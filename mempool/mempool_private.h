/* mempool_private.h - what a kind of token pool provides to token_pool.c. */
#ifndef LTD_MEMPOOL_PRIVATE_H
#define LTD_MEMPOOL_PRIVATE_H

#include "mempool/mempool.h"

/* Each kind has up to two allocations a layer ("stores"), each of n_slots + 1 rows, and shows planes in them.
 */
enum { POOL_MAX_STORES = 2 };

typedef struct pool_view {
    int32_t store;  /* -1: this kind has no such plane */
    int64_t offset; /* elements from the row's start */
} pool_view;

typedef struct pool_kind_ops {
    const char *name;
    /* Elements of a row of each store; 0 = none. */
    void (*row_elems)(const pool_tokens_desc *d, int64_t elems[POOL_MAX_STORES]);
    pool_view (*view)(const pool_tokens_desc *d, pool_plane plane);
} pool_kind_ops;

extern const pool_kind_ops pool__mla, pool__mha;

#endif
