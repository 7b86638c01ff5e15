/* radix.h - the prefix tree: token ids to slot indices.
 * Edges hold runs of tokens with the slot of each.  Knows nothing of requests, pools, threads or clocks: time comes in as now_us,
 * evicted slots go out through a callback.  A node says where its values are (later tiers: host, disk).
 * Threads: one at a time (the engine's).  Nothing allocates after radix_create: storage is sized by the number of slots.
 *
 *            root                     key  A B C D   values 5 6 7 8
 *             | A B  (5 6)            key  A B X     values 5 6 9
 *            / \                      A lock on a node covers it and all its ancestors.
 *     C D (7 8) X (9)
 */
#ifndef LTD_RADIX_H
#define LTD_RADIX_H

#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct radix radix; /* opaque */

typedef struct radix_options {
    int32_t n_slots;       /* slot indices run 1..n_slots; also the most tokens that the tree can hold */
    bool keep_borders;     /* --reuse-generated off: keys carry the border (numerics.md, rule 5) */
} radix_options;

ltd_status radix_create(const radix_options *o, radix **out);
void radix_destroy(radix *r);

/* What is looked up.  Where borders are kept, position i has border 0 below n_prompt and border n_prompt from there on (rows that
 * were generated after a prompt of that length); a run matches only with equal borders.  Else n_prompt is ignored.
 * Trees of different salts share nothing.  All zero = no salt. */
typedef struct radix_key {
    const int32_t *tokens; /* borrowed for the call */
    int32_t n_tokens;
    int32_t n_prompt;
    uint64_t salt[2];
} radix_key;

/* A lock on the path root..node, covering exactly n_tokens tokens.  A value; held by one sequence; moved by radix_insert,
 * ended by radix_unlock.  {0, 0} locks nothing and is valid everywhere. */
typedef struct radix_path {
    int32_t node;     /* 0 = none (the root) */
    int32_t n_tokens;
} radix_path;

/* Length of the longest cached prefix.  Reads only: no split, no lock, no touch. */
int32_t radix_peek(const radix *r, const radix_key *key);

/* Matches at most max_tokens tokens, splits where the match ends inside a run, locks the path and touches it.
 * slots (room for max_tokens) receives the tree's slot of each matched token.  A miss gives {0, 0}. */
radix_path radix_lock(radix *r, const radix_key *key, int32_t max_tokens, int64_t now_us, int32_t *slots);

/* Puts key->tokens[0..n_tokens) into the tree.  path (in, out): the caller's lock; its slots[0..path->n_tokens) are the tree's.
 * slots (in, out)[n_tokens]: from path->n_tokens on the caller's own; where the tree already has a token, its entry is rewritten to the tree's slot and the caller's duplicate is appended to
 * dup (room for n_tokens - path->n_tokens); all others now belong to the tree.  *n_dup: how many.  path moves to the end, locked.
 * A private slot may stand at most once, in one call. */
void radix_insert(radix *r, const radix_key *key, int64_t now_us, radix_path *path, int32_t *slots, int32_t *dup, int32_t *n_dup);

/* Ends a lock; *path becomes {0, 0}.  Idempotent through that. */
void radix_unlock(radix *r, radix_path *path);

typedef void radix_evict_fn(void *user, const int32_t *slots, int32_t n);
/* Gives up at least n tokens' slots if so many are unlocked, least recently used leaves first, from a leaf's end (no more than n
 * tokens are taken, where the last leaf is longer).  Calls fn with runs of slots, which are no longer the tree's.  Returns how many.
 * A use lasts until its unlock: what was unlocked first goes first.  fn must not call back into the tree.
 * Time: proportional to n and the nodes freed; no scan. */
int32_t radix_evict(radix *r, int32_t n, radix_evict_fn *fn, void *user);

typedef struct radix_stats {
    int32_t n_tokens;    /* in the tree */
    int32_t n_locked;    /* tokens under a lock; evictable = n_tokens - n_locked */
    int32_t n_nodes;     /* root not counted */
    int64_t evicted;     /* tokens, ever */
    int64_t splits;
} radix_stats;
radix_stats radix_get_stats(const radix *r);

/* Marks in set[slot] += 1 for every slot of the tree (set has n_slots + 1 entries): for the count free + private + tree. */
void radix_mark_slots(const radix *r, uint8_t *set);
/* Verifies every invariant (links, counts, locks, LRU list, each slot once); LTD_CORRUPT with what is broken.  Slow. */
ltd_status radix_check(const radix *r, ltd_err *err);
/* Appends a readable picture of the tree, at most max_nodes nodes. */
void radix_dump(const radix *r, int32_t max_nodes, ltd_buf *out);

#ifdef __cplusplus
}
#endif
#endif
