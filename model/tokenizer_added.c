/* tokenizer_added.c - finding added tokens in raw text.
 * A byte trie gives the longest one that begins at a place; the leftmost place wins.  Tokens that are not
 * `normalized` are looked for first, over the whole text, the others in what is left: two sets.  single_word
 * is checked after the longest is known, and what fails is passed over whole. */
#include <string.h>

#include "model/tokenizer_private.h"

static uint32_t new_node(tok__added_set *set, uint8_t byte, uint32_t sibling)
{
    if (set->n_nodes == set->cap_nodes) {
        set->cap_nodes = set->cap_nodes ? set->cap_nodes * 2 : 256;
        set->nodes = ltd_realloc(set->nodes, set->cap_nodes * sizeof *set->nodes);
    }
    set->nodes[set->n_nodes] = (tok__trie_node){-1, 0, sibling, byte};
    return set->n_nodes++;
}

void tok__added_set_init(tok__added_set *set)
{
    memset(set, 0, sizeof *set);
    new_node(set, 0, 0);
}

static uint32_t child_of(const tok__added_set *set, uint32_t node, uint8_t byte)
{
    if (node == 0) return set->first[byte];
    uint32_t c = set->nodes[node].child;
    while (c && set->nodes[c].byte != byte) c = set->nodes[c].sibling;
    return c;
}

bool tok__added_set_put(tok__added_set *set, const char *s, size_t n, int32_t added)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)s[i];
        uint32_t c = child_of(set, node, b);
        if (!c) {
            c = new_node(set, b, node ? set->nodes[node].child : 0);
            if (node)
                set->nodes[node].child = c;
            else
                set->first[b] = c;
        }
        node = c;
    }
    if (set->nodes[node].added >= 0) return false;
    set->nodes[node].added = added;
    return true;
}

/* Start of the character that ends at s[i). */
static size_t back_one(const char *s, size_t i)
{
    do i--;
    while (i > 0 && ((uint8_t)s[i] & 0xC0) == 0x80);
    return i;
}

static bool word_at(const tok *t, const char *s, size_t n)
{
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    LTD_CHECK(md, "out of memory");
    int rc = pcre2_match(t->word_re, (PCRE2_SPTR)s, n, 0, PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, md, NULL);
    pcre2_match_data_free(md);
    return rc >= 0;
}

static bool stands_alone(const tok *t, const char *s, size_t n, size_t start, size_t stop)
{
    uint32_t cp;
    size_t before = start ? back_one(s, start) : 0;
    if (start && word_at(t, s + before, start - before)) return false;
    return stop == n || !word_at(t, s + stop, tok__utf8_get(s + stop, &cp));
}

bool tok__added_next(const tok__work *w, const tok__added_set *set, const char *s, size_t n, size_t floor,
                     size_t *from, size_t *start, size_t *stop, int32_t *id)
{
    const tok *t = w->t;
    uint32_t cp;
    for (size_t i = *from; i < n; i++) {
        uint32_t node = set->first[(uint8_t)s[i]];
        int32_t best = -1;
        size_t end = i;
        for (size_t k = i + 1; node; node = k < n ? child_of(set, node, (uint8_t)s[k++]) : 0) {
            if (set->nodes[node].added >= 0) best = set->nodes[node].added, end = k;
        }
        if (best < 0) continue;
        const tok__added *a = &t->added[best];
        if (a->single_word && !stands_alone(t, s, n, i, end)) {
            i = end - 1;
            continue;
        }
        *from = *stop = end;
        *start = i;
        *id = a->id;
        while (a->lstrip && *start > floor) {
            size_t b = back_one(s, *start);
            tok__utf8_get(s + b, &cp);
            if (b < floor || !tok__is_space(cp)) break;
            *start = b;
        }
        while (a->rstrip && *stop < n) {
            size_t k = tok__utf8_get(s + *stop, &cp);
            if (!tok__is_space(cp)) break;
            *stop += k;
        }
        /* A token that is white space itself may lie in what the one before has swallowed.  As in the
         * reference it counts all the same, unless lstrip moves its start behind its end. */
        if (a->lstrip && *stop <= floor) {
            i = end - 1;
            continue;
        }
        return true;
    }
    return false;
}
