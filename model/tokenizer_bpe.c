/* tokenizer_bpe.c - one piece of text to ids by the merges.
 * Always the lowest rank first, leftmost on equal ranks.  Most pieces are a vocabulary entry that their own
 * bytes encode to, found whole; short ones are scanned for the lowest pair again and again; long ones are a
 * linked list with a heap of (rank, position), so that one word of a megabyte takes n log n. */
#include <string.h>

#include "model/tokenizer_private.h"

enum { SHORT = 40 }; /* symbols up to which scanning beats the heap */

ltd_status tok__grow(void **p, size_t *cap, size_t need, size_t elt)
{
    if (need <= *cap) return LTD_OK;
    size_t want = *cap + *cap / 2;
    if (want < need) want = need;
    if (want < 64) want = 64;
    if (want > SIZE_MAX / elt) return LTD_NO_MEMORY;
    void *fresh = ltd_try_alloc(want * elt);
    if (!fresh) return LTD_NO_MEMORY;
    if (*cap) memcpy(fresh, *p, *cap * elt);
    ltd_free(*p);
    *p = fresh;
    *cap = want;
    return LTD_OK;
}

ltd_status tok__emit(tok__work *w, int32_t id)
{
    if (w->max_ids > 0 && w->n_ids >= w->max_ids) {
        w->n_ids++;
        return ltd_fail(w->err, LTD_TOO_LARGE, "the text has more than %lld tokens", (long long)w->max_ids);
    }
    if ((size_t)w->n_ids == w->cap_ids &&
        tok__grow((void **)&w->ids, &w->cap_ids, (size_t)w->n_ids + 1, sizeof *w->ids) != LTD_OK)
        return ltd_fail(w->err, LTD_NO_MEMORY, "no memory for the tokens of the text");
    w->ids[w->n_ids++] = id;
    return LTD_OK;
}

/* The merge of a pair, or NULL.  Under no_control a merge may not make an added token: its spelling is
 * ordinary text then. */
static const tok__merge *merge_of(const tok__work *w, int32_t left, int32_t right)
{
    const tok *t = w->t;
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint64_t i = tok__merge_slot(pair, t->merges_mask);; i = (i + 1) & t->merges_mask) {
        const tok__merge *m = &t->merges[i];
        if (m->rank < 0) return NULL;
        if (m->pair != pair) continue;
        return w->no_control && (t->entries[m->id].flags & TOK__ADDED) ? NULL : m;
    }
}

static ltd_status lacks_byte(tok__work *w, const char *s, size_t i)
{
    return ltd_fail(w->err, LTD_INVALID,
                    "the text holds the byte 0x%02X, for which the vocabulary has no token", (uint8_t)s[i]);
}

/* n is 2 to SHORT: symbols and the ranks of their pairs in two small arrays. */
static ltd_status bpe_short(tok__work *w, const char *s, size_t n)
{
    int32_t id[SHORT], rank[SHORT], merged[SHORT];
    ltd_status st;
    for (size_t i = 0; i < n; i++)
        if ((id[i] = w->t->byte_ids[(uint8_t)s[i]]) < 0) return lacks_byte(w, s, i);
    for (size_t i = 0; i + 1 < n; i++) {
        const tok__merge *m = merge_of(w, id[i], id[i + 1]);
        rank[i] = m ? m->rank : INT32_MAX;
        merged[i] = m ? m->id : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == INT32_MAX) break;
        id[best] = merged[best];
        n--;
        for (size_t i = best + 1; i < n; i++)
            id[i] = id[i + 1], rank[i - 1] = rank[i], merged[i - 1] = merged[i];
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n;
             i++) { /* the pairs on both sides of the new symbol */
            const tok__merge *m = merge_of(w, id[i], id[i + 1]);
            rank[i] = m ? m->rank : INT32_MAX;
            merged[i] = m ? m->id : -1;
        }
    }
    for (size_t i = 0; i < n; i++)
        if ((st = tok__emit(w, id[i])) != LTD_OK) return st;
    return LTD_OK;
}

/* ------------------------------------------------------------------ the heap: smallest (rank << 32 |
 * position) first */

static void sift_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t v = h[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1] < h[c]) c++;
        if (h[c] >= v) break;
        h[i] = h[c];
    }
    h[i] = v;
}

static void push(uint64_t *h, size_t *n, uint64_t v)
{
    size_t i = (*n)++;
    for (size_t parent; i && h[parent = (i - 1) / 2] > v; i = parent) h[i] = h[parent];
    h[i] = v;
}

/* Looks up the pair at symbol i and, where it merges, pushes it. */
static void pair_up(tok__work *w, tok__symbol *y, int32_t i, size_t *n_heap)
{
    const tok__merge *m = y[i].next < 0 ? NULL : merge_of(w, y[i].id, y[y[i].next].id);
    y[i].rank = m ? m->rank : -1;
    y[i].merged = m ? m->id : -1;
    if (m) push(w->heap, n_heap, (uint64_t)(uint32_t)m->rank << 32 | (uint32_t)i);
}

/* Each merge takes one heap entry and adds at most two, and there are at most n - 1: the heap never holds
 * more than 2n. */
static ltd_status bpe_long(tok__work *w, const char *s, size_t n)
{
    if (n > INT32_MAX / 4) return ltd_fail(w->err, LTD_TOO_LARGE, "the text holds a word of %zu bytes", n);
    if (tok__grow((void **)&w->symbols, &w->cap_symbols, n, sizeof *w->symbols) != LTD_OK ||
        tok__grow((void **)&w->heap, &w->cap_heap, 2 * n, sizeof *w->heap) != LTD_OK)
        return ltd_fail(w->err, LTD_NO_MEMORY, "no memory for a word of %zu bytes", n);
    tok__symbol *y = w->symbols;
    uint64_t *heap = w->heap;
    size_t n_heap = 0;
    ltd_status st;
    for (size_t i = 0; i < n; i++) {
        y[i] = (tok__symbol){w->t->byte_ids[(uint8_t)s[i]], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1,
                             -1, -1};
        if (y[i].id < 0) return lacks_byte(w, s, i);
    }
    for (size_t i = 0; i + 1 < n; i++) {
        const tok__merge *m = merge_of(w, y[i].id, y[i + 1].id);
        if (!m) continue;
        y[i].rank = m->rank;
        y[i].merged = m->id;
        heap[n_heap++] = (uint64_t)(uint32_t)m->rank << 32 | i;
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(heap, n_heap, i);
    while (n_heap) {
        int32_t i = (int32_t)(uint32_t)heap[0], rank = (int32_t)(heap[0] >> 32);
        heap[0] = heap[--n_heap];
        if (n_heap) sift_down(heap, n_heap, 0);
        if (y[i].rank != rank) continue; /* the pair is gone: its left or its right was merged away */
        int32_t right = y[i].next;
        y[i].id = y[i].merged;
        y[i].next = y[right].next;
        if (y[right].next >= 0) y[y[right].next].prev = i;
        y[right].rank = -1;
        pair_up(w, y, i, &n_heap);
        if (y[i].prev >= 0) pair_up(w, y, y[i].prev, &n_heap);
    }
    for (int32_t i = 0; i >= 0; i = y[i].next)
        if ((st = tok__emit(w, y[i].id)) != LTD_OK) return st;
    return LTD_OK;
}

ltd_status tok__bpe(tok__work *w, const char *s, size_t n, bool use_words)
{
    const tok *t = w->t;
    if (n == 0) return LTD_OK;
    if (use_words && n <= t->max_bytes) {
        int32_t id = tok__map_get(&t->words, t->entries, s, n);
        if (id >= 0 && !(w->no_control && (t->entries[id].flags & TOK__ADDED))) return tok__emit(w, id);
    }
    if (n == 1) {
        int32_t id = t->byte_ids[(uint8_t)s[0]];
        return id < 0 ? lacks_byte(w, s, 0) : tok__emit(w, id);
    }
    return n <= SHORT ? bpe_short(w, s, n) : bpe_long(w, s, n);
}
