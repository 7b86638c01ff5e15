/* bench_tokenizer.c - loading and encoding with the real DeepSeek vocabularies.
 * Prints load time, MB/s of mixed text, and for long runs of one character the times of 256 KiB and 512 KiB,
 * whose ratio shows whether encoding is linear. The files are looked for in $LTD_SHARED/data or
 * ../shared/data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"

/* Deterministic text: English, code, CJK, accents, digits, emoji, white space. */
static void mixed_text(ltd_buf *b, size_t n)
{
    static const char *const parts[] = {
        "The quick brown fox jumps over the lazy dog. ",
        "It's what they'd have said, isn't it?\n",
        "for (int i = 0; i < 10; i++) {\n    sum += a[i] * 3.14159;\n}\n",
        "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c\xef\xbc\x81",
        "caf\xc3\xa9 na\xc3\xafve F\xc3\xbchrer ",
        "In 1984, about 1,234,567 people; ",
        "\xf0\x9f\x9a\x80 \xe2\x9d\xa4\xef\xb8\x8f ",
        "\tkey: \"value\",\r\n",
        "internationalization of uncharacteristically long words ",
        "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82, \xd0\xbc\xd0\xb8\xd1\x80! "};
    uint32_t x = 12345;
    while (b->len < n) {
        x = x * 1664525u + 1013904223u;
        ltd_buf_str(b, parts[(x >> 16) % (sizeof parts / sizeof parts[0])]);
    }
}

static double encode_s(const tok *t, const char *s, size_t n, int64_t *n_ids)
{
    int32_t *ids;
    ltd_err err;
    int64_t from = ltd_now_us();
    ltd_status st = tok_encode(t, s, n, TOK_PLAIN, 0, &ids, n_ids, &err);
    double took = (double)(ltd_now_us() - from) / 1e6;
    LTD_CHECK(st == LTD_OK, "%s", err.text);
    ltd_free(ids);
    return took;
}

static void runs(const tok *t)
{
    static const char *const units[] = {"a",
                                        " ",
                                        "\n",
                                        "a ",
                                        "\xef\xbc\x91",
                                        "1",
                                        " \n",
                                        "!",
                                        "\xe4\xb8\x80",
                                        "\x01",
                                        "\xcc\x81",
                                        "ab\xe4\xb8\x80 1!\n",
                                        "\xf0\x9f\x9a\x80"};
    int64_t n_ids;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        double took[2];
        for (int k = 0; k < 2; k++) {
            ltd_buf b = {0};
            while (b.len < (size_t)(k + 1) << 18) ltd_buf_str(&b, units[i]);
            took[k] = encode_s(t, b.data, b.len, &n_ids);
            ltd_buf_deinit(&b);
        }
        printf("    run %-2zu  256 KiB %7.1f ms  512 KiB %7.1f ms  ratio %.2f\n", i, took[0] * 1e3,
               took[1] * 1e3, took[1] / took[0]);
    }
}

int main(void)
{
    const char *shared = getenv("LTD_SHARED");
    static const char *const names[] = {"deepseek-v3", "deepseek-llm"};
    for (int i = 0; i < 2; i++) {
        char dir[1024];
        tok *t;
        ltd_err err;
        ltd_buf b = {0}, out = {0};
        int64_t n_ids, from = ltd_now_us();
        snprintf(dir, sizeof dir, "%s/data/%s", shared ? shared : "../shared", names[i]);
        if (tok_load(dir, 0, &t, &err) != LTD_OK) {
            printf("%s: skipped: %s\n", names[i], err.text);
            continue;
        }
        printf("%s: load %.3f s\n", names[i], (double)(ltd_now_us() - from) / 1e6);
        mixed_text(&b, 8 << 20);
        double best = 1e9;
        for (int k = 0; k < 3; k++) {
            double s = encode_s(t, b.data, b.len, &n_ids);
            if (s < best) best = s;
        }
        printf("    encode %.1f MB/s, %.2f million tokens/s\n", (double)b.len / 1e6 / best,
               (double)n_ids / 1e6 / best);
        int32_t *ids;
        /* Without added tokens: those of deepseek-llm for single letters decode to half characters. */
        LTD_CHECK(tok_encode(t, b.data, b.len, TOK_NO_CONTROL, 0, &ids, &n_ids, &err) == LTD_OK, "%s",
                  err.text);
        from = ltd_now_us();
        tok_decode(t, ids, n_ids, false, &out);
        printf("    decode %.1f MB/s\n", (double)out.len / (double)(ltd_now_us() - from));
        LTD_CHECK(out.len == b.len && memcmp(out.data, b.data, b.len) == 0, "the text came back changed");
        runs(t);
        ltd_free(ids);
        ltd_buf_deinit(&b);
        ltd_buf_deinit(&out);
        tok_destroy(t);
    }
    return 0;
}
