/* tokenizer_private.h - what the tokenizer's files share.
 * tokenizer_load.c reads the model and the added tokens, tokenizer_parts.c the other components and
 * tokenizer_config.json, tokenizer_regex.c turns Oniguruma patterns into PCRE2 ones, tokenizer_pretok.c cuts
 * text into pieces, tokenizer_bpe.c turns a piece into ids, tokenizer_added.c finds added tokens,
 * tokenizer_decode.c goes back to text, tokenizer.c is the public face. Threads: a tok is only read once
 * loaded; a tok__work belongs to one call. */
#ifndef LTD_TOKENIZER_PRIVATE_H
#define LTD_TOKENIZER_PRIVATE_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "model/tokenizer.h"

struct cJSON;

enum {
    TOK__MAX_ID = (1 << 24) - 1, /* far above any vocabulary; a table of ids is allocated up to the highest */
    TOK__MAX_STEPS = 32,         /* of a pre-tokenizer */
    TOK__MAX_AROUND = 8,         /* ids that a plain encode puts before, and behind */
    TOK__N_ALPHABET = 0x144,     /* the byte alphabet's code points lie below */
};

/* ------------------------------------------------------------------ the tables */

enum { TOK__VOCAB = 1, TOK__ADDED = 2, TOK__SPECIAL = 4, TOK__ALPHABETIC = 8 };

typedef struct tok__entry {
    const char *text;  /* tokenizer.json's spelling; NULL = no such id */
    const char *bytes; /* what it decodes to */
    uint32_t n_text, n_bytes;
    uint32_t flags; /* ALPHABETIC: all its characters are of the byte alphabet */
} tok__entry;

/* Open addressing, at most half full; id -1 = free.  The keys are the entries' text or bytes. */
typedef struct tok__map_slot {
    uint32_t hash;
    int32_t id;
} tok__map_slot;
typedef struct tok__map {
    tok__map_slot *slots;
    uint32_t mask;
    bool by_bytes;
} tok__map;

/* One merge: left and right id to id.  Same addressing; rank -1 = free. */
typedef struct tok__merge {
    uint64_t pair; /* left << 32 | right */
    int32_t rank, id;
} tok__merge;

typedef enum tok__behavior {
    TOK__ISOLATED,
    TOK__REMOVED,
    TOK__MERGED_WITH_PREVIOUS,
    TOK__MERGED_WITH_NEXT,
    TOK__CONTIGUOUS,
} tok__behavior;

/* One step of the pre-tokenizer: a pattern or a literal string. */
typedef struct tok__step {
    pcre2_code *re; /* NULL: literal */
    char *literal;
    size_t n_literal;
    tok__behavior behavior;
    bool invert;
    bool has_first;    /* a match must begin with a byte of `first` */
    uint8_t first[32]; /* one bit a byte */
} tok__step;

typedef struct tok__trie_node {
    int32_t added;           /* index into tok.added of the token that ends here; -1 = none */
    uint32_t child, sibling; /* 0 = none */
    uint8_t byte;
} tok__trie_node;

/* The added tokens of one pass (normalized false, then true), longest match through a byte trie. */
typedef struct tok__added_set {
    tok__trie_node *nodes; /* [0] is the root */
    uint32_t n_nodes, cap_nodes;
    uint32_t first[256]; /* the root's children by byte */
} tok__added_set;

typedef struct tok__added {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized;
} tok__added;

struct tok {
    tok_info info;
    char *chat_template;
    tok__entry *entries; /* [info.n_ids] */
    char *text_arena, *bytes_arena;
    tok__map by_text; /* every entry */
    tok__map words;   /* by bytes: vocabulary entries that their own bytes encode to, as one id */
    tok__merge *merges;
    uint64_t merges_mask;
    int32_t byte_ids[256]; /* -1: the vocabulary lacks that byte */
    size_t max_bytes;      /* of one id */
    bool ignore_merges;
    tok__step steps[TOK__MAX_STEPS];
    int n_steps;
    bool prefix_space;    /* ByteLevel's add_prefix_space */
    tok__step byte_level; /* its use_regex; re NULL = off */
    tok__added *added;    /* [info.n_added] */
    tok__added_set passes[2];
    bool swallows; /* ids may stand for more text than their own (lstrip, rstrip), or text may vanish
                      (Removed) */
    bool removes;
    pcre2_code *word_re; /* one character of a word, for single_word; NULL when no token has it */
    int32_t before[TOK__MAX_AROUND], behind[TOK__MAX_AROUND];
    int n_before, n_behind;
};

/* ------------------------------------------------------------------ loading */

/* tokenizer.json (and tokenizer_config.json, NULL = none) from memory; name and config_name are for messages.
 */
ltd_status tok__load_text(const char *json, size_t n, const char *config, size_t n_config, int32_t vocab_size,
                          tok **out, ltd_err *err);

/* Where a message comes from: each failure reads "<name>: <place and reason>". */
typedef struct tok__loader {
    tok *t;
    const char *name;
    int32_t vocab_size;
    ltd_err *err;
} tok__loader;
ltd_status tok__fail(const tok__loader *ld, ltd_status st, const char *fmt, ...) LTD_PRINTF(3, 4);
/* Refuses members of obj that are not in the NULL-terminated list and not null: nothing is passed over
 * unread. */
ltd_status tok__only_keys(const tok__loader *ld, const struct cJSON *obj, const char *where,
                          const char *const *keys);
/* A boolean member; absent = def. */
ltd_status tok__get_bool(const tok__loader *ld, const struct cJSON *obj, const char *where, const char *key,
                         bool def, bool *out);

ltd_status tok__load_model(tok__loader *ld, const struct cJSON *root);
ltd_status tok__load_parts(tok__loader *ld, const struct cJSON *root);
ltd_status tok__load_config(tok__loader *ld, const struct cJSON *config);

/* An Oniguruma pattern (Ruby syntax, what tokenizer.json holds) as the PCRE2 pattern of the same meaning
 * under TOK__RE_FLAGS; LTD_UNSUPPORTED with the construct in why[0..cap) for what differs between the two or
 * is unknown. */
ltd_status tok__regex_translate(const char *pattern, size_t n, ltd_buf *out, char *why, size_t cap);
/* Translates and compiles, with JIT where the system allows it.  where: for messages. */
ltd_status tok__step_compile(const tok__loader *ld, const char *where, const char *pattern, size_t n,
                             tok__step *step);
void tok__step_deinit(tok__step *s);

/* ------------------------------------------------------------------ tables */

uint32_t tok__hash(const char *s, size_t n);
void tok__map_init(tok__map *m, size_t n_keys, bool by_bytes);
int32_t tok__map_get(const tok__map *m, const tok__entry *entries, const char *s, size_t n); /* -1 = absent */
bool tok__map_put(tok__map *m, const tok__entry *entries, int32_t id); /* false: key is there already */
static inline uint64_t tok__merge_slot(uint64_t pair, uint64_t mask)
{
    uint64_t h = pair * UINT64_C(0x9E3779B97F4A7C15);
    return (h ^ (h >> 32)) & mask;
}
/* The byte alphabet (deepseek-facts: printable bytes are themselves, the 68 others U+0100..U+0143). */
int tok__alphabet_byte(uint32_t cp); /* -1 = outside */
uint32_t tok__alphabet_cp(uint8_t byte);
/* Length of the valid UTF-8 character at s and its code point; s must be valid. */
size_t tok__utf8_get(const char *s, uint32_t *cp);
bool tok__is_space(uint32_t cp); /* White_Space, which is also Oniguruma's \s */

/* ------------------------------------------------------------------ one encode */

typedef struct tok__piece {
    uint32_t off, len;
} tok__piece;
typedef struct tok__pieces {
    tok__piece *v;
    size_t n, cap;
} tok__pieces;

typedef struct tok__symbol { /* of a long word: a linked list in an array */
    int32_t id, prev, next;
    int32_t rank, merged; /* of the pair with the next symbol; rank -1 = none */
} tok__symbol;

typedef struct tok__work {
    const tok *t;
    bool no_control;
    int64_t max_ids; /* 0 = no limit */
    int32_t *ids;
    int64_t n_ids;
    size_t cap_ids;
    tok__pieces a, b, segs, tail;
    char *prefixed; /* a piece with the space put before it */
    size_t cap_prefixed;
    tok__symbol *symbols;
    uint64_t *heap;
    size_t cap_symbols, cap_heap;
    pcre2_match_data *md;
    pcre2_match_context *mc;
    ltd_err *err;
} tok__work;

void tok__work_init(tok__work *w, const tok *t, int flags, int64_t max_ids, ltd_err *err);
void tok__work_deinit(tok__work *w); /* frees all, ids too unless taken (set to NULL) */
/* Grows *p to hold `need` elements; the sizes follow a client's text, so that it may fail: LTD_NO_MEMORY. */
ltd_status tok__grow(void **p, size_t *cap, size_t need, size_t elt);
ltd_status tok__emit(tok__work *w, int32_t id);

/* Cuts base[0..n) at all steps (not ByteLevel's own): *out stays valid until the next call.  Offsets are into
 * base. */
ltd_status tok__pretok(tok__work *w, const char *base, size_t n, tok__pieces **out);
/* One step over base's pieces `in`, appended to `out`. */
ltd_status tok__step_run(tok__work *w, const tok__step *s, const char *base, const tok__pieces *in,
                         tok__pieces *out);
/* A stretch without added tokens: pre-tokenizer, ByteLevel, BPE. */
ltd_status tok__encode_stretch(tok__work *w, const char *s, size_t n);
/* One piece to ids.  use_words: look the whole piece up first. */
ltd_status tok__bpe(tok__work *w, const char *s, size_t n, bool use_words);

/* Added tokens: the next match of `set` in s[0..n) at or after *from, single_word honoured.  start..stop is
 * what the token takes, with the white space that it swallows, not before `floor`; *from moves behind the
 * match itself. */
bool tok__added_next(const tok__work *w, const tok__added_set *set, const char *s, size_t n, size_t floor,
                     size_t *from, size_t *start, size_t *stop, int32_t *id);
void tok__added_set_init(tok__added_set *set);
/* false: that spelling is there already. */
bool tok__added_set_put(tok__added_set *set, const char *s, size_t n, int32_t added);

#endif
