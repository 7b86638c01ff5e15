/* test_model_tokenizer - encoding, decoding and refusals on the BYTE tokenizer; the tokenizer's parts of D01
 * to D05 and D08. */
#include "model/tokenizer_private.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/byte_tokenizer.h"

static ltd_status try_load(const support_tok_opts *o, int32_t vocab_size, tok **t, ltd_err *err)
{
    char *json = support_byte_tokenizer_json(o);
    const char *config = o ? o->config : NULL;
    ltd_status st =
        tok__load_text(json, strlen(json), config, config ? strlen(config) : 0, vocab_size, t, err);
    ltd_free(json);
    return st;
}

static tok *load(const support_tok_opts *o)
{
    tok *t;
    ltd_err err;
    if (try_load(o, 0, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    return t;
}

static void refused(const support_tok_opts *o, ltd_status want, const char *names)
{
    tok *t;
    ltd_err err = {{0}};
    ltd_status st = try_load(o, 0, &t, &err);
    if (st != want || !strstr(err.text, names))
        fail_msg("%s, not %s naming \"%s\": %s", ltd_status_name(st), ltd_status_name(want), names, err.text);
    assert_null(t);
}

/* Ids as "1 2 3". */
static char *ids_text(const int32_t *ids, int64_t n)
{
    ltd_buf b = {0};
    ltd_buf_str(&b, "");
    for (int64_t i = 0; i < n; i++) ltd_buf_fmt(&b, "%s%d", i ? " " : "", ids[i]);
    return b.data;
}

static void encodes_n(const tok *t, const char *text, size_t len, int flags, const char *want)
{
    int32_t *ids;
    int64_t n;
    ltd_err err;
    if (tok_encode(t, text, len, flags, 0, &ids, &n, &err) != LTD_OK) fail_msg("%s: %s", text, err.text);
    char *got = ids_text(ids, n);
    assert_string_equal(got, want);
    ltd_free(got);
    ltd_free(ids);
}

static void encodes(const tok *t, const char *text, int flags, const char *want)
{
    encodes_n(t, text, strlen(text), flags, want);
}

static void decodes_n(const tok *t, const int32_t *ids, int64_t n, bool skip, const char *want)
{
    ltd_buf b = {0};
    ltd_buf_str(&b, "");
    tok_decode(t, ids, n, skip, &b);
    assert_string_equal(b.data, want);
    ltd_buf_deinit(&b);
}
#define decodes(t, skip, want, ...)                                                                          \
    decodes_n(t, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4, skip, want)

/* ------------------------------------------------------------------ D03: hello */

static const support_vocab hello_vocab[] = {{"he", 270},    {"ll", 271},      {"hell", 272},
                                            {"hello", 273}, {"\u0120w", 274}, {NULL, 0}};
static const char *const hello_merges[] = {"h e", "l l", "he ll", "hell o", "\u0120 w", NULL};
static const char llama_config[] = "{\"tokenizer_class\":\"LlamaTokenizerFast\",\"add_bos_token\":true,\"bos_"
                                   "token\":{\"content\":\"<bos>\"},"
                                   "\"eos_token\":\"<eos>\",\"chat_template\":\"{{ x }}\",\"legacy\":true}";

static void d03_merges_in_both_spellings_give_the_same_ids(void **state)
{
    (void)state;
    for (int pairs = 0; pairs < 2; pairs++) {
        support_tok_opts o = {
            .vocab = hello_vocab, .merges = hello_merges, .merges_as_pairs = pairs, .config = llama_config};
        tok *t = load(&o);
        encodes(t, "hello world", TOK_PLAIN, "273 274 111 114 108 100");
        encodes(t, "hello world", TOK_ADD_SPECIAL, "256 273 274 111 114 108 100");
        decodes(t, false, "hello world", 273, 274, 111, 114, 108, 100);
        const tok_info *i = tok_get_info(t);
        assert_int_equal(i->n_ids, 281);
        assert_int_equal(i->bos, 256);
        assert_int_equal(i->eos, 257);
        assert_true(i->add_bos && !i->add_eos);
        assert_string_equal(i->chat_template, "{{ x }}");
        assert_int_equal(i->n_added, 4);
        tok_destroy(t);
    }
}

static void d03_merges_that_are_not_understood_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\"zz q\"",  "[\"zz\",\"q\"]",      "\"h\"",         "\"h e l\"", "[\"h\"]",      "5",
        "[\"h\",5]", "[\"h\",\"e\",\"l\"]", "{\"a\":\"b\"}", "\"h o\"",   "[\"h\",\"o\"]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        support_tok_opts o = {.vocab = hello_vocab, .merges = hello_merges, .raw_merges = bad[i]};
        refused(&o, LTD_CORRUPT, "model.merges[5]");
    }
}

static void d03_parts_that_are_not_understood_are_refused_by_name(void **state)
{
    (void)state;
#define BYTE_LEVEL  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define STEPS(x)    "{\"type\":\"Sequence\",\"pretokenizers\":[" x "," BYTE_LEVEL "]}"
#define SPLIT(p, b) STEPS("{\"type\":\"Split\",\"pattern\":" p ",\"behavior\":\"" b "\",\"invert\":false}")
    const struct {
        support_tok_opts o;
        const char *names;
    } bad[] = {
        {{.normalizer = "{\"type\":\"NFC\"}"}, "NFC"},
        {{.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"x\"}]}"},
         "Prepend"},
        {{.pre_tokenizer = "null"}, "ByteLevel"},
        {{.pre_tokenizer = "{\"type\":\"Metaspace\"}"}, "Metaspace"},
        {{.pre_tokenizer = STEPS("{\"type\":\"Whitespace\"}")}, "Whitespace"},
        {{.pre_tokenizer = STEPS(BYTE_LEVEL)}, "pre_tokenizer[1]"},
        {{.pre_tokenizer = SPLIT("{\"Regex\":\"a\"}", "Sideways")}, "Sideways"},
        {{.pre_tokenizer = SPLIT("{\"String\":\"\"}", "Isolated")}, "empty"},
        {{.pre_tokenizer = SPLIT("{\"Regex\":\"(a\"}", "Isolated")}, "(a"},
        {{.pre_tokenizer = SPLIT("{\"Regex\":\"\\\\p{Nonsense}\"}", "Isolated")}, "Nonsense"},
        {{.pre_tokenizer = SPLIT("{\"Regex\":\"(a)\\\\1\"}", "Isolated")}, "\\1"},
        {{.pre_tokenizer = STEPS("{\"type\":\"Digits\",\"what\":1}")}, "what"},
        {{.decoder = "null"}, "decoder"},
        {{.decoder = "{\"type\":\"Metaspace\"}"}, "Metaspace"},
        {{.decoder = "{\"type\":\"Sequence\",\"decoders\":[" BYTE_LEVEL ",{\"type\":\"Fuse\"}]}"}, "Fuse"},
        {{.post_processor = "{\"type\":\"BertProcessing\"}"}, "BertProcessing"},
        {{.raw_model = "\"byte_fallback\":true,"}, "byte_fallback"},
        {{.raw_model = "\"continuing_subword_prefix\":\"##\","}, "continuing_subword_prefix"},
        {{.raw_model = "\"end_of_word_suffix\":\"</w>\","}, "end_of_word_suffix"},
        {{.raw_model = "\"whatever\":1,"}, "whatever"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) refused(&bad[i].o, LTD_UNSUPPORTED, bad[i].names);
    tok *t = load(&(support_tok_opts){.decoder = "{\"type\":\"Sequence\",\"decoders\":[" BYTE_LEVEL "]}",
                                      .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[]}"});
    tok_destroy(t);
}

static void d03_broken_vocabularies_are_refused(void **state)
{
    (void)state;
    const support_vocab twice[] = {{"zz", 65}, {NULL, 0}}, negative[] = {{"zz", -1}, {NULL, 0}},
                        same[] = {{"A", 300}, {NULL, 0}}, far[] = {{"zz", 2000000000}, {NULL, 0}};
    const support_added other[] = {{"<x>", 65}, {NULL, 0}}, moved[] = {{"A", 300}, {NULL, 0}},
                        again[] = {{"<bos>", 256}, {NULL, 0}}, empty[] = {{"", 300}, {NULL, 0}};
    refused(&(support_tok_opts){.vocab = twice}, LTD_CORRUPT, "zz");
    refused(&(support_tok_opts){.vocab = negative}, LTD_CORRUPT, "zz");
    refused(&(support_tok_opts){.vocab = far}, LTD_CORRUPT, "zz");
    refused(&(support_tok_opts){.vocab = same}, LTD_CORRUPT, "A");
    refused(&(support_tok_opts){.added = other}, LTD_CORRUPT, "<x>");
    refused(&(support_tok_opts){.added = moved}, LTD_CORRUPT, "A");
    refused(&(support_tok_opts){.added = again}, LTD_CORRUPT, "<bos>");
    refused(&(support_tok_opts){.added = empty}, LTD_CORRUPT, "added_tokens[4]");
    refused(&(support_tok_opts){.config = "{\"bos_token\":\"<nowhere>\"}"}, LTD_CORRUPT, "<nowhere>");
    refused(&(support_tok_opts){.config = "{\"add_bos_token\":true}"}, LTD_CORRUPT, "add_bos_token");
    refused(&(support_tok_opts){.config = "{\"add_bos_token\":1}"}, LTD_CORRUPT, "add_bos_token");
    refused(&(support_tok_opts){.config = "{\"chat_template\":7}"}, LTD_CORRUPT, "chat_template");
    refused(&(support_tok_opts){.config = "[]"}, LTD_CORRUPT, "tokenizer_config.json");
    tok *t;
    ltd_err err;
    assert_int_equal(try_load(NULL, 280, &t, &err), LTD_CORRUPT);
    assert_non_null(strstr(err.text, "vocab_size 280"));
    assert_int_equal(try_load(NULL, 281, &t, &err), LTD_OK);
    tok_destroy(t);
    static const char *const junk[] = {"",
                                       "[]",
                                       "5",
                                       "{}",
                                       "{\"model\":{}}",
                                       "{\"model\":{\"vocab\":{\"a\":1.5}}}",
                                       "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}"};
    for (size_t i = 0; i < sizeof junk / sizeof junk[0]; i++) {
        ltd_status st = tok__load_text(junk[i], strlen(junk[i]), NULL, 0, 0, &t, &err);
        assert_true(st == LTD_CORRUPT || st == LTD_UNSUPPORTED);
        assert_null(t);
    }
}

/* ------------------------------------------------------------------ tokenizer_config.json, templates, files
 */

static void config_forms_are_read(void **state)
{
    (void)state;
    tok *t = load(NULL);
    assert_int_equal(tok_get_info(t)->bos, -1);
    assert_null(tok_get_info(t)->chat_template);
    encodes(t, "A", TOK_ADD_SPECIAL, "65");
    encodes(t, "", TOK_ADD_SPECIAL, "");
    tok_destroy(t);
    t = load(&(support_tok_opts){
        .config = "{\"bos_token\":\"<bos>\",\"eos_token\":\"<eos>\",\"add_bos_token\":false,"
                  "\"add_eos_token\":true,\"chat_template\":[{\"name\":\"rag\",\"template\":"
                  "\"R\"},{\"name\":\"default\",\"template\":\"D\"}]}"});
    encodes(t, "A", TOK_ADD_SPECIAL, "65 257");
    assert_string_equal(tok_get_info(t)->chat_template, "D");
    tok_destroy(t);
    t = load(&(support_tok_opts){
        .config = "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"R\"}],\"bos_token\":null}"});
    assert_string_equal(tok_get_info(t)->chat_template, "R");
    tok_destroy(t);
    t = load(&(support_tok_opts){
        .config = "{\"chat_template\":[{\"name\":\"a\",\"template\":\"R\"},{\"name\":\"b\","
                  "\"template\":\"R\"}]}"});
    assert_null(tok_get_info(t)->chat_template);
    tok_destroy(t);
}

static void template_post_processor_adds_unless_the_config_says_otherwise(void **state)
{
    (void)state;
    static const char post[] =
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\",\"trim_offsets\":false},"
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<bos>\",\"type_id\":0}},"
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"<eos>\",\"type_id\":0}}],"
        "\"pair\":[],"
        "\"special_tokens\":{\"<bos>\":{\"id\":\"<bos>\",\"ids\":[256],\"tokens\":[\"<bos>\"]},"
        "\"<eos>\":{\"id\":\"<eos>\",\"ids\":[257],\"tokens\":[\"<eos>\"]}}}]}";
    tok *t = load(&(support_tok_opts){.post_processor = post});
    encodes(t, "A", TOK_ADD_SPECIAL, "256 65 257");
    encodes(t, "A", TOK_PLAIN, "65");
    assert_true(tok_get_info(t)->add_bos && tok_get_info(t)->add_eos);
    tok_destroy(t);
    t = load(&(support_tok_opts){.post_processor = post, .config = "{\"add_bos_token\":false}"});
    encodes(t, "A", TOK_ADD_SPECIAL, "65 257");
    tok_destroy(t);
}

static void folders_are_read_and_their_files_named(void **state)
{
    (void)state;
    char dir[] = "/tmp/ltd_tok_XXXXXX";
    ltd_buf path = {0};
    ltd_err err;
    tok *t;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(tok_load(dir, 0, &t, &err), LTD_NOT_FOUND);
    assert_non_null(strstr(err.text, "tokenizer.json"));
    support_write_byte_tokenizer(dir, &(support_tok_opts){.config = llama_config});
    if (tok_load(dir, 320, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    assert_string_equal(tok_get_info(t)->chat_template, "{{ x }}");
    tok_destroy(t);
    ltd_buf_fmt(&path, "%s/chat_template.jinja", dir);
    FILE *f = fopen(path.data, "wb");
    assert_non_null(f);
    fputs("{{ file }}", f);
    fclose(f);
    if (tok_load(dir, 320, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    assert_string_equal(tok_get_info(t)->chat_template, "{{ file }}");
    tok_destroy(t);
    unlink(path.data);
    support_write_byte_tokenizer(dir, &(support_tok_opts){.raw_merges = "5", .config = "{"});
    assert_int_equal(tok_load(dir, 320, &t, &err), LTD_CORRUPT);
    assert_non_null(strstr(err.text, dir));
    support_write_byte_tokenizer(dir, &(support_tok_opts){.config = "{"});
    assert_int_equal(tok_load(dir, 320, &t, &err), LTD_CORRUPT);
    assert_non_null(strstr(err.text, "tokenizer_config.json"));
    for (int i = 0; i < 2; i++) {
        ltd_buf_clear(&path);
        ltd_buf_fmt(&path, "%s/%s", dir, i ? "tokenizer.json" : "tokenizer_config.json");
        unlink(path.data);
    }
    rmdir(dir);
    ltd_buf_deinit(&path);
}

/* ------------------------------------------------------------------ D04, D08: added tokens */

static tok *hello_and(support_added a, support_added b)
{
    const support_added added[] = {a, b, {NULL, 0}};
    return load(&(support_tok_opts){.vocab = hello_vocab, .merges = hello_merges, .added = added});
}

static void d04_added_tokens_take_white_space_as_flagged_and_make_none_up(void **state)
{
    (void)state;
    support_added none = {NULL, 0};
    tok *t = hello_and((support_added){"<s>", 290, .special = true}, none);
    encodes(t, "hello <s> hello", TOK_PLAIN, "273 32 290 32 273");
    decodes(t, false, "hello <s>w", 273, 32, 290, 119);
    decodes(t, true, "hello w", 273, 32, 290, 119);
    tok_destroy(t);
    t = hello_and((support_added){"<s>", 290, .lstrip = true}, none);
    encodes(t, "hello <s> hello", TOK_PLAIN, "273 290 32 273");
    encodes(t, "hello \t\n\u3000<s>", TOK_PLAIN, "273 290");
    tok_destroy(t);
    t = hello_and((support_added){"<s>", 290, .rstrip = true}, none);
    encodes(t, "hello <s> hello", TOK_PLAIN, "273 32 290 273");
    encodes(t, "<s> \u2003\n", TOK_PLAIN, "290");
    tok_destroy(t);
    t = hello_and((support_added){"<s>", 290, .single_word = true}, none);
    encodes(t, "a<s>", TOK_PLAIN, "97 60 115 62");
    encodes(t, "<s>\u00e9", TOK_PLAIN, "60 115 62 195 169");
    encodes(t, "-<s>.", TOK_PLAIN, "45 290 46");
    tok_destroy(t);
}

static void d04_longest_added_token_wins(void **state)
{
    (void)state;
    tok *t = hello_and((support_added){"<a", 290}, (support_added){"<a>", 291});
    encodes(t, "x<a>y", TOK_PLAIN, "120 291 121");
    encodes(t, "x<a<a>", TOK_PLAIN, "120 290 291");
    encodes(t, "<bo<bos>", TOK_PLAIN, "60 98 111 256");
    tok_destroy(t);
    /* Those that are not normalized are cut out first, over the whole text. */
    t = hello_and((support_added){"b>", 290}, (support_added){"<ab>", 291, .normalized = true});
    encodes(t, "<ab>", TOK_PLAIN, "60 97 290");
    tok_destroy(t);
}

static void d08_no_control_makes_spellings_plain_text(void **state)
{
    (void)state;
    const support_vocab vocab[] = {{"<x", 300}, {"<x>", 301}, {NULL, 0}};
    static const char *const merges[] = {"< x", "<x >", NULL};
    const support_added added[] = {{"<x>", 301}, {NULL, 0}};
    tok *t = load(NULL);
    encodes(t, "hi<asst>x", TOK_NO_CONTROL, "104 105 60 97 115 115 116 62 120");
    encodes(t, "hi<asst>x", TOK_PLAIN, "104 105 259 120");
    assert_int_equal(tok_find(t, "<asst>"), 259);
    assert_int_equal(tok_find(t, "A"), 65);
    assert_int_equal(tok_find(t, "<nothing>"), -1);
    assert_true(tok_is_special(t, 259) && !tok_is_special(t, 65) && !tok_is_special(t, 5000) &&
                !tok_is_special(t, -1));
    tok_destroy(t);
    /* Nor may merges, or a whole-piece look-up, arrive at it. */
    for (int ignore = 0; ignore < 2; ignore++) {
        t = load(
            &(support_tok_opts){.vocab = vocab, .merges = merges, .added = added, .ignore_merges = ignore});
        encodes(t, "<x>", TOK_PLAIN, "301");
        encodes(t, "<x>", TOK_NO_CONTROL, "300 62");
        tok_destroy(t);
    }
}

/* ------------------------------------------------------------------ D01, D02: decoding */

static void d01_streams_hold_back_half_characters(void **state)
{
    (void)state;
    static const int32_t ids[] = {0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, '.'};
    static const size_t len[] = {0, 0, 3, 3, 3, 3, 7, 8};
    tok *t = load(NULL);
    tok_stream s;
    ltd_buf b = {0};
    tok_stream_init(&s, t, false);
    for (int i = 0; i < 8; i++) {
        tok_stream_add(&s, ids[i], &b);
        assert_int_equal(b.len, len[i]);
    }
    tok_stream_flush(&s, &b);
    assert_string_equal(b.data, "\u20ac\U0001F600.");
    ltd_buf_clear(&b);
    for (int i = 0; i < 5; i++) tok_stream_add(&s, ids[i], &b);
    assert_int_equal(s.n_held, 2);
    tok_stream_flush(&s, &b);
    assert_string_equal(b.data, "\u20ac\ufffd");
    ltd_buf_deinit(&b);
    tok_destroy(t);
}

static void d02_bytes_that_begin_nothing_come_out_at_once(void **state)
{
    (void)state;
    tok *t = load(NULL);
    tok_stream s;
    ltd_buf b = {0};
    tok_stream_init(&s, t, false);
    for (size_t i = 1; i <= 10; i++) {
        tok_stream_add(&s, 0xFF, &b);
        assert_int_equal(b.len, 3 * i);
        assert_int_equal(s.n_held, 0);
    }
    decodes(t, false, "\ufffda", 0xE2, 0x82, 'a');
    decodes(t, false, "\ufffd\ufffd", 0xE2, 0x82, 0xE2);
    decodes(t, false, "\ufffd\ufffd\ufffd", 0xED, 0xA0, 0x80);
    decodes(t, false, "\ufffd\u00e9", 0xF0, 0x9F, 0xC3, 0xA9);
    decodes(t, true, "\u20ac", 0xE2, 257, 0x82, 256, 0xAC);
    decodes(t, false, "7, 8\ufffd<bos>", 280, 0xC3, 300, -5, 1 << 30, 256);
    ltd_buf_deinit(&b);
    tok_destroy(t);
}

static void bytes_of_tokens_are_as_they_decode(void **state)
{
    (void)state;
    const support_added added[] = {{"a b", 300}, {"\u0120", 301, .normalized = true}, {NULL, 0}};
    tok *t;
    ltd_err err;
    const char *b;
    /* "\u0120" is the vocabulary's space: the same text may not have two ids. */
    assert_int_equal(try_load(&(support_tok_opts){.added = added}, 0, &t, &err), LTD_CORRUPT);
    t = load(&(support_tok_opts){
        .added = (const support_added[]){{"a b", 300}, {"\u00e9\u4f60", 301}, {NULL, 0}}});
    assert_int_equal(tok_bytes(t, 280, &b), 4);
    assert_memory_equal(b, "7, 8", 4);
    assert_int_equal(tok_bytes(t, 300, &b), 3);
    assert_memory_equal(b, "a b", 3);
    assert_int_equal(tok_bytes(t, 301, &b), 5);
    assert_memory_equal(b, "\u00e9\u4f60", 5);
    assert_int_equal(tok_bytes(t, 0xE2, &b), 1);
    assert_int_equal(tok_bytes(t, 299, &b), 0);
    assert_int_equal(tok_bytes(t, -1, &b), 0);
    tok_destroy(t);
}

static void streams_of_random_ids_equal_the_whole(void **state)
{
    (void)state;
    const support_vocab vocab[] = {
        {"\u00e2\u0124\u00ac\u00e2", 300}, {"\u00f0\u0141", 301}, {"\u013a\u0122a", 302}, {NULL, 0}};
    tok *t = load(&(support_tok_opts){.vocab = vocab});
    uint32_t x = 1;
    for (int round = 0; round < 3000; round++) {
        int32_t ids[24];
        ltd_buf whole = {0}, parts = {0};
        tok_stream s;
        bool skip = round & 1;
        tok_stream_init(&s, t, skip);
        for (int i = 0; i < 24; i++) {
            x = x * 1664525u + 1013904223u;
            uint32_t r = x >> 16;
            ids[i] = r % 4 == 0   ? 0x80 + (int32_t)(r >> 3) % 128
                     : r % 4 == 1 ? 298 + (int32_t)(r >> 3) % 6
                                  : 0xC0 + (int32_t)(r >> 3) % 80;
            tok_stream_add(&s, ids[i], &parts);
            assert_true(s.n_held <= 3);
            for (size_t k = 0; k < parts.len;) {
                int c = ltd_utf8_len(parts.data + k, parts.len - k);
                if (c <= 0) fail_msg("seed 1 round %d: half a character", round);
                k += (size_t)c;
            }
        }
        tok_stream_flush(&s, &parts);
        tok_decode(t, ids, 24, skip, &whole);
        assert_int_equal(whole.len, parts.len);
        if (whole.len) assert_memory_equal(whole.data, parts.data, whole.len);
        ltd_buf_deinit(&whole);
        ltd_buf_deinit(&parts);
    }
    tok_destroy(t);
}

/* ------------------------------------------------------------------ limits and D05 */

static void bad_utf8_and_missing_bytes_are_refused(void **state)
{
    (void)state;
    tok *t = load(NULL);
    int32_t *ids;
    int64_t n;
    ltd_err err;
    assert_int_equal(tok_encode(t, "abc\xC3\x28", 5, 0, 0, &ids, &n, &err), LTD_INVALID);
    assert_non_null(strstr(err.text, "byte 3"));
    assert_int_equal(tok_encode(t, "abcdefgh\xE2\x82", 10, 0, 0, &ids, &n, &err), LTD_INVALID);
    assert_int_equal(tok_encode(t, "\xED\xA0\x80", 3, 0, 0, &ids, &n, &err), LTD_INVALID);
    assert_null(ids);
    encodes_n(t, "a\0b", 3, TOK_PLAIN, "97 0 98");
    tok_destroy(t);
    static const char small[] =
        "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}}";
    assert_int_equal(tok__load_text(small, strlen(small), NULL, 0, 0, &t, &err), LTD_OK);
    assert_int_equal(tok_encode(t, "aab", 3, 0, 0, &ids, &n, &err), LTD_INVALID);
    assert_non_null(strstr(err.text, "0x62"));
    encodes(t, "aa", TOK_PLAIN, "0 0");
    tok_destroy(t);
}

static void max_ids_is_exact(void **state)
{
    (void)state;
    tok *t = load(&(support_tok_opts){.vocab = hello_vocab, .merges = hello_merges, .config = llama_config});
    int32_t *ids;
    int64_t n;
    ltd_err err;
    assert_int_equal(tok_encode(t, "hello world", 11, TOK_ADD_SPECIAL, 7, &ids, &n, &err), LTD_OK);
    assert_int_equal(n, 7);
    ltd_free(ids);
    assert_int_equal(tok_encode(t, "hello world", 11, TOK_ADD_SPECIAL, 6, &ids, &n, &err), LTD_TOO_LARGE);
    assert_null(ids);
    assert_true(n > 6);
    tok_destroy(t);
    /* White space that a token swallows is no reason to give up. */
    t = hello_and((support_added){"<s>", 290, .rstrip = true}, (support_added){NULL, 0});
    char text[1000];
    memset(text, ' ', sizeof text);
    memcpy(text, "<s>", 3);
    assert_int_equal(tok_encode(t, text, sizeof text, 0, 1, &ids, &n, &err), LTD_OK);
    assert_int_equal(n, 1);
    ltd_free(ids);
    tok_destroy(t);
}

/* aa=300, aaaa=301, ... of 64 letters=305. */
static tok *doubling(void)
{
    static char names[6][65], merges[6][70];
    support_vocab vocab[7] = {{NULL, 0}};
    const char *list[7] = {NULL};
    for (int i = 0; i < 6; i++) {
        int half = 1 << i;
        memset(names[i], 'a', (size_t)half * 2);
        vocab[i] = (support_vocab){names[i], 300 + i};
        snprintf(merges[i], sizeof merges[i], "%.*s %.*s", half, names[i], half, names[i]);
        list[i] = merges[i];
    }
    return load(&(support_tok_opts){.vocab = vocab, .merges = list});
}

static void d05_one_long_word_takes_linear_time_and_gives_up_early(void **state)
{
    (void)state;
    tok *t = doubling();
    size_t cap = 1 << 20;
    char *text = ltd_alloc(cap);
    int32_t *ids;
    int64_t n;
    ltd_err err;
    memset(text, 'a', cap);
    encodes_n(t, text, 127, TOK_PLAIN, "305 304 303 302 301 300 97");
    encodes_n(t, text, 39, TOK_PLAIN, "304 301 300 97");
    double best[2] = {1e9, 1e9}; /* 256 KiB, 512 KiB: measured until it shows */
    for (int k = 0; k < 16 && (k < 4 || best[1] > 3 * best[0]); k++) {
        size_t len = cap >> (k & 1 ? 1 : 2);
        int64_t from = ltd_now_us();
        assert_int_equal(tok_encode(t, text, len, 0, 0, &ids, &n, &err), LTD_OK);
        double took = (double)(ltd_now_us() - from);
        if (took < best[k & 1]) best[k & 1] = took;
        assert_int_equal(n, len / 64);
        ltd_free(ids);
    }
    if (best[1] > 3 * best[0]) fail_msg("512 KiB took %.0f us, 256 KiB %.0f us", best[1], best[0]);
    int64_t from = ltd_now_us();
    assert_int_equal(tok_encode(t, text, cap, 0, 4096, &ids, &n, &err), LTD_TOO_LARGE);
    assert_true(ltd_now_us() - from < 500000);
    assert_true(n > 4096);
    assert_non_null(strstr(err.text, "4096"));
    ltd_free(text);
    tok_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(d03_merges_in_both_spellings_give_the_same_ids),
        cmocka_unit_test(d03_merges_that_are_not_understood_are_refused),
        cmocka_unit_test(d03_parts_that_are_not_understood_are_refused_by_name),
        cmocka_unit_test(d03_broken_vocabularies_are_refused),
        cmocka_unit_test(config_forms_are_read),
        cmocka_unit_test(template_post_processor_adds_unless_the_config_says_otherwise),
        cmocka_unit_test(folders_are_read_and_their_files_named),
        cmocka_unit_test(d04_added_tokens_take_white_space_as_flagged_and_make_none_up),
        cmocka_unit_test(d04_longest_added_token_wins),
        cmocka_unit_test(d08_no_control_makes_spellings_plain_text),
        cmocka_unit_test(d01_streams_hold_back_half_characters),
        cmocka_unit_test(d02_bytes_that_begin_nothing_come_out_at_once),
        cmocka_unit_test(bytes_of_tokens_are_as_they_decode),
        cmocka_unit_test(streams_of_random_ids_equal_the_whole),
        cmocka_unit_test(bad_utf8_and_missing_bytes_are_refused),
        cmocka_unit_test(max_ids_is_exact),
        cmocka_unit_test(d05_one_long_word_takes_linear_time_and_gives_up_early),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
