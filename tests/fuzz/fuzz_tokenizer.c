/* fuzz_tokenizer.c - hostile tokenizer.json files, patterns, texts and ids.
 * The first byte picks what the rest is.  Whatever a file holds, it is loaded or refused; whatever a text
 * holds, it comes back; a stream's pieces are the whole. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_private.h"
#include "tests/support/byte_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static tok *load(const support_tok_opts *o)
{
    char *json = support_byte_tokenizer_json(o);
    tok *t = NULL;
    tok__load_text(json, strlen(json), NULL, 0, 0, &t, NULL);
    ltd_free(json);
    return t;
}

/* With merges, an added token, a regular expression: what texts go through. */
static const tok *fixed(void)
{
    static tok *t;
    static const support_vocab vocab[] = {
        {"aa", 300}, {"aaaa", 301}, {"\u0120a", 302}, {"\u00c3\u00a9", 303}, {NULL, 0}};
    static const char *const merges[] = {"a a", "aa aa", "\u0120 a", "\u00c3 \u00a9", NULL};
    static const support_added added[] = {
        {"<a", 310}, {"<a>", 311, .normalized = true}, {"\u00e9t", 312, .single_word = true}, {NULL, 0}};
    if (!t)
        t = load(&(support_tok_opts){
            .vocab = vocab,
            .merges = merges,
            .added = added,
            .pre_tokenizer = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"});
    LTD_CHECK(t, "the fixed tokenizer does not load");
    return t;
}

static void encode_and_back(const tok *t, const char *s, size_t n, bool must_come_back)
{
    int32_t *ids;
    int64_t n_ids;
    for (int flags = 0; flags < 4; flags++) {
        if (tok_encode(t, s, n, flags, flags & 1 ? (int64_t)n / 2 : 0, &ids, &n_ids, NULL) != LTD_OK)
            continue;
        ltd_buf b = {0};
        tok_decode(t, ids, n_ids, false, &b);
        LTD_CHECK(!must_come_back || (b.len == n && (n == 0 || memcmp(b.data, s, n) == 0)), "flags=%d n=%zu",
                  flags, n);
        ltd_buf_deinit(&b);
        ltd_free(ids);
    }
}

static void stream(const tok *t, const uint8_t *data, size_t n)
{
    int32_t *ids = ltd_calloc(n + 1, sizeof *ids);
    ltd_buf whole = {0}, parts = {0};
    tok_stream s;
    tok_stream_init(&s, t, n & 1);
    for (size_t i = 0; i < n; i++) {
        ids[i] = data[i] < 8 ? 256 + data[i] * 8 : data[i];
        tok_stream_add(&s, ids[i], &parts);
        LTD_CHECK(s.n_held <= 3, "held=%d", s.n_held);
    }
    tok_stream_flush(&s, &parts);
    tok_decode(t, ids, (int64_t)n, n & 1, &whole);
    LTD_CHECK(whole.len == parts.len && (whole.len == 0 || memcmp(whole.data, parts.data, whole.len) == 0),
              "n=%zu", n);
    for (size_t i = 0; i < whole.len;) {
        int k = ltd_utf8_len(whole.data + i, whole.len - i);
        LTD_CHECK(k > 0, "half a character at %zu", i);
        i += (size_t)k;
    }
    ltd_buf_deinit(&whole);
    ltd_buf_deinit(&parts);
    ltd_free(ids);
}

/* A pattern up to the first newline, then a text for it. */
static void pattern(const char *s, size_t n)
{
    const char *end = memchr(s, '\n', n);
    if (!end || end - s > 60) return;
    ltd_buf b = {0};
    ltd_buf_str(&b, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    ltd_buf_json_str(&b, s, (size_t)(end - s));
    ltd_buf_fmt(&b,
                "},\"behavior\":\"%s\",\"invert\":%s},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                "\"use_regex\":false}]}",
                n & 1   ? "Isolated"
                : n & 2 ? "MergedWithNext"
                        : "Contiguous",
                n & 4 ? "true" : "false");
    tok *t = load(&(support_tok_opts){.pre_tokenizer = b.data});
    size_t rest = (size_t)(s + n - end - 1);
    if (t) encode_and_back(t, end + 1, rest < 64 ? rest : 64, true);
    tok_destroy(t);
    ltd_buf_deinit(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) return 0;
    const char *s = (const char *)data + 1;
    tok *t;
    switch (data[0] % 4) {
    case 0:
        if (tok__load_text(s, n - 1, s, n - 1, 0, &t, NULL) == LTD_OK) {
            encode_and_back(t, s, n - 1, false);
            tok_destroy(t);
        }
        if (tok__load_text(s, n - 1, NULL, 0, 512, &t, NULL) == LTD_OK) {
            encode_and_back(t, s, n - 1, false);
            tok_destroy(t);
        }
        break;
    case 1:
        encode_and_back(fixed(), s, n - 1, false);
        break;
    case 2:
        stream(fixed(), data + 1, n - 1);
        break;
    default:
        pattern(s, n - 1);
        break;
    }
    return 0;
}
