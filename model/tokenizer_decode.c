/* tokenizer_decode.c - ids back to text.
 * Each id's bytes were worked out at load; what is left is to join them and to give out whole characters
 * only, U+FFFD for each maximal part that is none. */
#include <string.h>

#include "model/tokenizer_private.h"

size_t tok_bytes(const tok *t, int32_t id, const char **bytes)
{
    *bytes = "";
    if (id < 0 || id >= t->info.n_ids || !t->entries[id].text) return 0;
    *bytes = t->entries[id].bytes;
    return t->entries[id].n_bytes;
}

bool tok_is_special(const tok *t, int32_t id)
{
    return id >= 0 && id < t->info.n_ids && (t->entries[id].flags & TOK__SPECIAL);
}

void tok_stream_init(tok_stream *s, const tok *t, bool skip_special)
{
    *s = (tok_stream){.t = t, .skip_special = skip_special};
}

/* Appends the whole characters of s[0..n), U+FFFD for what is none; returns how many bytes at the end are an
 * unfinished one. */
static size_t whole_characters(const char *s, size_t n, ltd_buf *out)
{
    size_t from = 0, i = 0;
    while (i < n) {
        int k = (uint8_t)s[i] < 0x80 ? 1 : ltd_utf8_len(s + i, n - i);
        if (k == 0) break;
        if (k > 0) {
            i += (size_t)k;
            continue;
        }
        ltd_buf_add(out, s + from, i - from);
        ltd_buf_str(out, "\xEF\xBF\xBD");
        from = i += (size_t)-k;
    }
    ltd_buf_add(out, s + from, i - from);
    return n - i;
}

void tok_stream_add(tok_stream *s, int32_t id, ltd_buf *out)
{
    const char *b;
    size_t n = tok_bytes(s->t, id, &b);
    if (n == 0 || (s->skip_special && tok_is_special(s->t, id))) return;
    s->started = true;
    while (n && s->n_held) { /* finish the character that is held, byte by byte */
        s->held[s->n_held++] = *b++;
        n--;
        char held[4];
        size_t n_held = s->n_held;
        memcpy(held, s->held, sizeof held);
        size_t left = whole_characters(held, n_held, out);
        memmove(s->held, held + n_held - left, left);
        s->n_held = (uint8_t)left;
    }
    if (n == 0) return;
    size_t left = whole_characters(b, n, out);
    LTD_CHECK(left <= 3, "left=%zu", left);
    memcpy(s->held, b + n - left, left);
    s->n_held = (uint8_t)left;
}

void tok_stream_flush(tok_stream *s, ltd_buf *out)
{
    if (s->n_held) ltd_buf_str(out, "\xEF\xBF\xBD");
    s->n_held = 0;
}

void tok_decode(const tok *t, const int32_t *ids, int64_t n, bool skip_special, ltd_buf *out)
{
    tok_stream s;
    tok_stream_init(&s, t, skip_special);
    for (int64_t i = 0; i < n; i++) tok_stream_add(&s, ids[i], out);
    tok_stream_flush(&s, out);
}
