/* tokenizer.h - text to token ids and back, from a checkpoint folder's tokenizer.json.
 * The file is the authority and is understood whole or refused; no class names are believed.  Knows nothing of chat templates' rendering.
 * Threads: a tok is immutable once loaded: any thread may use it; a tok_stream belongs to one thread. */
#ifndef LTD_TOKENIZER_H
#define LTD_TOKENIZER_H

#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tok tok; /* opaque */

/* Reads dir/tokenizer.json and, where present, dir/tokenizer_config.json (bos and eos tokens, add_bos_token, add_eos_token, the
 * chat template's text) and dir/chat_template.jinja (which wins over the former's template).  vocab_size: the model's (ids at or above it are refused at load); 0 = no check.
 * LTD_CORRUPT, LTD_UNSUPPORTED, LTD_NOT_FOUND with a line that names the file, the place and what is not understood. */
ltd_status tok_load(const char *dir, int32_t vocab_size, tok **out, ltd_err *err);
void tok_destroy(tok *t);

typedef struct tok_info {
    int32_t n_ids;            /* one more than the highest id that has text */
    int32_t bos, eos;         /* -1 = none */
    bool add_bos, add_eos;    /* what a plain encode adds */
    const char *chat_template; /* or NULL; the default one where there are several */
    int32_t n_added;          /* added tokens */
} tok_info;
const tok_info *tok_get_info(const tok *t);

typedef enum tok_flags {
    TOK_PLAIN = 0,
    TOK_ADD_SPECIAL = 1,    /* put BOS before (and EOS behind) as tokenizer_config.json says */
    TOK_NO_CONTROL = 2,     /* added tokens' spellings are ordinary text */
} tok_flags;

/* Encodes text[0..n), which must be valid UTF-8 (else LTD_INVALID).  *ids is the caller's (ltd_free); *n_ids its count.
 * Near-linear in n, also for one word of a megabyte.  max_ids > 0: gives up with LTD_TOO_LARGE as soon as more ids than that are certain;
 * *n_ids is then the count so far, *ids NULL. */
ltd_status tok_encode(const tok *t, const char *text, size_t n, int flags, int64_t max_ids, int32_t **ids, int64_t *n_ids, ltd_err *err);

/* The bytes of one token (not NUL-terminated; may be part of a character), valid as long as t.  Ids without text give 0 bytes. */
size_t tok_bytes(const tok *t, int32_t id, const char **bytes);
bool tok_is_special(const tok *t, int32_t id); /* an added token flagged special */
/* Id of the added or vocabulary token with exactly that text (in tokenizer.json's spelling); -1 = none. */
int32_t tok_find(const tok *t, const char *text);

/* Appends the text of ids[0..n) to out; bad UTF-8 becomes U+FFFD per maximal invalid part. */
void tok_decode(const tok *t, const int32_t *ids, int64_t n, bool skip_special, ltd_buf *out);

/* Incremental decoding: the pieces added up are tok_decode of the whole.  Never gives out half a character: an unfinished one
 * (at most 3 bytes) is held until the next token or the flush. */
typedef struct tok_stream {
    const tok *t;
    bool skip_special;
    bool started;        /* a decoder may treat the first token differently */
    uint8_t n_held;
    char held[4];
} tok_stream;
void tok_stream_init(tok_stream *s, const tok *t, bool skip_special);
void tok_stream_add(tok_stream *s, int32_t id, ltd_buf *out);   /* appends whole characters only */
void tok_stream_flush(tok_stream *s, ltd_buf *out);             /* appends U+FFFD for what is still held, if anything */

#ifdef __cplusplus
}
#endif
#endif
