/* byte_tokenizer.h - writes the BYTE tokenizer of the requirements into a folder.
 * 256 byte symbols with id = byte value, <bos>=256 <eos>=257 <user>=258 <asst>=259 (special), the plain entry
 * 280=`7, 8` without merge; no merges, ByteLevel pre-tokenizer (no prefix space, no regex) and decoder.
 * Options add to it or replace a component; a failure dies. */
#ifndef LTD_TESTS_BYTE_TOKENIZER_H
#define LTD_TESTS_BYTE_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct support_vocab {
    const char *text; /* in the byte alphabet's spelling (a space is "\u0120") */
    int32_t id;
} support_vocab;

typedef struct support_added {
    const char *text;
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
} support_added;

/* Zero-initialised (or NULL) is the plain BYTE tokenizer.  Lists end with an entry whose text is NULL. */
typedef struct support_tok_opts {
    const support_vocab *vocab;
    const support_added *added;
    const char *const *merges; /* "a b" */
    bool merges_as_pairs;      /* write them as ["a","b"] */
    bool ignore_merges;
    const char *raw_merges; /* JSON put behind the merges as it is: "[\"a\"]", "5, \"x y\"" */
    const char *raw_model;  /* members put into the model as they are: "\"byte_fallback\": true," */
    const char *normalizer, *pre_tokenizer, *post_processor, *decoder; /* JSON instead of the usual */
    const char *config; /* tokenizer_config.json's text; NULL = no such file */
} support_tok_opts;

/* Writes dir/tokenizer.json and, with o->config, dir/tokenizer_config.json; dir exists. */
void support_write_byte_tokenizer(const char *dir, const support_tok_opts *o);
/* The text of tokenizer.json (ltd_free). */
char *support_byte_tokenizer_json(const support_tok_opts *o);

#endif
