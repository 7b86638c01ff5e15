/* tokenizer_pretok.c - cutting text into the pieces that merges stay within.
 * The steps run one after the other, each over every piece of the one before, and each piece is a subject of
 * its own: look-ahead and $ see its end as the end of the text.  What a step's pattern matches and what lies
 * between become pieces, or as its behavior says. */
#include <string.h>

#include "model/tokenizer_private.h"

static ltd_status push_piece(tok__work *w, tok__pieces *p, size_t off, size_t len)
{
    if (p->n == p->cap && tok__grow((void **)&p->v, &p->cap, p->n + 1, sizeof *p->v) != LTD_OK)
        return ltd_fail(w->err, LTD_NO_MEMORY, "no memory for the pieces of the text");
    p->v[p->n++] = (tok__piece){(uint32_t)off, (uint32_t)len};
    return LTD_OK;
}

static ltd_status add_piece(tok__work *w, tok__pieces *p, size_t off, size_t len)
{
    return len ? push_piece(w, p, off, len) : LTD_OK;
}

/* The next match in s[from..n): LTD_OK with its bounds, LTD_NOT_FOUND, or an error. */
static ltd_status next_match(tok__work *w, const tok__step *st, const char *s, size_t n, size_t from,
                             size_t *start, size_t *end)
{
    if (!st->re) {
        const char *at = from < n ? memmem(s + from, n - from, st->literal, st->n_literal) : NULL;
        if (!at) return LTD_NOT_FOUND;
        *start = (size_t)(at - s);
        *end = *start + st->n_literal;
        return LTD_OK;
    }
    int rc = pcre2_match(st->re, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, w->md, w->mc);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter's frames are on the heap, within its limit */
        rc = pcre2_match(st->re, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->md, w->mc);
    if (rc == PCRE2_ERROR_NOMATCH) return LTD_NOT_FOUND;
    if (rc < 0) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(rc, text, sizeof text);
        return ltd_fail(w->err, rc == PCRE2_ERROR_NOMEMORY ? LTD_NO_MEMORY : LTD_INVALID,
                        "the tokenizer's pattern gave up on a stretch of %zu bytes: %s", n, (char *)text);
    }
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(w->md);
    *start = ov[0];
    *end = ov[1];
    return LTD_OK;
}

/* A match cannot begin where none of its first bytes is: saves the call for the many short pieces. */
static bool may_match(const tok__step *s, const char *p, size_t n)
{
    if (!s->has_first) return true;
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)p[i];
        if (s->first[b >> 3] >> (b & 7) & 1) return true;
    }
    return false;
}

enum { GAP, MATCH };
typedef ltd_status segment_fn(tok__work *w, tok__pieces *out, size_t off, size_t len, int kind);

/* Calls f for the matches and the gaps of one piece in order.  An empty match right behind another is passed
 * over, as Oniguruma's callers do; an empty match elsewhere is a cut. */
static ltd_status segments(tok__work *w, const tok__step *s, const char *p, size_t off, size_t n,
                           tok__pieces *out, segment_fn *f)
{
    size_t from = 0, done = 0, start = 0, end = 0;
    bool matched = false; /* a match ended at `done` */
    ltd_status st = LTD_OK;
    uint32_t cp;
    if (!may_match(s, p, n)) return f(w, out, off, n, GAP);
    while (from <= n && (st = next_match(w, s, p, n, from, &start, &end)) == LTD_OK) {
        if (start == end && matched && end == done) {
            from += from < n ? tok__utf8_get(p + from, &cp) : 1;
            continue;
        }
        if (start > done && (st = f(w, out, off + done, start - done, GAP)) != LTD_OK) return st;
        if ((st = f(w, out, off + start, end - start, MATCH)) != LTD_OK) return st;
        from = done = end;
        matched = true;
    }
    if (st != LTD_OK && st != LTD_NOT_FOUND) return st;
    return done < n ? f(w, out, off + done, n - done, GAP) : LTD_OK;
}

static ltd_status isolate(tok__work *w, tok__pieces *out, size_t off, size_t len, int kind)
{
    (void)kind;
    return add_piece(w, out, off, len);
}

/* For the other behaviors: two entries a segment, its bounds and its kind. */
static ltd_status collect(tok__work *w, tok__pieces *out, size_t off, size_t len, int kind)
{
    ltd_status st = push_piece(w, out, off, len);
    return st == LTD_OK ? push_piece(w, out, (size_t)kind, 0) : st;
}

/* Folds segments into pieces.  Empty ones (of empty matches) take part and are dropped at the end: what
 * follows may merge with them. */
static ltd_status fold(tok__work *w, const tok__step *s, const tok__pieces *segs, tok__pieces *out)
{
    size_t n = segs->n / 2, first = out->n;
    bool before = false, backwards = s->behavior == TOK__MERGED_WITH_NEXT;
    ltd_status st;
    for (size_t i = 0; i < n; i++) {
        size_t k = 2 * (backwards ? n - 1 - i : i);
        tok__piece seg = segs->v[k];
        bool match = (segs->v[k + 1].off == MATCH) != s->invert, merge = false;
        if (s->behavior == TOK__REMOVED && match) continue;
        if (s->behavior == TOK__MERGED_WITH_PREVIOUS || backwards) merge = match && !before;
        if (s->behavior == TOK__CONTIGUOUS) merge = match == before;
        before = match;
        if (merge && out->n > first) {
            tok__piece *last = &out->v[out->n - 1];
            if (backwards) last->off = seg.off;
            last->len += seg.len;
        } else if ((st = push_piece(w, out, seg.off, seg.len)) != LTD_OK) {
            return st;
        }
    }
    for (size_t lo = first, hi = out->n; backwards && lo + 1 < hi; lo++) {
        tok__piece x = out->v[lo];
        out->v[lo] = out->v[--hi];
        out->v[hi] = x;
    }
    size_t kept = first;
    for (size_t i = first; i < out->n; i++)
        if (out->v[i].len) out->v[kept++] = out->v[i];
    out->n = kept;
    return LTD_OK;
}

ltd_status tok__step_run(tok__work *w, const tok__step *s, const char *base, const tok__pieces *in,
                         tok__pieces *out)
{
    ltd_status st;
    for (size_t i = 0; i < in->n; i++) {
        tok__piece p = in->v[i];
        if (s->behavior == TOK__ISOLATED) { /* inverting changes nothing here */
            if ((st = segments(w, s, base + p.off, p.off, p.len, out, isolate)) != LTD_OK) return st;
            continue;
        }
        w->segs.n = 0;
        if ((st = segments(w, s, base + p.off, p.off, p.len, &w->segs, collect)) != LTD_OK) return st;
        if ((st = fold(w, s, &w->segs, out)) != LTD_OK) return st;
    }
    return LTD_OK;
}

ltd_status tok__pretok(tok__work *w, const char *base, size_t n, tok__pieces **out)
{
    ltd_status st;
    tok__pieces *from = &w->a, *to = &w->b;
    from->n = 0;
    if ((st = add_piece(w, from, 0, n)) != LTD_OK) return st;
    for (int i = 0; i < w->t->n_steps; i++) {
        tok__pieces *x = from;
        to->n = 0;
        if ((st = tok__step_run(w, &w->t->steps[i], base, from, to)) != LTD_OK) return st;
        from = to;
        to = x;
    }
    *out = from;
    return LTD_OK;
}
