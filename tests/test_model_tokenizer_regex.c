/* test_model_tokenizer_regex - patterns written for Oniguruma: what they must match (measured there), what is
 * refused, patterns that run away, and a system that allows no JIT. */
#include "model/tokenizer_private.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/byte_tokenizer.h"

/* The BYTE tokenizer with one Split step. */
static ltd_status load_split(const char *pattern, const char *behavior, bool invert, tok **t, ltd_err *err)
{
    ltd_buf b = {0};
    ltd_buf_str(&b, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    ltd_buf_json_str(&b, pattern, strlen(pattern));
    ltd_buf_fmt(&b,
                "},\"behavior\":\"%s\",\"invert\":%s},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                "\"use_regex\":false}]}",
                behavior, invert ? "true" : "false");
    char *json = support_byte_tokenizer_json(&(support_tok_opts){.pre_tokenizer = b.data});
    ltd_status st = tok__load_text(json, strlen(json), NULL, 0, 0, t, err);
    ltd_free(json);
    ltd_buf_deinit(&b);
    return st;
}

/* The pieces of text with | between them. */
static void splits(const char *pattern, const char *behavior, bool invert, const char *text, const char *want)
{
    tok *t;
    ltd_err err;
    tok__work w;
    tok__pieces *p;
    ltd_buf got = {0};
    if (load_split(pattern, behavior, invert, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    tok__work_init(&w, t, TOK_PLAIN, 0, &err);
    if (tok__pretok(&w, text, strlen(text), &p) != LTD_OK) fail_msg("%s: %s", pattern, err.text);
    ltd_buf_str(&got, "");
    for (size_t i = 0; i < p->n; i++) {
        if (i) ltd_buf_str(&got, "|");
        ltd_buf_add(&got, text + p->v[i].off, p->v[i].len);
    }
    if (strcmp(got.data, want) != 0) fail_msg("%s: \"%s\", not \"%s\"", pattern, got.data, want);
    ltd_buf_deinit(&got);
    tok__work_deinit(&w);
    tok_destroy(t);
}

static void behaviors_cut_as_measured(void **state)
{
    (void)state;
    static const struct {
        const char *behavior;
        bool invert;
        const char *want;
    } c[] = {
        {"Isolated", false, "x|a|x|x|b|yy|yy|x|c|x"},
        {"Isolated", true, "x|a|x|x|b|yy|yy|x|c|x"},
        {"Removed", false, "a|b|c"},
        {"Removed", true, "x|x|x|yy|yy|x|x"},
        {"MergedWithPrevious", false, "x|ax|x|byy|yy|x|cx"},
        {"MergedWithPrevious", true, "xa|x|xb|yy|yy|xc|x"},
        {"MergedWithNext", false, "xa|x|xb|yy|yy|xc|x"},
        {"MergedWithNext", true, "x|ax|x|byy|yy|x|cx"},
        {"Contiguous", false, "x|a|xx|b|yyyyx|c|x"},
        {"Contiguous", true, "x|a|xx|b|yyyyx|c|x"},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
        splits("x|yy", c[i].behavior, c[i].invert, "xaxxbyyyyxcx", c[i].want);
}

static void patterns_mean_what_oniguruma_means(void **state)
{
    (void)state;
    static const char *const c[][3] = {
        {"\\s+$", "a \n b  ", "a| |\n b|  "}, /* $ is the end of every line */
        {"\\s+$", "  \n\n b", "  \n|\n b"},
        {"\\s+$", "a \n", "a| \n"},
        {"^b", "a\nb\nb", "a\n|b|\n|b"},
        {"^", "a\nb\n", "a\n|b\n"},
        {"a.b", "a\rb a\nb", "a\rb| a\nb"},
        {"x*", "abxxc", "a|b|xx|c"},
        {"\\s", "\u180e\xC2\x85\u200b\x1c\ufeff", "\u180e|\xC2\x85|\u200b\x1c\ufeff"},
        {"\\w+", "a_b-c\u0301d\u200d\u203f\u00b2\u24b6", "a_b|-|c\u0301d|\u200d|\u203f\u00b2\u24b6"},
        {"[\\w]+", "a\u00b2", "a|\u00b2"}, /* in a class it does not count superscripts */
        {"\\h+", "xa0Fg h", "x|a0F|g h"},
        {"\\p{Han}+", "a\u6f22\u5b57\u3001\u3005\u3007\u30fc", "a|\u6f22\u5b57|\u3001|\u3005\u3007|\u30fc"},
        {"\\p{Letter}+", "ab1", "ab|1"},
        {"\\p{S}", "a\U0001FAE8b", "a|\U0001FAE8|b"}, /* younger than the Unicode of some PCRE2 */
        {"[^\\p{S}]+", "a\U0001FAE8b", "a|\U0001FAE8|b"},
        {"a{,2}", "aaaaaa", "aa|aa|aa"},
        {"a++b|a", "aab", "aab"},
        {"[^\\S\\n]+", "a \t\n b", "a| \t|\n| |b"},
        {"[\\w-]+", "a-b.c", "a-b|.|c"},
        {"[a-c\\-x]+", "ab-xd", "ab-x|d"},
        {"[\r\n]", "a\r\nb", "a|\r|\n|b"},
        {"(?i:'s|'t)", "a'S 'T '\u017f", "a|'S| |'T| |'\u017f"},
        {"\\u4e00|\\x{4e8c}|\\x41", "A\u4e00\u4e8cB", "A|\u4e00|\u4e8c|B"},
        {"[\u4e00-\u9fa5]+", "a\u4e00\u4e8cB", "a|\u4e00\u4e8c|B"},
        {"]|}", "a]b}c", "a|]|b|}|c"},
        {"{a", "b{ac", "b|{a|c"},
        {"a # b", "xa # bx", "x|a # b|x"},
        {"\\v", "a\vb\nc", "a|\v|b\nc"},
        {"\xc3\xa9", "a\u00e9b", "a|\u00e9|b"},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) splits(c[i][0], "Isolated", false, c[i][1], c[i][2]);
}

static void patterns_that_may_mean_something_else_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "a{2}+",    "a{2}?",  "[a[bc]]",     "[a&&b]",  "[[:alpha:]]", "(?m:a)",
        "(?i)a",    "(?x:a)", "(?<n>a)",     "\\bfoo",  "\\Gx",        "\\Kx",
        "\\R",      "\\X",    "\\1",         "\\0",     "\\pL",        "\\p{Alpha_Nonsense}",
        "[\\W]",    "[\\H]",  "[a-\\d]",     "[a-\\s]", "\\xe9",       "\\x",
        "\\u12",    "\\x{",   "\\x{110000}", "\\ud800", "(*ACCEPT)",   "(?#comment)",
        "(?P<n>a)", "\\k<n>", "[a",          "(a",      "a)",          "*a",
        "a\\",      "[z-a]",  "\\N{U+41}",   "\\C",     "[a-b-c]x(?",  "\\p{}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tok *t;
        ltd_err err = {{0}};
        ltd_status st = load_split(bad[i], "Isolated", false, &t, &err);
        if (st != LTD_UNSUPPORTED) fail_msg("%s: %s", bad[i], ltd_status_name(st));
        if (!strstr(err.text, "pre_tokenizer[0]")) fail_msg("%s: %s", bad[i], err.text);
    }
}

static void a_pattern_that_runs_away_is_an_error_in_time(void **state)
{
    (void)state;
    static const char *const patterns[] = {"(a+)+b", "(a|aa)+$x", "(?:a?){40}a{40}b", "(.*a){20}b"};
    char text[3000];
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        tok *t;
        ltd_err err;
        int32_t *ids;
        int64_t n, from = ltd_now_us();
        if (load_split(patterns[i], "Isolated", false, &t, &err) != LTD_OK) fail_msg("%s", err.text);
        ltd_status st = tok_encode(t, text, sizeof text, 0, 0, &ids, &n, &err);
        if (st == LTD_OK)
            ltd_free(ids); /* an engine that sees the missing b at once may say so */
        else
            assert_int_equal(st, LTD_INVALID);
        assert_true(ltd_now_us() - from < 20000000);
        tok_destroy(t);
    }
}

/* A group repeated over a megabyte needs more than the JIT's stack: the interpreter finishes it. */
static void groups_repeat_over_long_text(void **state)
{
    (void)state;
    tok *t;
    ltd_err err;
    int32_t *ids;
    int64_t n;
    size_t len = 1 << 20;
    char *text = ltd_alloc(len);
    for (size_t i = 0; i < len; i++) text[i] = i & 1 ? 'b' : 'a';
    if (load_split("(?:ab|cd)+", "Isolated", false, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    if (tok_encode(t, text, len, 0, 0, &ids, &n, &err) != LTD_OK) fail_msg("%s", err.text);
    assert_int_equal(n, len);
    ltd_free(ids);
    ltd_free(text);
    tok_destroy(t);
}

#ifndef PR_SET_MDWE
#define PR_SET_MDWE              65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

/* In a child: no memory may be writable and executable, as under systemd's MemoryDenyWriteExecute. */
static void without_jit_the_interpreter_gives_the_same(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0L, 0L, 0L) != 0) _exit(77);
        tok *t;
        ltd_err err;
        size_t jit = 1;
        if (load_split(" ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", "Isolated", false, &t, &err) != LTD_OK)
            _exit(2);
        if (pcre2_pattern_info(t->steps[0].re, PCRE2_INFO_JITSIZE, &jit) != 0) _exit(3);
        tok_destroy(t);
        if (jit) _exit(77);
        splits(" ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", "Isolated", false, "a   b !! ", "a|  | |b| !!| ");
        groups_repeat_over_long_text(NULL);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skipped: this kernel cannot deny writable and executable memory\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            without_jit_the_interpreter_gives_the_same), /* before the JIT has memory to pass on */
        cmocka_unit_test(behaviors_cut_as_measured),
        cmocka_unit_test(patterns_mean_what_oniguruma_means),
        cmocka_unit_test(patterns_that_may_mean_something_else_are_refused),
        cmocka_unit_test(a_pattern_that_runs_away_is_an_error_in_time),
        cmocka_unit_test(groups_repeat_over_long_text),
    };
    return cmocka_run_group_tests_name("tokenizer patterns", tests, NULL, NULL);
}
