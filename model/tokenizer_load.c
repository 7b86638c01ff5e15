/* tokenizer_load.c - tokenizer.json's model and added tokens into tables.
 * Read generically and whole: a member that is not known, an id given twice, a merge of tokens that do not
 * exist are refused with their place, never passed over. The entries' strings lie in two arenas, sized by a
 * first walk over the file. */
#include <stdio.h>
#include <string.h>

#include <cJSON.h>

#include "model/tokenizer_private.h"

ltd_status tok__fail(const tok__loader *ld, ltd_status st, const char *fmt, ...)
{
    char text[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return ltd_fail(ld->err, st, "%s: %s", ld->name, text);
}

ltd_status tok__only_keys(const tok__loader *ld, const cJSON *obj, const char *where, const char *const *keys)
{
    for (const cJSON *m = obj->child; m; m = m->next) {
        bool known = cJSON_IsNull(m);
        for (int i = 0; keys[i] && !known; i++) known = strcmp(m->string, keys[i]) == 0;
        if (!known)
            return tok__fail(ld, LTD_UNSUPPORTED, "%s: \"%.80s\" is not understood", where, m->string);
    }
    return LTD_OK;
}

ltd_status tok__get_bool(const tok__loader *ld, const cJSON *obj, const char *where, const char *key,
                         bool def, bool *out)
{
    const cJSON *v = ltd_json_get(obj, key);
    *out = def;
    if (!v) return LTD_OK;
    if (!cJSON_IsBool(v)) return tok__fail(ld, LTD_CORRUPT, "%s.%s is not true or false", where, key);
    *out = cJSON_IsTrue(v);
    return LTD_OK;
}

/* An id's value, in range. */
static ltd_status get_id(const tok__loader *ld, const cJSON *v, const char *where, const char *what,
                         int32_t *id)
{
    int64_t x;
    if (!v || ltd_json_int64(v, &x) != LTD_OK)
        return tok__fail(ld, LTD_CORRUPT, "%s: the id of \"%.80s\" is not a whole number", where, what);
    if (x < 0 || x > TOK__MAX_ID)
        return tok__fail(ld, LTD_CORRUPT, "%s: the id %lld of \"%.80s\" is out of range", where, (long long)x,
                         what);
    if (ld->vocab_size > 0 && x >= ld->vocab_size)
        return tok__fail(ld, LTD_CORRUPT,
                         "%s: the id %lld of \"%.80s\" is not below the model's vocab_size %d", where,
                         (long long)x, what, ld->vocab_size);
    *id = (int32_t)x;
    return LTD_OK;
}

/* ------------------------------------------------------------------ vocabulary and added tokens */

/* The first walk: how many ids, keys and bytes. */
static ltd_status measure(tok__loader *ld, const cJSON *vocab, const cJSON *added, size_t *n_keys,
                          size_t *n_text)
{
    int32_t id, highest = -1;
    ltd_status st;
    *n_keys = *n_text = 0;
    for (const cJSON *v = vocab->child; v; v = v->next) {
        if ((st = get_id(ld, v, "model.vocab", v->string, &id)) != LTD_OK) return st;
        if (id > highest) highest = id;
        ++*n_keys;
        *n_text += strlen(v->string) + 1;
    }
    int at = 0;
    for (const cJSON *a = added ? added->child : NULL; a; a = a->next, at++) {
        const cJSON *content = ltd_json_get(a, "content");
        if (!cJSON_IsString(content) || !content->valuestring[0])
            return tok__fail(ld, LTD_CORRUPT, "added_tokens[%d]: no content", at);
        if ((st = get_id(ld, ltd_json_get(a, "id"), "added_tokens", content->valuestring, &id)) != LTD_OK)
            return st;
        if (id > highest) highest = id;
        ++*n_keys;
        *n_text += strlen(content->valuestring) + 1;
        ld->t->info.n_added++;
    }
    ld->t->info.n_ids = highest + 1;
    return LTD_OK;
}

static void set_entry(tok__entry *e, const char *s, uint32_t flags, char **arena)
{
    size_t n = strlen(s);
    memcpy(*arena, s, n + 1);
    *e = (tok__entry){.text = *arena, .n_text = (uint32_t)n, .flags = flags};
    *arena += n + 1;
}

static ltd_status load_vocab(tok__loader *ld, const cJSON *vocab, char **arena)
{
    tok *t = ld->t;
    for (const cJSON *v = vocab->child; v; v = v->next) {
        int32_t id;
        ltd_status st = get_id(ld, v, "model.vocab", v->string, &id);
        if (st != LTD_OK) return st;
        if (t->entries[id].text)
            return tok__fail(ld, LTD_CORRUPT, "model.vocab: \"%.80s\" and \"%.80s\" have the same id %d",
                             t->entries[id].text, v->string, id);
        set_entry(&t->entries[id], v->string, TOK__VOCAB, arena);
        if (!tok__map_put(&t->by_text, t->entries, id))
            return tok__fail(ld, LTD_CORRUPT, "model.vocab: \"%.80s\" is there twice", v->string);
    }
    return LTD_OK;
}

static ltd_status load_added_one(tok__loader *ld, const cJSON *a, int32_t at, char **arena)
{
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    tok *t = ld->t;
    const char *content = ltd_json_get(a, "content")->valuestring;
    tok__added *x = &t->added[at];
    bool special;
    char where[32];
    ltd_status st;
    snprintf(where, sizeof where, "added_tokens[%d]", at);
    if ((st = tok__only_keys(ld, a, where, keys)) != LTD_OK) return st;
    if ((st = get_id(ld, ltd_json_get(a, "id"), "added_tokens", content, &x->id)) != LTD_OK) return st;
    if ((st = tok__get_bool(ld, a, where, "special", false, &special)) != LTD_OK) return st;
    if ((st = tok__get_bool(ld, a, where, "single_word", false, &x->single_word)) != LTD_OK) return st;
    if ((st = tok__get_bool(ld, a, where, "lstrip", false, &x->lstrip)) != LTD_OK) return st;
    if ((st = tok__get_bool(ld, a, where, "rstrip", false, &x->rstrip)) != LTD_OK) return st;
    if ((st = tok__get_bool(ld, a, where, "normalized", !special, &x->normalized)) != LTD_OK) return st;
    tok__entry *e = &t->entries[x->id];
    int32_t known = tok_find(t, content);
    if (known >= 0 && known != x->id)
        return tok__fail(ld, LTD_CORRUPT, "%s: \"%.80s\" has the id %d, but also %d", where, content, x->id,
                         known);
    if (known < 0 && e->text)
        return tok__fail(ld, LTD_CORRUPT, "%s: \"%.80s\" has the id %d of \"%.80s\"", where, content, x->id,
                         e->text);
    if (known < 0) {
        set_entry(e, content, 0, arena);
        tok__map_put(&t->by_text, t->entries, x->id);
    }
    if (!tok__added_set_put(&t->passes[x->normalized], content, strlen(content), at) ||
        (e->flags & TOK__ADDED))
        return tok__fail(ld, LTD_CORRUPT, "%s: \"%.80s\" is there twice", where, content);
    e->flags |= TOK__ADDED | (special ? TOK__SPECIAL : 0);
    if (x->lstrip || x->rstrip) t->swallows = true;
    if (x->single_word && !t->word_re) {
        int code;
        PCRE2_SIZE off;
        t->word_re = pcre2_compile((PCRE2_SPTR) "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]",
                                   PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &off, NULL);
        LTD_CHECK(t->word_re, "code=%d off=%zu", code, off);
    }
    return LTD_OK;
}

static ltd_status load_added(tok__loader *ld, const cJSON *added, char **arena)
{
    tok *t = ld->t;
    int32_t at = 0;
    t->added = ltd_calloc((size_t)t->info.n_added + 1, sizeof *t->added);
    for (int i = 0; i < 2; i++) tok__added_set_init(&t->passes[i]);
    for (const cJSON *a = added ? added->child : NULL; a; a = a->next, at++) {
        ltd_status st = load_added_one(ld, a, at, arena);
        if (st != LTD_OK) return st;
    }
    return LTD_OK;
}

/* ------------------------------------------------------------------ bytes and merges */

/* A token's characters as bytes, unless one is outside the byte alphabet: then its text as it is. */
static void load_bytes(tok *t, size_t n_text)
{
    char *to = t->bytes_arena = ltd_alloc(n_text + 1);
    for (int32_t id = 0; id < t->info.n_ids; id++) {
        tok__entry *e = &t->entries[id];
        if (!e->text) continue;
        size_t n = 0;
        bool all = true;
        for (size_t i = 0; i < e->n_text && all;) {
            uint32_t cp;
            i += tok__utf8_get(e->text + i, &cp);
            int b = tok__alphabet_byte(cp);
            all = b >= 0;
            if (all) to[n++] = (char)b;
        }
        if (!all) memcpy(to, e->text, n = e->n_text);
        if (all) e->flags |= TOK__ALPHABETIC;
        e->bytes = to;
        e->n_bytes = (uint32_t)n;
        to += n;
        /* An added token stands for its spelling, whatever it decodes to. */
        size_t stands_for = e->flags & TOK__ADDED && e->n_text > n ? e->n_text : n;
        if (stands_for > t->max_bytes) t->max_bytes = stands_for;
    }
    if (t->max_bytes == 0) t->max_bytes = 1;
    for (int b = 0; b < 256; b++) {
        uint32_t cp = tok__alphabet_cp((uint8_t)b);
        char s[2] = {(char)cp, 0};
        size_t n = 1;
        if (cp >= 0x80) s[0] = (char)(0xC0 | cp >> 6), s[1] = (char)(0x80 | (cp & 0x3F)), n = 2;
        int32_t id = tok__map_get(&t->by_text, t->entries, s, n);
        t->byte_ids[b] = id >= 0 && (t->entries[id].flags & TOK__VOCAB) ? id : -1;
    }
}

static int32_t vocab_id(const tok *t, const char *s, size_t n)
{
    int32_t id = tok__map_get(&t->by_text, t->entries, s, n);
    return id >= 0 && (t->entries[id].flags & TOK__VOCAB) ? id : -1;
}

/* "a b" or ["a","b"]. */
static bool merge_sides(const cJSON *m, const char **a, size_t *n_a, const char **b, size_t *n_b)
{
    if (cJSON_IsString(m)) {
        const char *space = strchr(m->valuestring, ' ');
        if (!space || strchr(space + 1, ' ')) return false;
        *a = m->valuestring;
        *n_a = (size_t)(space - m->valuestring);
        *b = space + 1;
        *n_b = strlen(*b);
        return true;
    }
    if (!cJSON_IsArray(m) || !cJSON_IsString(m->child) || !cJSON_IsString(m->child->next) ||
        m->child->next->next)
        return false;
    *a = m->child->valuestring;
    *b = m->child->next->valuestring;
    *n_a = strlen(*a);
    *n_b = strlen(*b);
    return true;
}

static ltd_status load_merge(tok__loader *ld, const cJSON *m, int at, int32_t rank, ltd_buf *joined)
{
    tok *t = ld->t;
    const char *a, *b;
    size_t n_a, n_b;
    if (!merge_sides(m, &a, &n_a, &b, &n_b)) {
        char *shown = cJSON_PrintUnformatted(m);
        ltd_status st =
            tok__fail(ld, LTD_CORRUPT, "model.merges[%d]: %.120s is neither \"a b\" nor [\"a\",\"b\"]", at,
                      shown ? shown : "?");
        cJSON_free(shown);
        return st;
    }
    ltd_buf_clear(joined);
    ltd_buf_add(joined, a, n_a);
    ltd_buf_add(joined, b, n_b);
    int32_t left = vocab_id(t, a, n_a), right = vocab_id(t, b, n_b),
            id = vocab_id(t, joined->data, joined->len);
    if (left < 0 || right < 0 || id < 0) {
        const char *s = left < 0 ? a : right < 0 ? b : joined->data;
        size_t n = left < 0 ? n_a : right < 0 ? n_b : joined->len;
        return tok__fail(
            ld, LTD_CORRUPT, "model.merges[%d]: \"%.*s\" + \"%.*s\": the vocabulary has no \"%.*s\"", at,
            (int)(n_a < 80 ? n_a : 80), a, (int)(n_b < 80 ? n_b : 80), b, (int)(n < 160 ? n : 160), s);
    }
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t i = tok__merge_slot(pair, t->merges_mask);
    while (t->merges[i].rank >= 0 && t->merges[i].pair != pair) i = (i + 1) & t->merges_mask;
    t->merges[i] = (tok__merge){pair, rank, id}; /* given twice: the later rank holds */
    return LTD_OK;
}

static ltd_status load_merges(tok__loader *ld, const cJSON *merges)
{
    tok *t = ld->t;
    size_t n = 0, cap = 16;
    int at = 0;
    int32_t rank = 0;
    ltd_buf joined = {0};
    ltd_status st = LTD_OK;
    if (merges && !cJSON_IsArray(merges)) return tok__fail(ld, LTD_CORRUPT, "model.merges is not a list");
    for (const cJSON *m = merges ? merges->child : NULL; m; m = m->next) n++;
    while (cap < 2 * n) cap *= 2;
    t->merges = ltd_alloc(cap * sizeof *t->merges);
    t->merges_mask = cap - 1;
    for (size_t i = 0; i < cap; i++) t->merges[i] = (tok__merge){0, -1, -1};
    for (const cJSON *m = merges ? merges->child : NULL; m && st == LTD_OK; m = m->next, at++) {
        if (cJSON_IsString(m) && strncmp(m->valuestring, "#version", 8) == 0)
            continue; /* a heading kept from merges.txt */
        st = load_merge(ld, m, at, rank++, &joined);
    }
    ltd_buf_deinit(&joined);
    return st;
}

/* The words: entries that their own bytes encode to.  A piece that is one needs no merging, and gets the very
 * id that merging would give; with ignore_merges every entry is one. */
static ltd_status load_words(tok__loader *ld)
{
    tok *t = ld->t;
    tok__work w;
    ltd_status st = LTD_OK;
    tok__map_init(&t->words, (size_t)t->info.n_ids, true);
    tok__work_init(&w, t, TOK_PLAIN, 0, NULL);
    for (int32_t id = 0; id < t->info.n_ids && st == LTD_OK; id++) {
        const tok__entry *e = &t->entries[id];
        if ((e->flags & (TOK__VOCAB | TOK__ALPHABETIC)) != (TOK__VOCAB | TOK__ALPHABETIC) || e->n_bytes == 0)
            continue;
        bool word = t->ignore_merges;
        if (!word) {
            w.n_ids = 0;
            st = tok__bpe(&w, e->bytes, e->n_bytes, false);
            word = st == LTD_OK && w.n_ids == 1 && w.ids[0] == id;
            if (st == LTD_INVALID) st = LTD_OK; /* a byte that the vocabulary lacks: it cannot be reached */
        }
        if (word) tok__map_put(&t->words, t->entries, id);
    }
    tok__work_deinit(&w);
    return st == LTD_OK ? LTD_OK : tok__fail(ld, st, "model.vocab: no memory for its words");
}

/* ------------------------------------------------------------------ the model */

/* What would change the merging and is not implemented must be absent, null or without effect. */
static ltd_status check_model(tok__loader *ld, const cJSON *model)
{
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    ltd_status st = tok__only_keys(ld, model, "model", keys);
    if (st != LTD_OK) return st;
    const cJSON *type = ltd_json_get(model, "type");
    if (!ltd_json_is_null(type) && !(cJSON_IsString(type) && strcmp(type->valuestring, "BPE") == 0))
        return tok__fail(ld, LTD_UNSUPPORTED, "model.type \"%.80s\" is not BPE",
                         cJSON_IsString(type) ? type->valuestring : "?");
    const cJSON *dropout = ltd_json_get(model, "dropout");
    if (!ltd_json_is_null(dropout) && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
        return tok__fail(ld, LTD_UNSUPPORTED, "model.dropout is not supported");
    for (int i = 2; i < 5; i++) {
        const cJSON *v = ltd_json_get(model, keys[i]);
        if (!ltd_json_is_null(v) && !(cJSON_IsString(v) && v->valuestring[0] == 0))
            return tok__fail(ld, LTD_UNSUPPORTED, "model.%s is not supported", keys[i]);
    }
    bool fallback, fuse;
    if ((st = tok__get_bool(ld, model, "model", "byte_fallback", false, &fallback)) != LTD_OK) return st;
    if (fallback) return tok__fail(ld, LTD_UNSUPPORTED, "model.byte_fallback is not supported");
    if ((st = tok__get_bool(ld, model, "model", "fuse_unk", false, &fuse)) != LTD_OK)
        return st; /* without unk_token it does nothing */
    return tok__get_bool(ld, model, "model", "ignore_merges", false, &ld->t->ignore_merges);
}

ltd_status tok__load_model(tok__loader *ld, const cJSON *root)
{
    tok *t = ld->t;
    const cJSON *model = ltd_json_get(root, "model"), *vocab = ltd_json_get(model, "vocab"),
                *added = ltd_json_get(root, "added_tokens");
    size_t n_keys, n_text;
    ltd_status st;
    if (!cJSON_IsObject(model)) return tok__fail(ld, LTD_CORRUPT, "no model");
    if ((st = check_model(ld, model)) != LTD_OK) return st;
    if (!cJSON_IsObject(vocab)) return tok__fail(ld, LTD_CORRUPT, "no model.vocab");
    if (cJSON_IsNull(added)) added = NULL;
    if (added && !cJSON_IsArray(added)) return tok__fail(ld, LTD_CORRUPT, "added_tokens is not a list");
    if ((st = measure(ld, vocab, added, &n_keys, &n_text)) != LTD_OK) return st;
    t->entries = ltd_calloc((size_t)t->info.n_ids + 1, sizeof *t->entries);
    char *arena = t->text_arena = ltd_alloc(n_text + 1);
    tok__map_init(&t->by_text, n_keys, false);
    if ((st = load_vocab(ld, vocab, &arena)) != LTD_OK) return st;
    if ((st = load_added(ld, added, &arena)) != LTD_OK) return st;
    load_bytes(t, n_text);
    if ((st = load_merges(ld, ltd_json_get(model, "merges"))) != LTD_OK) return st;
    return load_words(ld);
}
