/* radix_private.h - how the tree lies in memory.
 *
 * A node is an edge with its lower end: a run of tokens, kept as a doubly linked list of blocks of up to 30
 * (token, slot) pairs.  A split copies at most one block; eviction pops from the last block.  Blocks make the
 * cost of a match independent of how slot numbers are scattered, which after hours of decoding side by side
 * they are. Nodes, blocks and hash buckets come from arrays sized by n_slots that are touched only as they
 * are used: every node and every block holds at least one token, so neither can run out before the slots do.
 *
 * Locks.  node.lock = how many paths end at the node or below it.  So lock >= the sum of the children's
 * locks, and an unlocked node has no locked descendant.  A split leaves the node's id to the lower part: a
 * path names its end, and stays right.
 *
 * LRU.  A use lasts until its unlock.  The list holds the unlocked nodes, all of them, oldest first; a lock
 * takes a node out, an unlock that brings it to 0 puts it at the new end, walking from the path's end up to
 * the root.  So each node stands behind all its descendants: when it was put there they were unlocked already
 * (see above) and stood in the list, or were put there earlier in the same walk; and a descendant that is
 * used later takes the node along.  Hence the head is always a leaf, and the least recently used one:
 * eviction needs neither a search nor a place for a parent that becomes a leaf.  A split puts the new upper
 * part directly behind the lower. */
#ifndef LTD_RADIX_PRIVATE_H
#define LTD_RADIX_PRIVATE_H

#include "radix/radix.h"

enum { RADIX_BLOCK = 30 }; /* 16 bytes of header + 30 x 8 = four cache lines */

typedef struct radix_block {
    int32_t n;          /* pairs in use, >= 1 while the block belongs to a node */
    int32_t next, prev; /* within the run; 0 = none.  next also links free blocks */
    int32_t unused;
    int32_t token[RADIX_BLOCK];
    int32_t slot[RADIX_BLOCK];
} radix_block;

typedef struct radix_node { /* one cache line; node 0 is the root, which has no tokens and no place in any
                               list */
    int32_t parent;
    int32_t first_child, sib_prev, sib_next;
    int32_t hash_next;   /* chain of a bucket; also links free nodes */
    int32_t first_token; /* token[0] of the head block, here to spare a cache miss */
    int32_t border;      /* of all its tokens */
    int32_t lock;
    int32_t lru_prev, lru_next; /* while lock == 0; the root's are the list's ends */
    int32_t head, tail;         /* blocks */
    int32_t n_tokens;           /* of this run, >= 1 */
    int32_t end;                /* tokens from the root to this run's end */
    int64_t used_us;            /* the latest use known */
} radix_node;
_Static_assert(sizeof(radix_node) == 64 && sizeof(radix_block) == 256, "one and four cache lines");

typedef struct radix_salt { /* kept beside the nodes: only children of the root have one */
    uint64_t v[2];
} radix_salt;

struct radix {
    radix_options opt;
    radix_node *nodes;   /* [n_slots + 1] */
    radix_salt *salts;   /* [n_slots + 1], valid for children of the root */
    radix_block *blocks; /* [n_slots + 1], 0 unused */
    int32_t *buckets;    /* [bucket_mask + 1], first node of the chain or 0 */
    uint64_t *marks;     /* [n_slots / 64 + 1], scratch of radix_check */
    uint32_t bucket_mask;
    int32_t free_node, nodes_high;   /* free list; how many were ever touched, 1 for the root */
    int32_t free_block, blocks_high; /* likewise; block 0 counts */
    int64_t now_us;                  /* the latest time seen */
    radix_stats stats;
#ifdef LTD_DEBUG
    uint8_t *in_tree; /* [n_slots + 1]: a slot inserted twice dies where it happens */
#endif
};

/* The child of node that begins with token under border, or 0; salt counts below the root only. */
int32_t radix__child(const radix *r, int32_t node, int32_t token, int32_t border, const uint64_t salt[2]);
/* Takes a leaf without tokens out of the tree and gives its node back. */
void radix__remove_leaf(radix *r, int32_t node);
void radix__block_give(radix *r, int32_t block);

#endif
