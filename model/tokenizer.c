/* tokenizer.c - the public face: life, tables, encoding.
 * A text is cut at added tokens, what is left at the pre-tokenizer's steps, and each piece goes through the
 * merges.  All scratch memory belongs to the call: a tok is never written after it was loaded. */
#include <string.h>

#include "model/tokenizer_private.h"

/* ------------------------------------------------------------------ tables */

uint32_t tok__hash(const char *s, size_t n)
{
    uint64_t h = n * UINT64_C(0x9E3779B97F4A7C15), v;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&v, s, 8);
        h = (h ^ v) * UINT64_C(0xD6E8FEB86659FD93);
        h ^= h >> 32;
    }
    v = 0;
    memcpy(&v, s, n);
    h = (h ^ v) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(h ^ (h >> 32));
}

void tok__map_init(tok__map *m, size_t n_keys, bool by_bytes)
{
    size_t cap = 16;
    while (cap < 2 * n_keys) cap *= 2;
    m->slots = ltd_alloc(cap * sizeof *m->slots);
    for (size_t i = 0; i < cap; i++) m->slots[i] = (tok__map_slot){0, -1};
    m->mask = (uint32_t)(cap - 1);
    m->by_bytes = by_bytes;
}

/* The slot that holds the key or would. */
static tok__map_slot *slot_of(const tok__map *m, const tok__entry *entries, const char *s, size_t n,
                              uint32_t hash)
{
    for (uint32_t i = hash & m->mask;; i = (i + 1) & m->mask) {
        tok__map_slot *slot = &m->slots[i];
        if (slot->id < 0) return slot;
        if (slot->hash != hash) continue;
        const tok__entry *e = &entries[slot->id];
        if ((m->by_bytes ? e->n_bytes : e->n_text) == n &&
            memcmp(m->by_bytes ? e->bytes : e->text, s, n) == 0)
            return slot;
    }
}

int32_t tok__map_get(const tok__map *m, const tok__entry *entries, const char *s, size_t n)
{
    return slot_of(m, entries, s, n, tok__hash(s, n))->id;
}

bool tok__map_put(tok__map *m, const tok__entry *entries, int32_t id)
{
    const tok__entry *e = &entries[id];
    const char *s = m->by_bytes ? e->bytes : e->text;
    size_t n = m->by_bytes ? e->n_bytes : e->n_text;
    uint32_t hash = tok__hash(s, n);
    tok__map_slot *slot = slot_of(m, entries, s, n, hash);
    if (slot->id >= 0) return false;
    *slot = (tok__map_slot){hash, id};
    return true;
}

/* The 68 bytes that are no printable Latin-1 character, in order, are U+0100 and up. */
int tok__alphabet_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xAC) || (cp >= 0xAE && cp <= 0xFF))
        return (int)cp;
    if (cp < 0x100 || cp >= TOK__N_ALPHABET) return -1;
    int i = (int)cp - 0x100;
    if (i <= 0x20) return i;
    if (i <= 0x42) return i - 0x21 + 0x7F;
    return 0xAD;
}

uint32_t tok__alphabet_cp(uint8_t byte)
{
    if (byte <= 0x20) return 0x100u + byte;
    if (byte >= 0x7F && byte <= 0xA0) return 0x121u + byte - 0x7Fu;
    return byte == 0xAD ? 0x143u : byte;
}

size_t tok__utf8_get(const char *s, uint32_t *cp)
{
    const uint8_t *b = (const uint8_t *)s;
    if (b[0] < 0x80) return *cp = b[0], 1;
    if (b[0] < 0xE0) return *cp = (b[0] & 0x1Fu) << 6 | (b[1] & 0x3Fu), 2;
    if (b[0] < 0xF0) return *cp = (b[0] & 0x0Fu) << 12 | (b[1] & 0x3Fu) << 6 | (b[2] & 0x3Fu), 3;
    return *cp = (b[0] & 0x07u) << 18 | (b[1] & 0x3Fu) << 12 | (b[2] & 0x3Fu) << 6 | (b[3] & 0x3Fu), 4;
}

bool tok__is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* ------------------------------------------------------------------ life */

static ltd_status check_utf8(const char *s, size_t n, ltd_err *err)
{
    for (size_t i = 0; i < n;) {
        uint64_t v;
        if (n - i >= 8 && (memcpy(&v, s + i, 8), !(v & UINT64_C(0x8080808080808080)))) {
            i += 8;
            continue;
        }
        int k = (uint8_t)s[i] < 0x80 ? 1 : ltd_utf8_len(s + i, n - i);
        if (k <= 0) return ltd_fail(err, LTD_INVALID, "the text is not valid UTF-8 at byte %zu", i);
        i += (size_t)k;
    }
    return LTD_OK;
}

/* dir/chat_template.jinja, where newer checkpoints keep the template; it wins over tokenizer_config.json's.
 */
static ltd_status load_template_file(const char *dir, tok *t, ltd_err *err)
{
    ltd_buf path = {0};
    char *text = NULL;
    size_t n = 0;
    ltd_err inner = {{0}};
    ltd_buf_fmt(&path, "%s/chat_template.jinja", dir);
    ltd_status st = ltd_read_file(path.data, 0, &text, &n, &inner);
    if (st == LTD_OK && (check_utf8(text, n, NULL) != LTD_OK || strlen(text) != n)) {
        st = ltd_fail(err, LTD_CORRUPT, "%s: not UTF-8 text", path.data);
    } else if (st == LTD_OK) {
        ltd_free(t->chat_template);
        t->chat_template = text;
        t->info.chat_template = text;
        text = NULL;
    } else if (st == LTD_NOT_FOUND) {
        st = LTD_OK;
    } else if (err) {
        *err = inner;
    }
    ltd_free(text);
    ltd_buf_deinit(&path);
    return st;
}

ltd_status tok_load(const char *dir, int32_t vocab_size, tok **out, ltd_err *err)
{
    ltd_buf path = {0};
    char *json = NULL, *config = NULL;
    size_t n = 0, n_config = 0;
    ltd_err inner = {{0}};
    *out = NULL;
    ltd_buf_fmt(&path, "%s/tokenizer.json", dir);
    ltd_status st = ltd_read_file(path.data, 0, &json, &n, err);
    if (st != LTD_OK) goto done;
    ltd_buf_clear(&path);
    ltd_buf_fmt(&path, "%s/tokenizer_config.json", dir);
    st = ltd_read_file(path.data, 0, &config, &n_config, &inner);
    if (st != LTD_OK && st != LTD_NOT_FOUND) {
        if (err) *err = inner;
        goto done;
    }
    st = tok__load_text(json, n, config, n_config, vocab_size, out, &inner);
    if (st != LTD_OK)
        ltd_fail(err, st, "%s/%s", dir, inner.text);
    else
        st = load_template_file(dir, *out, err);
    if (st != LTD_OK) {
        tok_destroy(*out);
        *out = NULL;
    }
done:
    ltd_buf_deinit(&path);
    ltd_free(json);
    ltd_free(config);
    return st;
}

void tok_destroy(tok *t)
{
    if (!t) return;
    for (int i = 0; i < t->n_steps; i++) tok__step_deinit(&t->steps[i]);
    tok__step_deinit(&t->byte_level);
    pcre2_code_free(t->word_re);
    for (int i = 0; i < 2; i++) ltd_free(t->passes[i].nodes);
    ltd_free(t->added);
    ltd_free(t->merges);
    ltd_free(t->words.slots);
    ltd_free(t->by_text.slots);
    ltd_free(t->bytes_arena);
    ltd_free(t->text_arena);
    ltd_free(t->entries);
    ltd_free(t->chat_template);
    ltd_free(t);
}

const tok_info *tok_get_info(const tok *t) { return &t->info; }

int32_t tok_find(const tok *t, const char *text)
{
    return tok__map_get(&t->by_text, t->entries, text, strlen(text));
}

/* ------------------------------------------------------------------ encoding */

void tok__work_init(tok__work *w, const tok *t, int flags, int64_t max_ids, ltd_err *err)
{
    *w = (tok__work){.t = t, .no_control = flags & TOK_NO_CONTROL, .max_ids = max_ids, .err = err};
    w->md = pcre2_match_data_create(1, NULL);
    w->mc = pcre2_match_context_create(NULL);
    LTD_CHECK(w->md && w->mc, "out of memory");
}

void tok__work_deinit(tok__work *w)
{
    pcre2_match_context_free(w->mc);
    pcre2_match_data_free(w->md);
    ltd_free(w->a.v);
    ltd_free(w->b.v);
    ltd_free(w->segs.v);
    ltd_free(w->tail.v);
    ltd_free(w->prefixed);
    ltd_free(w->symbols);
    ltd_free(w->heap);
    ltd_free(w->ids);
}

/* ByteLevel's part on one piece: the space before it, its own cutting, then the merges. */
static ltd_status encode_piece(tok__work *w, const char *s, size_t n)
{
    const tok *t = w->t;
    ltd_status st;
    if (t->prefix_space && s[0] != ' ') {
        if (tok__grow((void **)&w->prefixed, &w->cap_prefixed, n + 1, 1) != LTD_OK)
            return ltd_fail(w->err, LTD_NO_MEMORY, "no memory for a piece of %zu bytes", n);
        w->prefixed[0] = ' ';
        memcpy(w->prefixed + 1, s, n);
        s = w->prefixed;
        n++;
    }
    if (!t->byte_level.re) return tok__bpe(w, s, n, true);
    tok__piece whole = {0, (uint32_t)n};
    tok__pieces in = {&whole, 1, 1};
    w->tail.n = 0;
    if ((st = tok__step_run(w, &t->byte_level, s, &in, &w->tail)) != LTD_OK) return st;
    for (size_t i = 0; i < w->tail.n; i++)
        if ((st = tok__bpe(w, s + w->tail.v[i].off, w->tail.v[i].len, true)) != LTD_OK) return st;
    return LTD_OK;
}

/* So many ids more are certain: gives up early rather than running the merges over a text that is far too
 * long. */
static ltd_status at_least(tok__work *w, int64_t more)
{
    if (w->max_ids <= 0 || w->n_ids + more <= w->max_ids) return LTD_OK;
    w->n_ids += more;
    return ltd_fail(w->err, LTD_TOO_LARGE, "the text has more than %lld tokens (at least %lld)",
                    (long long)w->max_ids, (long long)w->n_ids);
}

ltd_status tok__encode_stretch(tok__work *w, const char *s, size_t n)
{
    tok__pieces *p;
    ltd_status st;
    if (n == 0) return LTD_OK;
    size_t longest = w->t->max_bytes;
    if (!w->t->removes && (st = at_least(w, (int64_t)((n + longest - 1) / longest))) != LTD_OK) return st;
    /* Enough for any pattern that is linear in its piece; one that is not is stopped instead of hanging. */
    pcre2_set_match_limit(w->mc, n < 50000000 ? 10000000 + 32 * (uint32_t)n : UINT32_MAX / 2);
    pcre2_set_heap_limit(w->mc, 256 * 1024);
    if ((st = tok__pretok(w, s, n, &p)) != LTD_OK) return st;
    if (w->max_ids > 0) {
        int64_t least = 0;
        for (size_t i = 0; i < p->n; i++) least += (int64_t)((p->v[i].len + longest - 1) / longest);
        if ((st = at_least(w, least)) != LTD_OK) return st;
    }
    for (size_t i = 0; i < p->n; i++)
        if ((st = encode_piece(w, s + p->v[i].off, p->v[i].len)) != LTD_OK) return st;
    return LTD_OK;
}

/* Cuts s[0..n) at the added tokens of this pass and hands the rest to the next one; after the last pass it is
 * plain text. */
static ltd_status encode_pass(tok__work *w, int pass, const char *s, size_t n)
{
    if (pass == 2 || w->no_control) return tok__encode_stretch(w, s, n);
    size_t done = 0, from = 0, start, stop;
    int32_t id;
    ltd_status st;
    while (tok__added_next(w, &w->t->passes[pass], s, n, done, &from, &start, &stop, &id)) {
        if (start > done && (st = encode_pass(w, pass + 1, s + done, start - done)) != LTD_OK) return st;
        if ((st = tok__emit(w, id)) != LTD_OK) return st;
        done = stop;
    }
    return done < n ? encode_pass(w, pass + 1, s + done, n - done) : LTD_OK;
}

static ltd_status encode(tok__work *w, const char *text, size_t n, int flags)
{
    const tok *t = w->t;
    ltd_status st = check_utf8(text, n, w->err);
    if (st != LTD_OK) return st;
    bool whole = flags & TOK_ADD_SPECIAL;
    for (int i = 0; whole && i < t->n_before; i++)
        if ((st = tok__emit(w, t->before[i])) != LTD_OK) return st;
    if (!t->removes && !t->swallows &&
        (st = at_least(w, (int64_t)((n + t->max_bytes - 1) / t->max_bytes))) != LTD_OK)
        return st;
    if ((st = encode_pass(w, 0, text, n)) != LTD_OK) return st;
    for (int i = 0; whole && i < t->n_behind; i++)
        if ((st = tok__emit(w, t->behind[i])) != LTD_OK) return st;
    return LTD_OK;
}

ltd_status tok_encode(const tok *t, const char *text, size_t n, int flags, int64_t max_ids, int32_t **ids,
                      int64_t *n_ids, ltd_err *err)
{
    tok__work w;
    *ids = NULL;
    *n_ids = 0;
    if (n > INT32_MAX / 4) return ltd_fail(err, LTD_TOO_LARGE, "a text of %zu bytes", n);
    tok__work_init(&w, t, flags, max_ids, err);
    ltd_status st = encode(&w, text, n, flags);
    if (st == LTD_OK && !w.ids) w.ids = ltd_calloc(1, sizeof *w.ids);
    *n_ids = w.n_ids;
    if (st == LTD_OK) {
        *ids = w.ids;
        w.ids = NULL;
    }
    tok__work_deinit(&w);
    return st;
}
