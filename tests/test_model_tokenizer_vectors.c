/* test_model_tokenizer_vectors - the tokenizer against recorded ids, against an obvious merger, and by round
 * trips. tests/data/tokenizer_more.json is ours; the DeepSeek vocabularies and their vectors are looked for
 * in $LTD_SHARED or
 * ../shared, and what needs them is skipped where they are absent. */
#include "model/tokenizer_private.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cJSON.h>
#include <cmocka.h>

#include "tests/support/byte_tokenizer.h"

static void shared_path(ltd_buf *out, const char *fmt, const char *name)
{
    const char *dir = getenv("LTD_SHARED");
    ltd_buf_clear(out);
    ltd_buf_fmt(out, "%s/", dir ? dir : "../shared");
    ltd_buf_fmt(out, fmt, name);
}

/* Skips the test where the shared files are not there. */
static tok *load_shared(const char *name)
{
    ltd_buf path = {0};
    tok *t;
    ltd_err err;
    shared_path(&path, "data/%s/tokenizer.json", name);
    if (access(path.data, R_OK) != 0) {
        print_message("skipped: no %s (set LTD_SHARED)\n", path.data);
        ltd_buf_deinit(&path);
        skip();
    }
    shared_path(&path, "data/%s", name);
    if (tok_load(path.data, 0, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    ltd_buf_deinit(&path);
    return t;
}

static cJSON *load_json(const char *path)
{
    cJSON *v;
    ltd_err err;
    if (ltd_json_parse_file(path, 0, &v, &err) != LTD_OK) fail_msg("%s", err.text);
    return v;
}

/* They lie beside the vocabularies, which load_shared has found.  Their "\u0000", which our JSON refuses, is
 * made U+F8FE, which occurs nowhere in them. */
static cJSON *vectors(void)
{
    ltd_buf path = {0};
    char *text;
    size_t n;
    cJSON *v;
    ltd_err err;
    shared_path(&path, "%s", "tokenizer-vectors.json");
    if (ltd_read_file(path.data, 0, &text, &n, &err) != LTD_OK) fail_msg("%s", err.text);
    for (char *z = text; (z = strstr(z, "\\u0000"));) memcpy(z, "\\uf8fe", 6);
    if (ltd_json_parse(text, n, NULL, &v, &err) != LTD_OK) fail_msg("%s", err.text);
    ltd_free(text);
    ltd_buf_deinit(&path);
    return v;
}

/* A string of the vectors, its U+F8FE NUL again. */
static void string_of(const cJSON *v, ltd_buf *out)
{
    ltd_buf_clear(out);
    ltd_buf_str(out, "");
    for (const char *s = v->valuestring; *s;) {
        bool nul = strncmp(s, "\xEF\xA3\xBE", 3) == 0;
        ltd_buf_add(out, nul ? "" : s, 1);
        s += nul ? 3 : 1;
    }
}

static void case_text(const cJSON *c, ltd_buf *out) { string_of(ltd_json_get(c, "text"), out); }

static void check_ids(const tok *t, const ltd_buf *text, int flags, const cJSON *want)
{
    int32_t *ids;
    int64_t n;
    ltd_err err;
    if (tok_encode(t, text->data, text->len, flags, 0, &ids, &n, &err) != LTD_OK)
        fail_msg("%s: %s", text->data, err.text);
    bool same = n == cJSON_GetArraySize(want);
    int64_t i = 0;
    for (const cJSON *w = want->child; w && same; w = w->next, i++) same = w->valuedouble == ids[i];
    if (!same) {
        char *shown = cJSON_PrintUnformatted(want);
        fail_msg("\"%s\": not %s; the first that differs is at %lld of %lld", text->data, shown,
                 (long long)i - 1, (long long)n);
    }
    ltd_free(ids);
}

static void check_pieces(const tok *t, const ltd_buf *text, const cJSON *want)
{
    tok__work w;
    tok__pieces *p;
    size_t i = 0;
    ltd_buf piece = {0};
    tok__work_init(&w, t, TOK_PLAIN, 0, NULL);
    assert_int_equal(tok__pretok(&w, text->data, text->len, &p), LTD_OK);
    for (const cJSON *x = want->child; x; x = x->next, i++) {
        string_of(x, &piece);
        if (i >= p->n || p->v[i].len != piece.len ||
            memcmp(text->data + p->v[i].off, piece.data, piece.len) != 0)
            fail_msg("\"%s\": piece %zu is not \"%s\"", text->data, i, x->valuestring);
    }
    assert_int_equal(i, p->n);
    ltd_buf_deinit(&piece);
    tok__work_deinit(&w);
}

static void check_decode(const tok *t, const cJSON *ids, bool skip_special, const char *want, size_t n_want)
{
    int n = cJSON_GetArraySize(ids), i = 0;
    int32_t *v = ltd_calloc((size_t)n + 1, sizeof *v);
    ltd_buf b = {0};
    ltd_buf_str(&b, "");
    for (const cJSON *x = ids->child; x; x = x->next) v[i++] = (int32_t)x->valuedouble;
    tok_decode(t, v, n, skip_special, &b);
    if (b.len != n_want || memcmp(b.data, want, n_want) != 0) fail_msg("\"%s\" is not \"%s\"", b.data, want);
    ltd_buf_deinit(&b);
    ltd_free(v);
}

static void v3_vectors_give_their_ids_pieces_and_texts(void **state)
{
    (void)state;
    tok *t = load_shared("deepseek-v3");
    cJSON *root = vectors();
    const cJSON *v3 = ltd_json_get(root, "v3");
    ltd_buf text = {0};
    int n = 0;
    for (const cJSON *c = ltd_json_get(v3, "cases")->child; c; c = c->next, n++) {
        const cJSON *ids = ltd_json_get(c, "ids"), *pieces = ltd_json_get(c, "pieces");
        const cJSON *skipped = ltd_json_get(c, "decode_skip_special");
        case_text(c, &text);
        check_ids(t, &text, TOK_PLAIN, ids);
        if (pieces) check_pieces(t, &text, pieces);
        check_decode(t, ids, false, text.data, text.len);
        check_decode(t, ids, true, skipped ? skipped->valuestring : text.data,
                     skipped ? strlen(skipped->valuestring) : text.len);
    }
    assert_true(n > 25);
    for (const cJSON *c = ltd_json_get(v3, "decode")->child; c; c = c->next) {
        const char *plain = ltd_json_get(c, "text")->valuestring,
                   *skipped = ltd_json_get(c, "skip_special")->valuestring;
        check_decode(t, ltd_json_get(c, "ids"), false, plain, strlen(plain));
        check_decode(t, ltd_json_get(c, "ids"), true, skipped, strlen(skipped));
    }
    assert_int_equal(tok_get_info(t)->bos, 0);
    assert_int_equal(tok_get_info(t)->eos, 1);
    assert_true(tok_get_info(t)->add_bos && !tok_get_info(t)->add_eos);
    assert_non_null(tok_get_info(t)->chat_template);
    ltd_buf_deinit(&text);
    cJSON_Delete(root);
    tok_destroy(t);
}

static void v2_family_vectors_give_their_ids_and_pieces(void **state)
{
    (void)state;
    tok *t = load_shared("deepseek-llm");
    cJSON *root = vectors();
    const cJSON *v2 = ltd_json_get(root, "v2_family");
    ltd_buf text = {0};
    for (const cJSON *c = ltd_json_get(v2, "cases")->child; c; c = c->next) {
        const cJSON *with = ltd_json_get(c, "ids_with_byte_added_tokens"),
                    *pieces = ltd_json_get(c, "pieces");
        const char *name = ltd_json_get(c, "name")->valuestring;
        case_text(c, &text);
        /* The file has added tokens for single letters, the vectors were made without. */
        check_ids(t, &text, strstr(name, "special") ? TOK_PLAIN : TOK_NO_CONTROL, ltd_json_get(c, "ids"));
        if (with) check_ids(t, &text, TOK_PLAIN, with);
        if (pieces && !with) check_pieces(t, &text, pieces);
    }
    for (const cJSON *c = ltd_json_get(v2, "llama_cpp_cases")->child; c; c = c->next) {
        case_text(c, &text);
        check_ids(t, &text, TOK_PLAIN, ltd_json_get(c, "ids"));
    }
    ltd_buf_deinit(&text);
    cJSON_Delete(root);
    tok_destroy(t);
}

/* ------------------------------------------------------------------ our own vectors */

static tok *load_config(const cJSON *c)
{
    support_vocab vocab[64] = {{NULL, 0}};
    support_added added[16] = {{NULL, 0}};
    int n = 0;
    for (const cJSON *v = ltd_json_get(c, "vocab")->child; v; v = v->next)
        vocab[n++] = (support_vocab){v->string, (int32_t)v->valuedouble};
    n = 0;
    for (const cJSON *a = ltd_json_get(c, "added_tokens")->child; a; a = a->next)
        added[n++] = (support_added){.text = ltd_json_get(a, "content")->valuestring,
                                     .id = (int32_t)ltd_json_get(a, "id")->valuedouble,
                                     .special = cJSON_IsTrue(ltd_json_get(a, "special")),
                                     .lstrip = cJSON_IsTrue(ltd_json_get(a, "lstrip")),
                                     .rstrip = cJSON_IsTrue(ltd_json_get(a, "rstrip")),
                                     .single_word = cJSON_IsTrue(ltd_json_get(a, "single_word")),
                                     .normalized = cJSON_IsTrue(ltd_json_get(a, "normalized"))};
    char *pretok = cJSON_PrintUnformatted(ltd_json_get(c, "pre_tokenizer"));
    char *merges = cJSON_PrintUnformatted(ltd_json_get(c, "merges"));
    size_t len = strlen(merges);
    merges[len - 1] = 0; /* without its brackets */
    support_tok_opts o = {.vocab = vocab,
                          .added = added,
                          .pre_tokenizer = pretok,
                          .raw_merges = len > 2 ? merges + 1 : NULL,
                          .ignore_merges = cJSON_IsTrue(ltd_json_get(c, "ignore_merges"))};
    char *json = support_byte_tokenizer_json(&o);
    tok *t;
    ltd_err err;
    if (tok__load_text(json, strlen(json), NULL, 0, 0, &t, &err) != LTD_OK)
        fail_msg("%s: %s", pretok, err.text);
    ltd_free(json);
    cJSON_free(pretok);
    cJSON_free(merges);
    return t;
}

static void random_tokenizers_give_the_references_ids(void **state)
{
    (void)state;
    cJSON *root = load_json("tests/data/tokenizer_more.json");
    ltd_buf text = {0};
    int n = 0;
    for (const cJSON *c = ltd_json_get(root, "configs")->child; c; c = c->next) {
        tok *t = load_config(c);
        for (const cJSON *x = ltd_json_get(c, "cases")->child; x; x = x->next, n++) {
            case_text(x, &text);
            check_ids(t, &text, TOK_PLAIN, ltd_json_get(x, "ids"));
        }
        tok_destroy(t);
    }
    assert_true(n > 300);
    ltd_buf_deinit(&text);
    cJSON_Delete(root);
}

/* ------------------------------------------------------------------ merging against the obvious */

/* Lowest rank first, leftmost on equal ranks, by scanning everything each time. */
static int64_t merge_obviously(const tok *t, int32_t *ids, int64_t n)
{
    for (;;) {
        int64_t best = -1;
        const tok__merge *m = NULL;
        for (int64_t i = 0; i + 1 < n; i++) {
            uint64_t pair = (uint64_t)(uint32_t)ids[i] << 32 | (uint32_t)ids[i + 1];
            for (uint64_t k = 0; k <= t->merges_mask; k++) {
                const tok__merge *x = &t->merges[k];
                if (x->rank >= 0 && x->pair == pair && (!m || x->rank < m->rank)) best = i, m = x;
            }
        }
        if (!m) return n;
        ids[best] = m->id;
        memmove(ids + best + 1, ids + best + 2, (size_t)(n - best - 2) * sizeof *ids);
        n--;
    }
}

static void long_and_short_words_merge_as_the_obvious_way_does(void **state)
{
    (void)state;
    uint32_t x = 99;
#define NEXT(n) ((x = x * 1664525u + 1013904223u) >> 8) % (n)
    for (int round = 0; round < 60; round++) {
        char names[20][40], lines[20][80];
        support_vocab vocab[21] = {{NULL, 0}};
        const char *merges[21] = {NULL};
        const char *symbols[23] = {"a", "b", "c"};
        int n_sym = 3, n = 0;
        while (n < 20) {
            const char *a = symbols[NEXT((uint32_t)n_sym)], *b = symbols[NEXT((uint32_t)n_sym)];
            if (strlen(a) + strlen(b) > 16) continue;
            snprintf(names[n], sizeof names[n], "%s%s", a, b);
            bool known = false;
            for (int i = 0; i < n_sym; i++) known = known || strcmp(symbols[i], names[n]) == 0;
            if (known && (NEXT(4))) continue;
            snprintf(lines[n], sizeof lines[n], "%s %s", a, b);
            merges[n] = lines[n];
            if (!known) {
                vocab[n_sym - 3] = (support_vocab){names[n], 300 + n};
                symbols[n_sym++] = names[n];
            }
            n++;
        }
        char *json = support_byte_tokenizer_json(&(support_tok_opts){.vocab = vocab, .merges = merges});
        tok *t;
        ltd_err err;
        if (tok__load_text(json, strlen(json), NULL, 0, 0, &t, &err) != LTD_OK)
            fail_msg("round %d: %s", round, err.text);
        ltd_free(json);
        for (int k = 0; k < 12; k++) {
            char text[300];
            int32_t want[300], *got;
            int64_t n_want = 1 + NEXT(k & 1 ? 45u : 299u), n_got;
            for (int64_t i = 0; i < n_want; i++) want[i] = text[i] = (char)('a' + NEXT(k < 4 ? 1u : 3u));
            assert_int_equal(tok_encode(t, text, (size_t)n_want, 0, 0, &got, &n_got, &err), LTD_OK);
            n_want = merge_obviously(t, want, n_want);
            if (n_got != n_want || memcmp(got, want, (size_t)n_got * sizeof *got) != 0)
                fail_msg("round %d word %d", round, k);
            ltd_free(got);
        }
        tok_destroy(t);
    }
}

/* ------------------------------------------------------------------ round trips */

static uint32_t next_random(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

static void add_utf8(ltd_buf *b, uint32_t cp)
{
    char s[4];
    size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; cp >>= 6) s[i] = (char)(0x80 | (cp & 0x3F));
    s[0] = (char)(lead[n] | cp);
    ltd_buf_add(b, s, n);
}

/* ASCII, CJK, emoji, combining marks, controls, CRLF, long runs, anything. */
static void mixed_text(ltd_buf *b, size_t n, uint32_t seed)
{
    static const char *const words[] = {"The ",
                                        "don't ",
                                        "int main(void) {\r\n",
                                        "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c",
                                        "caf\xc3\xa9 ",
                                        "\xf0\x9f\x9a\x80",
                                        "\xe2\x9d\xa4\xef\xb8\x8f",
                                        "e\xcc\x81\xcc\xa3",
                                        "\r\n\r\n",
                                        "\t\t",
                                        "1234567890",
                                        "<\xef\xbd\x9cUser\xef\xbd\x9c>",
                                        "  "};
    uint32_t x = seed;
    while (b->len < n) {
        uint32_t r = next_random(&x) % 16, cp = 0;
        if (r < 8)
            ltd_buf_str(b, words[next_random(&x) % (sizeof words / sizeof words[0])]);
        else if (r < 10)
            cp = 0x20 + next_random(&x) % 0x5F;
        else if (r < 11)
            cp = next_random(&x) % 0x20;
        else if (r < 13)
            cp = 0x4E00 + next_random(&x) % 0x5000;
        else if (r < 14)
            cp = 0x300 + next_random(&x) % 0x1000;
        else
            cp = next_random(&x) % 0x110000;
        if (r >= 8 && !(cp >= 0xD800 && cp < 0xE000)) add_utf8(b, cp);
        if (next_random(&x) % 4000 == 0)
            for (uint32_t i = next_random(&x) % 2000; i > 0; i--) ltd_buf_str(b, r & 1 ? " " : "a");
    }
}

static void round_trip(const tok *t, const ltd_buf *b, int flags)
{
    int32_t *ids;
    int64_t n;
    ltd_err err;
    ltd_buf back = {0};
    if (tok_encode(t, b->data, b->len, flags, 0, &ids, &n, &err) != LTD_OK) fail_msg("%s", err.text);
    tok_decode(t, ids, n, false, &back);
    assert_int_equal(back.len, b->len);
    if (b->len) assert_memory_equal(back.data, b->data, b->len);
    ltd_buf_deinit(&back);
    ltd_free(ids);
}

static void a_megabyte_comes_back_as_it_went(const char *name, int flags)
{
    tok *t = load_shared(name);
    ltd_buf b = {0};
    mixed_text(&b, 1 << 20, 5);
    round_trip(t, &b, TOK_NO_CONTROL);
    round_trip(t, &b, flags);
    ltd_buf_deinit(&b);
    tok_destroy(t);
}

static void v3_round_trip_of_a_megabyte(void **state)
{
    (void)state;
    a_megabyte_comes_back_as_it_went("deepseek-v3", TOK_PLAIN);
}

static void llm_round_trip_of_a_megabyte(void **state)
{
    (void)state;
    /* Only without its added tokens: those for single letters decode to half characters, in the reference
     * too. */
    a_megabyte_comes_back_as_it_went("deepseek-llm", TOK_NO_CONTROL);
}

static void byte_tokenizer_round_trips_of_random_text(void **state)
{
    (void)state;
    static const char gpt2[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}";
    for (int k = 0; k < 2; k++) {
        char *json = support_byte_tokenizer_json(&(support_tok_opts){.pre_tokenizer = k ? gpt2 : NULL});
        tok *t;
        ltd_err err;
        if (tok__load_text(json, strlen(json), NULL, 0, 0, &t, &err) != LTD_OK) fail_msg("%s", err.text);
        ltd_free(json);
        for (uint32_t seed = 1; seed <= 300; seed++) {
            ltd_buf b = {0};
            mixed_text(&b, seed * 3, seed);
            round_trip(t, &b, seed & 1 ? TOK_PLAIN : TOK_NO_CONTROL);
            ltd_buf_deinit(&b);
        }
        tok_destroy(t);
    }
}

/* ------------------------------------------------------------------ time and threads */

/* Encodes n bytes of `unit` again and again, with `tail` behind them. */
static double encode_ms(const tok *t, const char *unit, const char *tail, size_t n)
{
    ltd_buf b = {0};
    int32_t *ids;
    int64_t n_ids;
    ltd_err err;
    while (b.len < n) ltd_buf_str(&b, unit);
    ltd_buf_str(&b, tail);
    int64_t from = ltd_now_us();
    if (tok_encode(t, b.data, b.len, 0, 0, &ids, &n_ids, &err) != LTD_OK) fail_msg("%s: %s", unit, err.text);
    double took = (double)(ltd_now_us() - from) / 1e3;
    ltd_free(ids);
    ltd_buf_deinit(&b);
    return took;
}

/* 512 KiB take less than three times what 256 KiB take: the best of both, measured until it shows. */
static void takes_linear_time(const tok *t, const char *unit, const char *tail)
{
    double quarter = 1e9, half = 1e9;
    for (int round = 0; round < 8; round++) {
        double q = encode_ms(t, unit, tail, 1 << 18), h = encode_ms(t, unit, tail, 1 << 19);
        if (q < quarter) quarter = q;
        if (h < half) half = h;
        if (round > 0 && half < 3 * quarter) return;
    }
    fail_msg("a run of \"%s\" and \"%s\": 256 KiB %.1f ms, 512 KiB %.1f ms", unit, tail, quarter, half);
}

static void runs_take_linear_time(const char *name)
{
    static const char *const units[] = {"a",
                                        " ",
                                        "\n",
                                        "a ",
                                        "1",
                                        "\xef\xbc\x91",
                                        "!",
                                        "\xe4\xb8\x80",
                                        "\x01",
                                        "\xcc\x81",
                                        "\xc2\x85",
                                        " \n",
                                        "\xf0\x9f\x9a\x80",
                                        "ab\xe4\xb8\x80 1!\n",
                                        "\xe3\x80\x80"};
    tok *t = load_shared(name);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) takes_linear_time(t, units[i], "");
    /* Spaces, then something that is none: the step for trailing spaces fails at each of them. */
    takes_linear_time(t, " ", "\xe4\xb8\x80");
    takes_linear_time(t, " ", "1");
    takes_linear_time(t, " ", "\x01");
    tok_destroy(t);
}

static void d05_v3_runs_take_linear_time(void **state)
{
    (void)state;
    runs_take_linear_time("deepseek-v3");
}

static void d05_llm_runs_take_linear_time(void **state)
{
    (void)state;
    runs_take_linear_time("deepseek-llm");
}

static void *encode_much(void *arg)
{
    const tok *t = arg;
    for (uint32_t seed = 1; seed < 20; seed++) {
        ltd_buf b = {0}, back = {0};
        int32_t *ids;
        int64_t n;
        mixed_text(&b, 3000, seed);
        if (tok_encode(t, b.data, b.len, seed & 3, 0, &ids, &n, NULL) != LTD_OK) return arg;
        tok_decode(t, ids, n, false, &back);
        bool same = back.len == b.len && memcmp(back.data, b.data, b.len) == 0;
        ltd_free(ids);
        ltd_buf_deinit(&b);
        ltd_buf_deinit(&back);
        if (!same) return arg;
    }
    return NULL;
}

static void four_threads_share_one_tokenizer(void **state)
{
    (void)state;
    static const char pretok[] =
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
        "\"\\\\p{N}{1,3}|\\\\s+$\"},\"behavior\":\"MergedWithNext\",\"invert\":false},"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}]}";
    const support_vocab vocab[] = {{"aa", 300}, {"aaaa", 301}, {NULL, 0}};
    const char *const merges[] = {"a a", "aa aa", NULL};
    char *json = support_byte_tokenizer_json(
        &(support_tok_opts){.pre_tokenizer = pretok, .vocab = vocab, .merges = merges});
    tok *t;
    ltd_err err;
    pthread_t threads[4];
    if (tok__load_text(json, strlen(json), NULL, 0, 0, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_much, t), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    ltd_free(json);
    tok_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v3_vectors_give_their_ids_pieces_and_texts),
        cmocka_unit_test(v2_family_vectors_give_their_ids_and_pieces),
        cmocka_unit_test(random_tokenizers_give_the_references_ids),
        cmocka_unit_test(long_and_short_words_merge_as_the_obvious_way_does),
        cmocka_unit_test(v3_round_trip_of_a_megabyte),
        cmocka_unit_test(llm_round_trip_of_a_megabyte),
        cmocka_unit_test(byte_tokenizer_round_trips_of_random_text),
        cmocka_unit_test(d05_v3_runs_take_linear_time),
        cmocka_unit_test(d05_llm_runs_take_linear_time),
        cmocka_unit_test(four_threads_share_one_tokenizer),
    };
    return cmocka_run_group_tests_name("tokenizer vectors", tests, NULL, NULL);
}
