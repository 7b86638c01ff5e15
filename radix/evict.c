/* evict.c - giving slots up, and the counts.
 * The list's head is the least recently used unlocked leaf (radix_private.h says why): no search, no heap. */
#include "radix/radix_private.h"

int32_t radix_evict(radix *r, int32_t n, radix_evict_fn *fn, void *user)
{
    int32_t done = 0;
    while (done < n) {
        int32_t node = r->nodes[0].lru_next;
        if (!node) break;
        radix_node *c = &r->nodes[node];
        LTD_CHECK(!c->first_child && !c->lock, "radix: node %d leads the list and is no unlocked leaf", node);
        while (c->n_tokens && done < n) {
            radix_block *b = &r->blocks[c->tail];
            int32_t m = b->n < n - done ? b->n : n - done;
            b->n -= m;
            c->n_tokens -= m;
            c->end -= m;
            r->stats.n_tokens -= m;
            r->stats.evicted += m;
            done += m;
#ifdef LTD_DEBUG
            for (int32_t i = 0; i < m; i++) r->in_tree[b->slot[b->n + i]] = 0;
#endif
            fn(user, b->slot + b->n, m);
            if (b->n) break;
            int32_t empty = c->tail;
            c->tail = b->prev;
            if (c->tail) r->blocks[c->tail].next = 0;
            radix__block_give(r, empty);
        }
        if (!c->n_tokens) radix__remove_leaf(r, node);
    }
    return done;
}

radix_stats radix_get_stats(const radix *r) { return r->stats; }
