/* mempool.h - who holds which KV slot, and where a slot's bytes are.
 * Level 1: slot numbers (pool_slots) and one row of them per running sequence (pool_req_table, host master; pool_req_mirror, device copy).
 * Level 2: token pools (pool_tokens): planes of memory indexed by slot; MLA and MHA behind one interface.
 * Knows nothing of requests' text, of the tree or of HTTP.  Threads: slots and req_table: the engine's only; mirror and tokens: a rank's only. */
#ifndef LTD_MEMPOOL_H
#define LTD_MEMPOOL_H

#include "config/config.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- slots (slots.c)
 * Slots are 1..n_slots; slot 0 is never handed out (padding writes there).  Prefers aligned runs of 64. */
typedef struct pool_slots pool_slots;

ltd_status pool_slots_create(int32_t n_slots, pool_slots **out);
void pool_slots_destroy(pool_slots *p);
/* Takes n slots, all or none, into out[0..n), ascending within each run.  They are the caller's until pool_slots_give.
 * after: the slot that the sequence's last token has, or 0: the run goes on behind it where that slot is free.
 * LTD_FULL: nothing taken; evict and ask again.  O(n) and independent of n_slots. */
ltd_status pool_slots_take(pool_slots *p, int32_t n, int32_t after, int32_t *out);
/* Gives slots back.  A slot that is free already: dies in debug; in release it is logged, counted and left out of use. */
void pool_slots_give(pool_slots *p, const int32_t *slots, int32_t n);
int32_t pool_slots_free(const pool_slots *p);   /* how many are free */
int32_t pool_slots_total(const pool_slots *p);
int64_t pool_slots_double_gives(const pool_slots *p);
bool pool_slots_is_free(const pool_slots *p, int32_t slot);
/* Tests: the nth take from now (1 = the next) answers LTD_FULL; 0 = off; every = repeat. */
void pool_slots_fail_take(pool_slots *p, int32_t nth, bool every);
ltd_status pool_slots_check(const pool_slots *p, ltd_err *err);
/* Verifies free + held == total and each slot once: held[slot] (n_slots + 1 entries) counts owners that the caller knows (private tails and tree). */
ltd_status pool_slots_check_owners(const pool_slots *p, const uint8_t *held, ltd_err *err);

/* ---------------------------------------------------------------- request table (req_table.c)
 * Row = one running sequence, its slots in order of position.  Edits since the last pool_req_edits_clear go to the mirrors with the next plan. */
typedef struct pool_req_table pool_req_table;
typedef struct pool_req_edit { int32_t row, pos, n, first; } pool_req_edit; /* slots[first .. first + n) stand at row, pos */

/* n_rows sequences of at most row_cap tokens. */
ltd_status pool_req_table_create(int32_t n_rows, int32_t row_cap, pool_req_table **out);
void pool_req_table_destroy(pool_req_table *t);
ltd_status pool_req_row_take(pool_req_table *t, int32_t *row); /* LTD_FULL when none is free */
void pool_req_row_give(pool_req_table *t, int32_t row);
/* Writes slots at pos .. pos + n and notes the edit (adjacent edits of one row join). */
void pool_req_set(pool_req_table *t, int32_t row, int32_t pos, const int32_t *slots, int32_t n);
int32_t *pool_req_row(pool_req_table *t, int32_t row); /* the host row, row_cap entries, for reading; write through pool_req_set */
/* The edits noted: *slots holds what their `first` points into.  Valid until the next set or clear. */
int32_t pool_req_edits(const pool_req_table *t, const pool_req_edit **edits, const int32_t **slots, int32_t *n_slots);
void pool_req_edits_clear(pool_req_table *t);

/* The device's copy, changed only by edits (double-buffered staging inside: at most two steps in flight).  Entries that no edit wrote are undefined. */
typedef struct pool_req_mirror pool_req_mirror;
ltd_status pool_req_mirror_create(kern_ctx *ctx, int32_t n_rows, int32_t row_cap, pool_req_mirror **out, ltd_err *err);
void pool_req_mirror_destroy(pool_req_mirror *m);
ltd_status pool_req_mirror_apply(pool_req_mirror *m, const kern_ctx *ctx, const pool_req_edit *edits, int32_t n_edits, const int32_t *slots);
const int32_t *pool_req_mirror_table(const pool_req_mirror *m, int64_t *stride); /* device pointer */

/* ---------------------------------------------------------------- token pools (token_pool.c, mla_pool.c, mha_pool.c) */
typedef enum pool_kind { POOL_MLA, POOL_MHA } pool_kind;
typedef enum pool_plane {
    POOL_LATENT, /* MLA: [slot][d_c], the normed latent */
    POOL_ROPE,   /* MLA: [slot][d_rope], the rotated shared key; one row of d_c + d_rope with the latent */
    POOL_K,      /* MHA: [slot][n_heads][d_nope + d_rope] */
    POOL_V,      /* MHA: [slot][n_heads][d_v] */
    POOL_N_PLANES
} pool_plane;

typedef struct pool_tokens_desc {
    pool_kind kind;
    kern_dtype dtype; /* f32 or bf16 */
    int32_t n_layers, n_slots;
    int32_t n_heads, d_c, d_rope, d_nope, d_v;
} pool_tokens_desc;

typedef struct pool_tokens pool_tokens;
size_t pool_tokens_slot_bytes(const pool_tokens_desc *d); /* one slot, all layers */
ltd_status pool_tokens_create(kern_backend *b, const pool_tokens_desc *d, pool_tokens **out, ltd_err *err); /* slots 0..n_slots; slot 0 zeroed */
void pool_tokens_destroy(pool_tokens *p);
const pool_tokens_desc *pool_tokens_get_desc(const pool_tokens *p);
/* The plane of one layer, rows = slots.  data NULL: this kind has no such plane. */
kern_tensor pool_tokens_plane(const pool_tokens *p, pool_plane plane, int32_t layer);

/* ---------------------------------------------------------------- sizing (sizing.c) */
typedef struct pool_sizing {
    size_t memory_total;     /* of the device */
    double fraction;         /* that we may use */
    size_t weights, workspaces, other; /* bytes taken by these */
    size_t slot_bytes;
    int64_t max_slots;       /* --max-total-tokens; 0 = what fits */
    int64_t useful_slots;    /* more would never be used (max running x context); 0 = no such bound */
} pool_sizing;
/* How many slots; LTD_NO_MEMORY with the sum spelt out when not even min_slots fit. */
ltd_status pool_size_slots(const pool_sizing *s, int64_t min_slots, int32_t *n_slots, ltd_err *err);
/* Appends the start-up table, a line per row, each ending in a newline. */
void pool_sizing_print(const pool_sizing *s, int32_t n_slots, ltd_buf *out);

#ifdef __cplusplus
}
#endif
#endif
