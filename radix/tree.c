/* tree.c - match, lock, insert, split.
 * Every walk goes down through the hash of (parent, first token, border, salt below the root) and compares
 * block by block; the work is proportional to the tokens looked at.  Invariants: radix_private.h; radix_check
 * verifies them. */
#include "radix/radix_private.h"

#include <string.h>

/* ---------------------------------------------------------------- storage */

ltd_status radix_create(const radix_options *o, radix **out)
{
    if (o->n_slots < 1 || o->n_slots == INT32_MAX) return LTD_INVALID;
    radix *r = ltd_calloc(1, sizeof *r);
    size_t n = (size_t)o->n_slots + 1;
    r->opt = *o;
    /* Not zeroed, so not touched: pages arrive as nodes and blocks are first taken. */
    r->nodes = ltd_alloc_aligned(64, n * sizeof *r->nodes);
    r->salts = ltd_alloc_aligned(64, n * sizeof *r->salts);
    r->blocks = ltd_alloc_aligned(64, n * sizeof *r->blocks);
    /* Nodes are far fewer than slots but in the worst case; then chains are four long. */
    uint32_t n_buckets = 64;
    while (n_buckets < n / 4) n_buckets *= 2;
    r->bucket_mask = n_buckets - 1;
    r->buckets = ltd_calloc(n_buckets, sizeof *r->buckets);
    r->marks = ltd_calloc(n / 64 + 1, sizeof *r->marks);
#ifdef LTD_DEBUG
    r->in_tree = ltd_calloc(n, 1);
#endif
    memset(&r->nodes[0], 0, sizeof r->nodes[0]);
    r->nodes_high = 1;
    r->blocks_high = 1;
    *out = r;
    return LTD_OK;
}

void radix_destroy(radix *r)
{
    if (!r) return;
    ltd_free(r->nodes);
    ltd_free(r->salts);
    ltd_free(r->blocks);
    ltd_free(r->buckets);
    ltd_free(r->marks);
#ifdef LTD_DEBUG
    ltd_free(r->in_tree);
#endif
    ltd_free(r);
}

static int32_t node_take(radix *r)
{
    int32_t i = r->free_node;
    if (i) {
        r->free_node = r->nodes[i].hash_next;
    } else {
        LTD_CHECK(r->nodes_high <= r->opt.n_slots, "radix: %d nodes for %d slots", r->nodes_high,
                  r->opt.n_slots);
        i = r->nodes_high++;
    }
    memset(&r->nodes[i], 0, sizeof r->nodes[i]);
    r->stats.n_nodes++;
    return i;
}

static int32_t block_take(radix *r)
{
    int32_t i = r->free_block;
    if (i) {
        r->free_block = r->blocks[i].next;
    } else {
        LTD_CHECK(r->blocks_high <= r->opt.n_slots, "radix: %d blocks for %d slots", r->blocks_high,
                  r->opt.n_slots);
        i = r->blocks_high++;
    }
    radix_block *b = &r->blocks[i];
    b->n = b->next = b->prev = b->unused = 0;
    return i;
}

void radix__block_give(radix *r, int32_t block)
{
    r->blocks[block].n = 0;
    r->blocks[block].next = r->free_block;
    r->free_block = block;
}

/* ---------------------------------------------------------------- children: a hash table, and lists for
 * walks */

static uint32_t bucket_of(const radix *r, int32_t parent, int32_t token, int32_t border,
                          const uint64_t salt[2])
{
    uint64_t h = ((uint64_t)(uint32_t)parent << 32 | (uint32_t)token) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    h += (uint64_t)(uint32_t)border * 0xd6e8feb86659fd93u;
    if (!parent) h += salt[0] * 0xbf58476d1ce4e5b9u + salt[1];
    h ^= h >> 32;
    h *= 0x94d049bb133111ebu;
    return (uint32_t)(h >> 32) & r->bucket_mask;
}

int32_t radix__child(const radix *r, int32_t node, int32_t token, int32_t border, const uint64_t salt[2])
{
    for (int32_t i = r->buckets[bucket_of(r, node, token, border, salt)]; i; i = r->nodes[i].hash_next) {
        const radix_node *c = &r->nodes[i];
        if (c->parent != node || c->first_token != token || c->border != border) continue;
        if (!node && (r->salts[i].v[0] != salt[0] || r->salts[i].v[1] != salt[1])) continue;
        return i;
    }
    return 0;
}

/* Finds the link that points at the node in its bucket's chain. */
static int32_t *hash_link(radix *r, int32_t node)
{
    const radix_node *c = &r->nodes[node];
    int32_t *at = &r->buckets[bucket_of(r, c->parent, c->first_token, c->border, r->salts[node].v)];
    while (*at != node) {
        LTD_CHECK(*at, "radix: node %d is not in the hash", node);
        at = &r->nodes[*at].hash_next;
    }
    return at;
}

/* node.parent, first_token, border and salt are set. */
static void hash_add(radix *r, int32_t node)
{
    radix_node *c = &r->nodes[node];
    int32_t *at = &r->buckets[bucket_of(r, c->parent, c->first_token, c->border, r->salts[node].v)];
    c->hash_next = *at;
    *at = node;
}

static void child_add(radix *r, int32_t node)
{
    radix_node *c = &r->nodes[node], *p = &r->nodes[c->parent];
    c->sib_prev = 0;
    c->sib_next = p->first_child;
    if (p->first_child) r->nodes[p->first_child].sib_prev = node;
    p->first_child = node;
}

/* ---------------------------------------------------------------- the LRU list, a ring through the root */

static void lru_add_before(radix *r, int32_t at, int32_t node)
{
    radix_node *c = &r->nodes[node];
    c->lru_next = at;
    c->lru_prev = r->nodes[at].lru_prev;
    r->nodes[c->lru_prev].lru_next = node;
    r->nodes[at].lru_prev = node;
}

static void lru_remove(radix *r, int32_t node)
{
    radix_node *c = &r->nodes[node];
    r->nodes[c->lru_prev].lru_next = c->lru_next;
    r->nodes[c->lru_next].lru_prev = c->lru_prev;
}

/* One more path over this node (its ancestors are the caller's to see to). */
static void node_lock(radix *r, int32_t node)
{
    radix_node *c = &r->nodes[node];
    if (c->lock++ == 0) {
        lru_remove(r, node);
        r->stats.n_locked += c->n_tokens;
    }
    c->used_us = r->now_us;
}

void radix_unlock(radix *r, radix_path *path)
{
    int32_t i = path->node;
    if (i) {
        LTD_CHECK(i < r->nodes_high && r->nodes[i].lock > 0 && r->nodes[i].end == path->n_tokens,
                  "radix: unlock of node %d, %d tokens", i, path->n_tokens);
    }
    for (; i; i = r->nodes[i].parent) {
        radix_node *c = &r->nodes[i];
        if (--c->lock == 0) {
            r->stats.n_locked -= c->n_tokens;
            c->used_us = r->now_us;
            lru_add_before(r, 0, i);
        }
    }
    *path = (radix_path){0, 0};
}

void radix__remove_leaf(radix *r, int32_t node)
{
    radix_node *c = &r->nodes[node];
    LTD_CHECK(!c->first_child && !c->lock && !c->n_tokens, "radix: node %d is in use", node);
    *hash_link(r, node) = c->hash_next;
    if (c->sib_prev)
        r->nodes[c->sib_prev].sib_next = c->sib_next;
    else
        r->nodes[c->parent].first_child = c->sib_next;
    if (c->sib_next) r->nodes[c->sib_next].sib_prev = c->sib_prev;
    lru_remove(r, node);
    c->hash_next = r->free_node;
    r->free_node = node;
    r->stats.n_nodes--;
}

/* ---------------------------------------------------------------- walking */

/* Where position i's border changes next, and what it is there. */
static int32_t border_at(const radix *r, const radix_key *key, int32_t i)
{
    return r->opt.keep_borders && i >= key->n_prompt ? key->n_prompt : 0;
}

static int32_t border_end(const radix *r, const radix_key *key, int32_t i)
{
    return r->opt.keep_borders && i < key->n_prompt && key->n_prompt < key->n_tokens ? key->n_prompt
                                                                                     : key->n_tokens;
}

/* How many of the node's tokens equal tokens[0..n).  slots, unless NULL, receives theirs. */
static int32_t run_match(const radix *r, const radix_node *c, const int32_t *tokens, int32_t n,
                         int32_t *slots)
{
    int32_t done = 0;
    for (int32_t i = c->head; i && done < n;) {
        const radix_block *b = &r->blocks[i];
        i = b->next;
        if (i) {
            const char *ahead = (const char *)&r->blocks[i];
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + 64);
            if (slots) {
                __builtin_prefetch(ahead + 128);
                __builtin_prefetch(ahead + 192);
            }
        }
        int32_t want = b->n < n - done ? b->n : n - done, same = want;
        if (memcmp(b->token, tokens + done, (size_t)want * sizeof *tokens) != 0) {
            for (same = 0; b->token[same] == tokens[done + same];) same++;
        }
        if (slots) memcpy(slots + done, b->slot, (size_t)same * sizeof *slots);
        done += same;
        if (same < b->n) break;
    }
    return done;
}

int32_t radix_peek(const radix *r, const radix_key *key)
{
    int32_t i = 0, node = 0;
    while (i < key->n_tokens) {
        int32_t end = border_end(r, key, i);
        node = radix__child(r, node, key->tokens[i], border_at(r, key, i), key->salt);
        if (!node) break;
        const radix_node *c = &r->nodes[node];
        int32_t same = run_match(r, c, key->tokens + i, end - i, NULL);
        i += same;
        if (same < c->n_tokens) break;
    }
    return i;
}

/* Cuts node's run behind its first k tokens (0 < k < n_tokens).
 *
 *     parent                parent
 *       | A B C D             | A B        the new node; returned
 *      node         -->      upper
 *                             | C D        keeps its id, children, place in the list
 *                            node
 *
 * Walks k tokens' blocks, which the caller has just compared; copies at most one. */
static int32_t node_split(radix *r, int32_t node, int32_t k)
{
    int32_t upper = node_take(r);
    radix_node *c = &r->nodes[node], *u = &r->nodes[upper];
    LTD_CHECK(k > 0 && k < c->n_tokens, "radix: split of %d tokens at %d", c->n_tokens, k);
    int32_t *link = hash_link(r, node);

    /* the blocks */
    int32_t at = c->head, left = k;
    while (left > r->blocks[at].n) {
        left -= r->blocks[at].n;
        at = r->blocks[at].next;
    }
    radix_block *b = &r->blocks[at];
    int32_t low = b->next; /* the lower part's first block */
    if (left < b->n) {
        low = block_take(r);
        radix_block *l = &r->blocks[low];
        l->n = b->n - left;
        memcpy(l->token, b->token + left, (size_t)l->n * sizeof *l->token);
        memcpy(l->slot, b->slot + left, (size_t)l->n * sizeof *l->slot);
        l->next = b->next;
        if (l->next)
            r->blocks[l->next].prev = low;
        else
            c->tail = low;
        b->n = left;
    }
    b->next = 0;
    r->blocks[low].prev = 0;
    u->head = c->head;
    u->tail = at;
    c->head = low;

    /* the counts */
    u->n_tokens = k;
    c->n_tokens -= k;
    u->end = c->end - c->n_tokens;
    u->border = c->border;
    u->lock = c->lock;
    u->used_us = c->used_us;

    /* upper in node's place, node below it */
    u->parent = c->parent;
    u->first_token = c->first_token;
    if (!u->parent) r->salts[upper] = r->salts[node];
    u->hash_next = c->hash_next;
    *link = upper;
    u->sib_prev = c->sib_prev;
    u->sib_next = c->sib_next;
    if (u->sib_prev)
        r->nodes[u->sib_prev].sib_next = upper;
    else
        r->nodes[u->parent].first_child = upper;
    if (u->sib_next) r->nodes[u->sib_next].sib_prev = upper;
    u->first_child = node;
    c->parent = upper;
    c->sib_prev = c->sib_next = 0;
    c->first_token = r->blocks[low].token[0];
    hash_add(r, node);
    if (!c->lock) lru_add_before(r, c->lru_next, upper);
    r->stats.splits++;
    return upper;
}

static void touch_clock(radix *r, int64_t now_us)
{
    if (now_us > r->now_us) r->now_us = now_us;
}

radix_path radix_lock(radix *r, const radix_key *key, int32_t max_tokens, int64_t now_us, int32_t *slots)
{
    radix_path path = {0, 0};
    radix_key k = *key;
    if (max_tokens < k.n_tokens) k.n_tokens = max_tokens;
    touch_clock(r, now_us);
    int32_t i = 0;
    while (i < k.n_tokens) {
        int32_t end = border_end(r, &k, i);
        int32_t node = radix__child(r, path.node, k.tokens[i], border_at(r, &k, i), k.salt);
        if (!node) break;
        int32_t have = r->nodes[node].n_tokens;
        int32_t same = run_match(r, &r->nodes[node], k.tokens + i, end - i, slots + i);
        i += same;
        if (same < have) node = node_split(r, node, same);
        node_lock(r, node);
        path = (radix_path){node, i};
        if (same < have) break;
    }
    return path;
}

/* ---------------------------------------------------------------- insert */

/* Appends tokens and slots to the node's run; counts are the caller's. */
static void run_append(radix *r, radix_node *c, const int32_t *tokens, const int32_t *slots, int32_t n)
{
    while (n > 0) {
        if (!c->tail || r->blocks[c->tail].n == RADIX_BLOCK) {
            int32_t fresh = block_take(r);
            r->blocks[fresh].prev = c->tail;
            if (c->tail)
                r->blocks[c->tail].next = fresh;
            else
                c->head = fresh;
            c->tail = fresh;
        }
        radix_block *b = &r->blocks[c->tail];
        int32_t room = RADIX_BLOCK - b->n, m = n < room ? n : room;
        memcpy(b->token + b->n, tokens, (size_t)m * sizeof *tokens);
        memcpy(b->slot + b->n, slots, (size_t)m * sizeof *slots);
        b->n += m;
        tokens += m;
        slots += m;
        n -= m;
    }
}

/* tokens[at .. end), all of one border, become the tree's: as the run of a new leaf below node, or at node's
 * own end where nobody else could tell (a leaf that only the caller locks; chunks of one prefill so stay one
 * run).  Returns the end, locked. */
static int32_t insert_rest(radix *r, const radix_key *key, int32_t node, int32_t at, int32_t end,
                           const int32_t *slots)
{
    int32_t n = end - at, border = border_at(r, key, at);
    LTD_CHECK(n <= r->opt.n_slots - r->stats.n_tokens, "radix: %d + %d tokens for %d slots",
              r->stats.n_tokens, n, r->opt.n_slots);
#ifdef LTD_DEBUG
    for (int32_t i = at; i < end; i++) {
        LTD_CHECK(slots[i] > 0 && slots[i] <= r->opt.n_slots && !r->in_tree[slots[i]],
                  "radix: slot %d inserted at %d is in the tree already or out of range", slots[i], i);
        r->in_tree[slots[i]] = 1;
    }
#endif
    radix_node *c = &r->nodes[node];
    if (!node || c->first_child || c->lock != 1 || c->border != border) {
        int32_t leaf = node_take(r);
        c = &r->nodes[leaf];
        c->parent = node;
        c->first_token = key->tokens[at];
        c->border = border;
        c->lock = 1;
        c->end = at;
        if (!node) memcpy(r->salts[leaf].v, key->salt, sizeof key->salt);
        hash_add(r, leaf);
        child_add(r, leaf);
        node = leaf;
    }
    run_append(r, c, key->tokens + at, slots + at, n);
    c->n_tokens += n;
    c->end += n;
    c->used_us = r->now_us;
    r->stats.n_tokens += n;
    r->stats.n_locked += n;
    return node;
}

/*   position    0        path->n_tokens          found                n_tokens
 *   slots       | the tree's    | the caller's     | the caller's        |
 *   afterwards  | the same      | to dup; rewritten| the tree's          |
 *                                 to the tree's
 * The lock on root..path->node stays and is carried down to the new end. */
void radix_insert(radix *r, const radix_key *key, int64_t now_us, radix_path *path, int32_t *slots,
                  int32_t *dup, int32_t *n_dup)
{
    int32_t i = path->n_tokens, node = path->node, n = 0;
    LTD_CHECK(i <= key->n_tokens && r->nodes[node].end == i && (!node || r->nodes[node].lock > 0),
              "radix: insert of %d tokens at path {%d, %d}", key->n_tokens, node, i);
    touch_clock(r, now_us);
    while (i < key->n_tokens) {
        int32_t end = border_end(r, key, i);
        int32_t child = radix__child(r, node, key->tokens[i], border_at(r, key, i), key->salt);
        if (!child) {
            node = insert_rest(r, key, node, i, end, slots);
            i = end;
            continue;
        }
        /* The caller's slots go out before the tree's come in; of `most` copied the first `same` count. */
        int32_t have = r->nodes[child].n_tokens, most = have < end - i ? have : end - i;
        memcpy(dup + n, slots + i, (size_t)most * sizeof *dup);
        int32_t same = run_match(r, &r->nodes[child], key->tokens + i, most, slots + i);
        n += same;
        i += same;
        if (same < have) child = node_split(r, child, same);
        node_lock(r, child);
        node = child;
    }
    *path = (radix_path){node, i};
    *n_dup = n;
}
