/* debug.c - looking at the tree: marks for the count of slots, every invariant, a picture.
 * Nothing here allocates but what ltd_buf needs for the picture. */
#include "radix/radix_private.h"

#include <string.h>

/* The next node in depth-first order below the root, 0 at the end. */
static int32_t walk_next(const radix *r, int32_t node)
{
    if (r->nodes[node].first_child) return r->nodes[node].first_child;
    while (node && !r->nodes[node].sib_next) node = r->nodes[node].parent;
    return node ? r->nodes[node].sib_next : 0;
}

void radix_mark_slots(const radix *r, uint8_t *set)
{
    for (int32_t i = walk_next(r, 0); i; i = walk_next(r, i))
        for (int32_t b = r->nodes[i].head; b; b = r->blocks[b].next)
            for (int32_t k = 0; k < r->blocks[b].n; k++) set[r->blocks[b].slot[k]]++;
}

static bool mark(const radix *r, int32_t i)
{
    uint64_t bit = (uint64_t)1 << (i & 63);
    if (r->marks[i >> 6] & bit) return false;
    r->marks[i >> 6] |= bit;
    return true;
}

static void marks_clear(const radix *r)
{
    memset(r->marks, 0, ((size_t)r->opt.n_slots / 64 + 1) * sizeof *r->marks);
}

#define BROKEN(...) return ltd_fail(err, LTD_CORRUPT, "radix: " __VA_ARGS__)

/* One node's blocks: links, fills, each slot once, the counts.  *n_blocks counts on. */
static ltd_status check_run(const radix *r, int32_t node, int32_t *n_blocks, ltd_err *err)
{
    const radix_node *c = &r->nodes[node];
    int32_t n = 0, prev = 0;
    for (int32_t b = c->head; b; b = r->blocks[b].next) {
        const radix_block *k = &r->blocks[b];
        if (b >= r->blocks_high || k->prev != prev || k->n < 1 || k->n > RADIX_BLOCK)
            BROKEN("block %d of node %d: prev %d, %d pairs", b, node, k->prev, k->n);
        for (int32_t i = 0; i < k->n; i++) {
            if (k->slot[i] < 1 || k->slot[i] > r->opt.n_slots)
                BROKEN("node %d holds slot %d", node, k->slot[i]);
            if (!mark(r, k->slot[i]))
                BROKEN("slot %d is in the tree twice, again in node %d", k->slot[i], node);
        }
        n += k->n;
        prev = b;
        if (++*n_blocks > r->blocks_high) BROKEN("node %d's blocks run in a circle", node);
    }
    if (n < 1 || n != c->n_tokens || prev != c->tail)
        BROKEN("node %d has %d tokens, says %d; tail %d, says %d", node, n, c->n_tokens, prev, c->tail);
    if (c->first_token != r->blocks[c->head].token[0]) BROKEN("node %d's first token differs", node);
    if (c->end != r->nodes[c->parent].end + n) BROKEN("node %d ends at %d", node, c->end);
    return LTD_OK;
}

/* Parents, siblings, borders, locks, the hash; then the sums. */
static ltd_status check_tree(const radix *r, ltd_err *err)
{
    ltd_status st;
    int32_t n_nodes = 0, n_tokens = 0, n_locked = 0, n_blocks = 0;
    marks_clear(r);
    for (int32_t i = walk_next(r, 0); i; i = walk_next(r, i)) {
        const radix_node *c = &r->nodes[i];
        if (++n_nodes >= r->nodes_high) BROKEN("the nodes run in a circle");
        if ((st = check_run(r, i, &n_blocks, err)) != LTD_OK) return st;
        int32_t prev = 0;
        int64_t locks = 0;
        for (int32_t k = c->first_child; k; k = r->nodes[k].sib_next) {
            if (r->nodes[k].parent != i || r->nodes[k].sib_prev != prev)
                BROKEN("child %d of node %d: bad links", k, i);
            locks += r->nodes[k].lock;
            prev = k;
        }
        if (c->lock < 0 || locks > c->lock)
            BROKEN("node %d: lock %d, its children's %ld", i, c->lock, (long)locks);
        if (c->border < 0 || (c->border && !r->opt.keep_borders))
            BROKEN("node %d has border %d", i, c->border);
        if (c->border && c->end - c->n_tokens < c->border)
            BROKEN("node %d begins at %d, before its border %d", i, c->end - c->n_tokens, c->border);
        if (radix__child(r, c->parent, c->first_token, c->border, r->salts[i].v) != i)
            BROKEN("node %d is not found by its key", i);
        n_tokens += c->n_tokens;
        if (c->lock) n_locked += c->n_tokens;
    }
    if (n_nodes != r->stats.n_nodes || n_tokens != r->stats.n_tokens || n_locked != r->stats.n_locked)
        BROKEN("%d nodes, %d tokens, %d locked; counted %d, %d, %d", r->stats.n_nodes, r->stats.n_tokens,
               r->stats.n_locked, n_nodes, n_tokens, n_locked);
    for (int32_t i = r->free_node; i && n_nodes < r->nodes_high; i = r->nodes[i].hash_next) n_nodes++;
    for (int32_t i = r->free_block; i && n_blocks < r->blocks_high; i = r->blocks[i].next) n_blocks++;
    if (n_nodes != r->nodes_high - 1 || n_blocks != r->blocks_high - 1)
        BROKEN("%d nodes of %d and %d blocks of %d are accounted for", n_nodes, r->nodes_high - 1, n_blocks,
               r->blocks_high - 1);
    return LTD_OK;
}

/* The list: every unlocked node, by age, behind all its children. */
static ltd_status check_lru(const radix *r, ltd_err *err)
{
    int32_t n = 0, prev = 0;
    int64_t used = INT64_MIN;
    marks_clear(r);
    for (int32_t i = r->nodes[0].lru_next; i; i = r->nodes[i].lru_next) {
        const radix_node *c = &r->nodes[i];
        if (i >= r->nodes_high || c->lru_prev != prev || c->lock || !mark(r, i))
            BROKEN("node %d in the list: bad links or locked", i);
        if (c->used_us < used) BROKEN("node %d stands behind younger ones", i);
        for (int32_t k = c->first_child; k; k = r->nodes[k].sib_next)
            if (!(r->marks[k >> 6] >> (k & 63) & 1)) BROKEN("node %d stands before its child %d", i, k);
        used = c->used_us;
        prev = i;
        n++;
    }
    if (r->nodes[0].lru_prev != prev) BROKEN("the list's end is %d", r->nodes[0].lru_prev);
    for (int32_t i = walk_next(r, 0); i; i = walk_next(r, i)) n -= r->nodes[i].lock == 0;
    if (n != 0) BROKEN("the list has %d nodes more than are unlocked", n);
    return LTD_OK;
}

ltd_status radix_check(const radix *r, ltd_err *err)
{
    ltd_status st = check_tree(r, err);
    return st == LTD_OK ? check_lru(r, err) : st;
}

void radix_dump(const radix *r, int32_t max_nodes, ltd_buf *out)
{
    ltd_buf_fmt(out, "radix: %d nodes, %d tokens (%d locked) of %d\n", r->stats.n_nodes, r->stats.n_tokens,
                r->stats.n_locked, r->opt.n_slots);
    int32_t shown = 0;
    for (int32_t i = walk_next(r, 0); i; i = walk_next(r, i)) {
        const radix_node *c = &r->nodes[i];
        if (shown++ == max_nodes) {
            ltd_buf_fmt(out, "  and %d more\n", r->stats.n_nodes - max_nodes);
            break;
        }
        int depth = 1;
        for (int32_t p = c->parent; p; p = r->nodes[p].parent) depth++;
        const radix_block *h = &r->blocks[c->head], *t = &r->blocks[c->tail];
        ltd_buf_fmt(out, "%*s#%d %d..%d", depth < 40 ? depth * 2 : 80, "", i, c->end - c->n_tokens, c->end);
        ltd_buf_str(out, " tokens");
        for (int32_t k = 0; k < h->n && k < 4; k++) ltd_buf_fmt(out, " %d", h->token[k]);
        ltd_buf_fmt(out, "%s slots %d%s%d", c->n_tokens > 4 ? " .." : "", h->slot[0],
                    c->n_tokens > 1 ? " .. " : ", ", t->slot[t->n - 1]);
        if (c->border) ltd_buf_fmt(out, " border %d", c->border);
        if (!c->parent && (r->salts[i].v[0] | r->salts[i].v[1])) ltd_buf_str(out, " salted");
        if (c->lock) ltd_buf_fmt(out, " locked %d", c->lock);
        ltd_buf_fmt(out, " age %.3f s\n", (double)(r->now_us - c->used_us) * 1e-6);
    }
}
