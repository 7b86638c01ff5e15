/* test_config_status.c - status codes, errors, checks, memory, buffers, UTF-8, number literals, files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/config.h"

/* Runs fn in a child with its stderr in a pipe; returns the signal that ended it (0 = none). */
static int ends_by(void (*fn)(void), char *said, size_t cap)
{
    int p[2];
    assert_int_equal(pipe(p), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(p[1], 2);
        close(p[0]);
        fn();
        _exit(0);
    }
    close(p[1]);
    size_t n = 0;
    ssize_t r;
    while (n + 1 < cap && (r = read(p[0], said + n, cap - 1 - n)) > 0) n += (size_t)r;
    said[n] = '\0';
    close(p[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void status_names_and_texts_are_those_of_the_map(void **state)
{
    (void)state;
    assert_string_equal(ltd_status_text(LTD_FULL), "no room now");
    assert_string_equal(ltd_status_name(LTD_FULL), "LTD_FULL");
    assert_string_equal(ltd_status_name(LTD_OK), "LTD_OK");
    assert_non_null(ltd_status_text((ltd_status)-999));
    assert_true(ltd_version[0] && ltd_build_id[0]);
}

static void fail_writes_one_line_and_returns_the_status(void **state)
{
    (void)state;
    ltd_err err;
    assert_int_equal(ltd_fail(&err, LTD_IO, "a\nb %d\x1b[0m", 5), LTD_IO);
    assert_string_equal(err.text, "a?b 5?[0m");
    assert_int_equal(ltd_fail(&err, LTD_CORRUPT, "x: %s", err.text),
                     LTD_CORRUPT); /* its own text as argument */
    assert_string_equal(err.text, "x: a?b 5?[0m");
    assert_int_equal(ltd_fail(NULL, LTD_FULL, "nobody asks"), LTD_FULL);
}

static void fail_cuts_between_characters(void **state)
{
    (void)state;
    for (int pad = 0; pad < 4; pad++) {
        char text[3000];
        ltd_err err;
        memset(text, 'x', (size_t)pad);
        for (size_t i = (size_t)pad; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xE2\x82\xAC", 4);
        ltd_fail(&err, LTD_INVALID, "%s", text);
        size_t n = strlen(err.text);
        assert_true(n >= sizeof err.text - 4);
        for (size_t i = 0; i < n;) {
            int len = ltd_utf8_len(err.text + i, n - i);
            assert_true(len > 0);
            i += (size_t)len;
        }
    }
}

static void failing_check(void) { LTD_CHECK(1 + 1 == 3, "state=%d", 42); }

static void check_failed_says_where_and_aborts(void **state)
{
    (void)state;
    char said[4096];
    assert_int_equal(ends_by(failing_check, said, sizeof said), SIGABRT);
    assert_non_null(strstr(said, "test_config_status.c:"));
    assert_non_null(strstr(said, "1 + 1 == 3"));
    assert_non_null(strstr(said, "state=42"));
}

/* ---------------------------------------------------------------- memory */

static void alloc_gives_what_was_asked(void **state)
{
    (void)state;
    char *p = ltd_alloc(0);
    assert_non_null(p);
    p = ltd_realloc(p, 100);
    memset(p, 1, 100);
    ltd_free(p);
    int *z = ltd_calloc(100, sizeof *z);
    for (int i = 0; i < 100; i++) assert_int_equal(z[i], 0);
    ltd_free(z);
    for (size_t align = 1; align <= 4096; align *= 2) {
        void *a = ltd_alloc_aligned(align, 7);
        assert_int_equal((uintptr_t)a % align, 0);
        ltd_free(a);
    }
    char *s = ltd_strdup("abc");
    assert_string_equal(s, "abc");
    ltd_free(s);
    ltd_free(NULL);
}

static void calloc_too_large(void) { ltd_free(ltd_calloc(SIZE_MAX / 2, 3)); }

static void calloc_when_product_overflows_dies(void **state)
{
    (void)state;
    char said[4096];
    assert_int_equal(ends_by(calloc_too_large, said, sizeof said), SIGABRT);
}

#ifdef LTD_DEBUG
static void guarded_alloc(void)
{
    ltd_alloc_guard(true);
    ltd_alloc_guard(true);
    ltd_alloc_guard(false);
    ltd_free(ltd_alloc(5));
}
static void guarded_realloc(void)
{
    void *p = ltd_alloc(5);
    ltd_alloc_guard(true);
    ltd_free(ltd_realloc(p, 10));
}
#endif

static void guard_when_on_makes_allocation_die_in_debug(void **state)
{
    (void)state;
#ifdef LTD_DEBUG
    char said[4096];
    assert_int_equal(ends_by(guarded_alloc, said, sizeof said), SIGABRT);
    assert_non_null(strstr(said, "none may happen"));
    assert_int_equal(ends_by(guarded_realloc, said, sizeof said), SIGABRT);
#endif
    ltd_alloc_guard(true);
    ltd_free(NULL);
    ltd_alloc_guard(false);
    ltd_free(ltd_alloc(5));
}

/* ---------------------------------------------------------------- buffers and UTF-8 */

static uint64_t fnv(uint64_t h, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h;
}

/* As Python's bytes.decode("utf-8", "replace"). */
static void replace_bad(ltd_buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len = ltd_utf8_len(s + i, n - i);
        if (len > 0)
            ltd_buf_add(out, s + i, (size_t)len);
        else
            ltd_buf_str(out, "\xEF\xBF\xBD");
        i += len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;
    }
}

static void utf8_len_agrees_with_python_on_all_short_strings_of_boundary_bytes(void **state)
{
    (void)state;
    static const unsigned char alpha[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0,
                                          0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec,
                                          0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};
    enum { N = sizeof alpha };
    uint64_t h = 0xcbf29ce484222325u;
    ltd_buf out = {0};
    for (int n = 1; n <= 4; n++) {
        int all = n == 1 ? N : n == 2 ? N * N : n == 3 ? N * N * N : N * N * N * N;
        for (int k = 0; k < all; k++) {
            char s[4];
            for (int i = n - 1, rest = k; i >= 0; i--, rest /= N) s[i] = (char)alpha[rest % N];
            ltd_buf_clear(&out);
            replace_bad(&out, s, (size_t)n);
            h = fnv(h, out.data, out.len);
        }
    }
    ltd_buf_deinit(&out);
    assert_true(h == 0xa937093d145c09cdu); /* itertools.product over the same bytes, decoded by Python 3.11 */
}

static void json_str_replaces_maximal_bad_parts(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"c328", "efbfbd28"},
        {"e282", "efbfbd"},
        {"e28228a1", "efbfbd28efbfbd"},
        {"f0808080", "efbfbdefbfbdefbfbdefbfbd"},
        {"f09f98", "efbfbd"},
        {"f09f9841", "efbfbd41"},
        {"eda080", "efbfbdefbfbdefbfbd"},
        {"f4908080", "efbfbdefbfbdefbfbdefbfbd"},
        {"c0af", "efbfbdefbfbd"},
        {"f880808080", "efbfbdefbfbdefbfbdefbfbdefbfbd"},
        {"41e282ac42", "41e282ac42"},
        {"f48fbfbf", "f48fbfbf"},
        {"e1a0c0f1", "efbfbdefbfbdefbfbd"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char in[32], hex[128] = "";
        size_t n = strlen(cases[c].in) / 2;
        for (size_t i = 0; i < n; i++) {
            unsigned v;
            sscanf(cases[c].in + 2 * i, "%2x", &v);
            in[i] = (char)v;
        }
        ltd_buf b = {0};
        ltd_buf_json_str(&b, in, n);
        for (size_t i = 1; i + 1 < b.len; i++) sprintf(hex + 2 * (i - 1), "%02x", (unsigned char)b.data[i]);
        assert_string_equal(hex, cases[c].out);
        ltd_buf_deinit(&b);
    }
}

static void json_str_escapes_and_comes_back(void **state)
{
    (void)state;
    char all[0x7f];
    for (int i = 0; i < 0x7f; i++) all[i] = (char)(i + 1);
    ltd_buf b = {0};
    ltd_buf_json_str(&b, "a\"\\\n\x01", 5);
    assert_string_equal(b.data, "\"a\\\"\\\\\\n\\u0001\"");
    ltd_buf_clear(&b);
    ltd_buf_json_str(&b, all, sizeof all);
    cJSON *doc = NULL;
    ltd_err err;
    assert_int_equal(ltd_json_parse(b.data, b.len, NULL, &doc, &err), LTD_OK);
    assert_memory_equal(doc->valuestring, all, sizeof all);
    cJSON_Delete(doc);
    ltd_buf_deinit(&b);
}

static void buf_grows_and_stays_terminated(void **state)
{
    (void)state;
    ltd_buf b = {0};
    for (int i = 0; i < 1000; i++) {
        ltd_buf_fmt(&b, "%d,", i);
        assert_int_equal(strlen(b.data), b.len);
    }
    char big[500];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    size_t before = b.len;
    ltd_buf_fmt(&b, "%s|%s", big, big);
    assert_int_equal(b.len, before + 2 * (sizeof big - 1) + 1);
    ltd_buf_clear(&b);
    assert_string_equal(b.data, "");
    ltd_buf_deinit(&b);
    ltd_buf_deinit(&b);
}

/* ---------------------------------------------------------------- numbers */

static void digits_of(double v, char out[32])
{
    ltd_buf b = {0};
    size_t n = 0;
    ltd_buf_json_num(&b, v);
    assert_true(strtod(b.data, NULL) == v);
    for (const char *p = b.data; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9' && (n || *p != '0')) out[n++] = *p;
    while (n && out[n - 1] == '0') n--;
    out[n] = '\0';
    ltd_buf_deinit(&b);
}

static void json_num_has_as_few_digits_as_python(void **state)
{
    (void)state;
    char text[32];
    uint64_t h = 0xcbf29ce484222325u, x = 12345;
    for (int e = -1074; e < 1024; e++) {
        digits_of(ldexp(1.0, e), text);
        h = fnv(fnv(h, text, strlen(text)), "\n", 1);
    }
    assert_true(h == 0x8a407297c3c1eba6u);
    h = 0xcbf29ce484222325u;
    for (int n = 0; n < 20000;) {
        double v;
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(&v, &x, sizeof v);
        if (!isfinite(v)) continue;
        digits_of(v, text);
        h = fnv(fnv(h, text, strlen(text)), "\n", 1);
        n++;
    }
    assert_true(h == 0xf18a3209f0753631u);
}

static void json_num_writes_json(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *text;
    } cases[] = {{0, "0"},
                 {-0.0, "-0"},
                 {1, "1"},
                 {-3, "-3"},
                 {0.1, "0.1"},
                 {1e22, "1e+22"},
                 {5e-324, "5e-324"},
                 {1.5, "1.5"},
                 {NAN, "null"},
                 {INFINITY, "null"},
                 {1e15, "1000000000000000"},
                 {-0.5, "-0.5"},
                 {-INFINITY, "null"},
                 {100, "100"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ltd_buf b = {0};
        cJSON *doc = NULL;
        ltd_buf_json_num(&b, cases[i].v);
        assert_string_equal(b.data, cases[i].text);
        assert_int_equal(ltd_json_parse(b.data, b.len, NULL, &doc, NULL), LTD_OK);
        cJSON_Delete(doc);
        ltd_buf_deinit(&b);
    }
}

/* ---------------------------------------------------------------- files, clocks */

static void read_file_tells_what_is_wrong(void **state)
{
    (void)state;
    char *data = NULL, path[] = "/tmp/ltd-test-XXXXXX";
    size_t len;
    ltd_err err;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "ab\0cd", 5), 5);
    close(fd);
    assert_int_equal(ltd_read_file(path, 5, &data, &len, &err), LTD_OK);
    assert_int_equal(len, 5);
    assert_memory_equal(data, "ab\0cd", 6);
    ltd_free(data);
    assert_int_equal(ltd_read_file(path, 4, &data, &len, &err), LTD_TOO_LARGE);
    assert_non_null(strstr(err.text, path));
    unlink(path);
    assert_int_equal(ltd_read_file(path, 0, &data, &len, &err), LTD_NOT_FOUND);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(ltd_read_file("/tmp", 0, &data, &len, &err), LTD_IO);
    assert_non_null(strstr(err.text, "folder"));
}

static void clocks_go_on(void **state)
{
    (void)state;
    int64_t a = ltd_now_us();
    usleep(2000);
    assert_in_range(ltd_now_us() - a, 1500, 10000000);
    assert_true(ltd_unix_s() > 1700000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_names_and_texts_are_those_of_the_map),
        cmocka_unit_test(fail_writes_one_line_and_returns_the_status),
        cmocka_unit_test(fail_cuts_between_characters),
        cmocka_unit_test(check_failed_says_where_and_aborts),
        cmocka_unit_test(alloc_gives_what_was_asked),
        cmocka_unit_test(calloc_when_product_overflows_dies),
        cmocka_unit_test(guard_when_on_makes_allocation_die_in_debug),
        cmocka_unit_test(utf8_len_agrees_with_python_on_all_short_strings_of_boundary_bytes),
        cmocka_unit_test(json_str_replaces_maximal_bad_parts),
        cmocka_unit_test(json_str_escapes_and_comes_back),
        cmocka_unit_test(buf_grows_and_stays_terminated),
        cmocka_unit_test(json_num_has_as_few_digits_as_python),
        cmocka_unit_test(json_num_writes_json),
        cmocka_unit_test(read_file_tells_what_is_wrong),
        cmocka_unit_test(clocks_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
