/* test_config_json.c - strict JSON: what is refused and where, exact integers, linear time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"

static ltd_err err;

/* A copy of exactly len bytes, so that the address sanitizer sees a read past the end. */
static ltd_status parse_n(const char *text, size_t len, const ltd_json_limits *limits, cJSON **out)
{
    char *copy = malloc(len ? len : 1);
    memcpy(copy, text, len);
    err.text[0] = '\0';
    *out = NULL;
    ltd_status st = ltd_json_parse(copy, len, limits, out, &err);
    free(copy);
    return st;
}

static ltd_status parse(const char *text, cJSON **out) { return parse_n(text, strlen(text), NULL, out); }

static void accepts(const char *text)
{
    cJSON *doc;
    if (parse(text, &doc) != LTD_OK) fail_msg("refused: %s: %s", text, err.text);
    assert_non_null(doc);
    cJSON_Delete(doc);
}

static void refuses(const char *text, size_t len, const char *reason)
{
    cJSON *doc;
    if (parse_n(text, len, NULL, &doc) != LTD_CORRUPT) fail_msg("accepted: %.*s", (int)len, text);
    assert_null(doc);
    if (!strstr(err.text, reason))
        fail_msg("%.*s: \"%s\" does not say \"%s\"", (int)len, text, err.text, reason);
    assert_non_null(strstr(err.text, "line "));
    assert_non_null(strstr(err.text, "column "));
}

static void parse_of_valid_text_accepts(void **state)
{
    (void)state;
    static const char *const good[] = {
        "null",
        "true",
        "false",
        "0",
        "-0",
        "0.5",
        "1e5",
        "1E+5",
        "1e-999",
        "-1.25e-3",
        "\"\"",
        "[]",
        "{}",
        " [ ] ",
        "\t{\r\n\"a\" : [ 1 , 2 , {} ] , \"b\" : null }\n",
        "\"\\u00e9\\uD83D\\uDE00\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\xF0\x9F\x98\x80 \xE2\x82\xAC \x7f\"",
        "{\"\":1,\" \":2}",
        "{\"a\":1,\"A\":2}",
        "[[[[[[]]]]]]",
        "0.1000000000000000055511151231257827021181583404541015625000000000000000000000000",
        "[1,[2],{\"a\":{\"a\":{}}}]",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) accepts(good[i]);
}

static void parse_of_invalid_text_refuses_with_a_reason(void **state)
{
    (void)state;
    static const struct {
        const char *text, *reason;
    } bad[] = {
        {"", "ends where a value"},
        {"  ", "ends where a value"},
        {"{", "closing brace"},
        {"{:", "expected a key"},
        {"[", "ends where a value"},
        {"[1", "closing bracket"},
        {"[1,", "ends where a value"},
        {"[1,]", "not a value"},
        {"{\"a\"", "expected ':'"},
        {"{\"a\":", "ends where a value"},
        {"{\"a\":1", "closing brace"},
        {"{\"a\":1,}", "expected a key"},
        {"{\"a\" 1}", "expected ':'"},
        {"{a:1}", "expected a key"},
        {"{'a':1}", "expected a key"},
        {"{1:1}", "expected a key"},
        {"[1 2]", "expected ',' or ']'"},
        {"{\"a\":1 \"b\":2}", "expected ',' or '}'"},
        {"[1}", "expected ',' or ']'"},
        {"{\"a\":1]", "expected ',' or '}'"},
        {"{}x", "after the end"},
        {"1 2", "after the end"},
        {"{\"a\":1}}", "after the end"},
        {"null x", "after the end"},
        {"NaN", "not a value"},
        {"Infinity", "not a value"},
        {"-Infinity", "not a value"},
        {"[NaN]", "not a value"},
        {"nul", "not a value"},
        {"True", "not a value"},
        {"nullx", "after the end"},
        {"1e999", "too large"},
        {"-1e999", "too large"},
        {"01", "leading zero"},
        {"-01", "leading zero"},
        {"00", "leading zero"},
        {"1.", "after its point"},
        {".5", "not a value"},
        {"+1", "not a value"},
        {"-", "not a value"},
        {"1e", "exponent"},
        {"1e+", "exponent"},
        {"0x10", "after the end"},
        {"1_000", "after the end"},
        {"--1", "not a value"},
        {"\"abc", "closing quote"},
        {"\"abc\\\"", "closing quote"},
        {"\"\\", "closing quote"},
        {"\"\\x\"", "unknown escape"},
        {"\"\\u12\"", "hexadecimal"},
        {"\"\\u12G4\"", "hexadecimal"},
        {"\"\\u0000\"", "u0000"},
        {"{\"\\u0000\":1}", "u0000"},
        {"\"\\ud800\"", "surrogate"},
        {"\"\\ud800x\"", "surrogate"},
        {"\"\\ud800\\n\"", "surrogate"},
        {"\"\\ud800\\ud800\"", "surrogate"},
        {"\"\\udc00\"", "surrogate"},
        {"\"\\udc00\\ud800\"", "surrogate"},
        {"\"\\ud83d\\u0041\"", "surrogate"},
        {"\"a\nb\"", "control character"},
        {"\"a\tb\"", "control character"},
        {"\"\x01\"", "control character"},
        {"{\"a\n\":1}", "control character"},
        {"\"\xC3\x28\"", "UTF-8"},
        {"\"\xC0\xAF\"", "UTF-8"},
        {"\"\xED\xA0\x80\"", "UTF-8"},
        {"\"\xF4\x90\x80\x80\"", "UTF-8"},
        {"\"\xE2\x82\"", "UTF-8"},
        {"\"\xff\"", "UTF-8"},
        {"\xC3\x28", "not a value"},
        {"\xEF\xBB\xBF{}", "not a value"},
        {"\x0b"
         "1",
         "not a value"},
        {"{\"a\":1,\"a\":2}", "duplicate key \"a\""},
        {"{\"a\":1,\"\\u0061\":2}", "duplicate key \"a\""},
        {"{\"\":1,\"\":2}", "duplicate key"},
        {"[{\"x\":{\"b\":1,\"c\":2,\"b\":3}}]", "duplicate key \"b\""},
        {"/* c */ 1", "not a value"},
        {"[1,,2]", "not a value"},
        {",", "not a value"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(bad[i].text, strlen(bad[i].text), bad[i].reason);
    refuses("{\"a\":\"b\0c\"}", 11, "control character");
    refuses("1\0", 2, "after the end");
    refuses("\0", 1, "not a value");
}

static void every_beginning_of_a_document_is_refused(void **state)
{
    (void)state;
    static const char text[] =
        "{\"k\\u00e9y\":[1.5e+3,-20,\"\\ud83d\\ude00\xE2\x82\xAC\",true,false,null,{}],\"z\":{\"y\":[[]]}}";
    cJSON *doc;
    for (size_t n = 0; n < sizeof text - 1; n++) {
        assert_int_not_equal(parse_n(text, n, NULL, &doc), LTD_OK);
        assert_null(doc);
    }
    accepts(text);
}

static void error_names_line_and_column_in_characters(void **state)
{
    (void)state;
    cJSON *doc;
    assert_int_equal(parse("{\n  \"a\": \"\xE2\x82\xAC\", x}", &doc), LTD_CORRUPT);
    assert_non_null(strstr(err.text, "line 2, column 13:"));
    assert_int_equal(parse("{\"first\":1,\n\"first\":2}", &doc), LTD_CORRUPT);
    assert_non_null(strstr(err.text, "line 2, column 1:"));
    assert_int_equal(ltd_json_parse("[", 1, NULL, &doc, NULL), LTD_CORRUPT); /* nobody asks why */
}

static void tree_is_what_the_text_says(void **state)
{
    (void)state;
    cJSON *doc;
    assert_int_equal(
        parse("{\"b\":[1,\"x\\n\\u20ac\\ud83d\\ude00\",true,null,2.5],\"B\":{\"c\":false},\"a\":-7}", &doc),
        LTD_OK);
    assert_true(cJSON_IsObject(doc));
    const cJSON *b = ltd_json_get(doc, "b");
    assert_true(cJSON_IsArray(b));
    assert_int_equal(cJSON_GetArraySize(b), 5);
    assert_int_equal(cJSON_GetArrayItem(b, 0)->valueint, 1);
    assert_string_equal(cJSON_GetArrayItem(b, 1)->valuestring, "x\n\xE2\x82\xAC\xF0\x9F\x98\x80");
    assert_true(cJSON_IsTrue(cJSON_GetArrayItem(b, 2)));
    assert_true(ltd_json_is_null(cJSON_GetArrayItem(b, 3)));
    assert_true(cJSON_GetArrayItem(b, 4)->valuedouble == 2.5);
    assert_true(cJSON_IsFalse(ltd_json_get(ltd_json_get(doc, "B"), "c")));
    assert_null(ltd_json_get(doc, "A"));
    assert_null(ltd_json_get(NULL, "a"));
    assert_null(ltd_json_get(b, "a"));
    assert_true(ltd_json_is_null(NULL));
    char *text = cJSON_PrintUnformatted(doc);
    assert_string_equal(
        text, "{\"b\":[1,\"x\\n\xE2\x82\xAC\xF0\x9F\x98\x80\",true,null,2.5],\"B\":{\"c\":false},\"a\":-7}");
    cJSON_free(text);
    cJSON_AddItemToObject(doc, "more", cJSON_CreateNumber(1)); /* cJSON's own list is in order */
    assert_string_equal(doc->child->prev->string, "more");
    cJSON_Delete(doc);
}

static void int64_is_exact_or_invalid(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        int64_t v;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"0.0", true, 0},
        {"0e5", true, 0},
        {"7", true, 7},
        {"-7", true, -7},
        {"3.0", true, 3},
        {"3e2", true, 300},
        {"3E+2", true, 300},
        {"30e-1", true, 3},
        {"0.03e2", true, 3},
        {"1.5", false, 0},
        {"1.5e1", true, 15},
        {"1e-1", false, 0},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"9223372036854775807.0", true, INT64_MAX},
        {"9223372036854775807.5", false, 0},
        {"922337203685477580.7e1", true, INT64_MAX},
        {"18446744073709551616", false, 0},
        {"1e40", false, 0},
        {"-1e40", false, 0},
        {"1e308", false, 0},
        {"1e18", true, 1000000000000000000},
        {"9e18", true, 9000000000000000000},
        {"1e19", false, 0},
        {"123456789012345e3", true, 123456789012345000},
        {"9007199254740993", true, 9007199254740993},
        {"1.0000000000000000000000001", false, 0},
        {"1.0000000000000000000000000", true, 1},
        {"100000000000000000000000e-22", true, 10},
        {"0.000000000000000000000000000001e30", true, 1},
        {"1e-400", false, 0},
        {"1e-99999999999999999999", false, 0},
        {"0e99999999999999999999", true, 0},
        {"1000000000000000000000000000000000000000000000000000000000000000000000000000000000", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* 1e-400 reads as 0.0 with one digit: that it is no integer is lost, as with any reader of doubles.
         */
        bool underflows =
            strncmp(cases[i].text, "1e-400", 6) == 0 || strncmp(cases[i].text, "1e-9999", 7) == 0;
        cJSON *doc;
        int64_t v = -1;
        if (parse(cases[i].text, &doc) != LTD_OK) fail_msg("%s: %s", cases[i].text, err.text);
        ltd_status st = ltd_json_int64(doc, &v);
        if (!underflows && (st == LTD_OK) != cases[i].ok)
            fail_msg("%s: %s", cases[i].text, ltd_status_name(st));
        if (st == LTD_OK && v != cases[i].v) fail_msg("%s gave %lld", cases[i].text, (long long)v);
        cJSON_Delete(doc);
    }
    int64_t v;
    cJSON *s = cJSON_CreateString("1"), *n = cJSON_CreateNumber(5), *big = cJSON_CreateNumber(1e300);
    assert_int_equal(ltd_json_int64(s, &v), LTD_INVALID);
    assert_int_equal(ltd_json_int64(NULL, &v), LTD_INVALID);
    assert_int_equal(ltd_json_int64(n, &v), LTD_OK);
    assert_int_equal(ltd_json_int64(big, &v), LTD_INVALID);
    cJSON_Delete(s);
    cJSON_Delete(n);
    cJSON_Delete(big);
}

static void limits_are_kept(void **state)
{
    (void)state;
    enum { N = 100000 };
    cJSON *doc;
    char *deep = malloc(2 * N);
    memset(deep, '[', N);
    memset(deep + N, ']', N);
    assert_int_equal(parse_n(deep, N, NULL, &doc), LTD_TOO_LARGE); /* 100,000 x [ */
    assert_non_null(strstr(err.text, "column 65: arrays and objects nested too deeply"));
    assert_int_equal(parse_n(deep + N - 64, 128, NULL, &doc), LTD_OK);
    cJSON_Delete(doc);
    assert_int_equal(parse_n(deep + N - 65, 130, NULL, &doc), LTD_TOO_LARGE);
    ltd_json_limits two = {.max_depth = 2};
    assert_int_equal(parse_n("[{}]", 4, &two, &doc), LTD_OK);
    cJSON_Delete(doc);
    assert_int_equal(parse_n("[[[]]]", 6, &two, &doc), LTD_TOO_LARGE);
    ltd_json_limits huge = {.max_depth = 1 << 30}; /* not beyond what cJSON_Delete can recurse */
    assert_int_equal(parse_n(deep + N - 1000, 2000, &huge, &doc), LTD_OK);
    cJSON_Delete(doc);
    assert_int_equal(parse_n(deep, 2 * N, &huge, &doc), LTD_TOO_LARGE);
    ltd_json_limits four = {.max_values = 4};
    assert_int_equal(parse_n("[1,2,3]", 7, &four, &doc), LTD_OK);
    cJSON_Delete(doc);
    assert_int_equal(parse_n("[1,2,3,4]", 9, &four, &doc), LTD_TOO_LARGE);
    assert_non_null(strstr(err.text, "too many values"));
    free(deep);
}

static int64_t time_of_keys(int n, bool last_twice, ltd_status want)
{
    ltd_buf b = {0};
    cJSON *doc = NULL;
    ltd_buf_str(&b, "{");
    for (int i = 0; i < n; i++) ltd_buf_fmt(&b, "\"key%d\":%d,", i, i);
    ltd_buf_fmt(&b, "\"key%d\":0}", last_twice ? n / 2 : n);
    int64_t t = ltd_now_us();
    assert_int_equal(ltd_json_parse(b.data, b.len, NULL, &doc, &err), want);
    t = ltd_now_us() - t;
    cJSON_Delete(doc);
    ltd_buf_deinit(&b);
    return t;
}

static void many_keys_take_linear_time(void **state)
{
    (void)state;
    for (int n = 1; n < 40; n++) { /* both sides of the change from pairs to the table */
        time_of_keys(n, false, LTD_OK);
        time_of_keys(n, true, LTD_CORRUPT);
    }
    /* Pair by pair 200,000 keys would take minutes. */
    assert_true(time_of_keys(200000, false, LTD_OK) < 5000000);
    assert_true(time_of_keys(200000, true, LTD_CORRUPT) < 5000000);
    assert_non_null(strstr(err.text, "duplicate key \"key100000\""));
}

static void nested_objects_keep_their_keys_apart(void **state)
{
    (void)state;
    ltd_buf b = {0};
    /* Each object repeats its parents' keys, some before and some after the child. */
    for (int i = 0; i < 30; i++)
        ltd_buf_str(&b, "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"sub\":");
    ltd_buf_str(&b, "0");
    for (int i = 0; i < 30; i++) ltd_buf_str(&b, ",\"z\":0}");
    accepts(b.data);
    ltd_buf_clear(&b);
    for (int i = 0; i < 30; i++) ltd_buf_str(&b, "{\"a\":1,\"sub\":");
    ltd_buf_str(&b, "0");
    for (int i = 0; i < 30; i++) ltd_buf_str(&b, i == 20 ? ",\"a\":0}" : ",\"z\":0}");
    refuses(b.data, b.len, "duplicate key \"a\"");
    ltd_buf_deinit(&b);
}

static void parse_file_names_the_file(void **state)
{
    (void)state;
    char path[] = "/tmp/ltd-test-XXXXXX";
    cJSON *doc = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "{\"a\": 1,\n x}", 12), 12);
    close(fd);
    assert_int_equal(ltd_json_parse_file(path, 0, &doc, &err), LTD_CORRUPT);
    assert_true(strncmp(err.text, path, strlen(path)) == 0);
    assert_non_null(strstr(err.text, ": line 2, column 2: expected a key"));
    assert_int_equal(ltd_json_parse_file(path, 4, &doc, &err), LTD_TOO_LARGE);
    assert_int_equal(truncate(path, 7), 0);
    fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "}", 1), 1);
    close(fd);
    assert_int_equal(ltd_json_parse_file(path, 0, &doc, &err), LTD_OK);
    cJSON_Delete(doc);
    unlink(path);
    assert_int_equal(ltd_json_parse_file(path, 0, &doc, &err), LTD_NOT_FOUND);
}

/* Random damage to good documents: no crash, no leak (sanitizers), and what is accepted prints and reads
 * again. */
static void damaged_documents_do_no_harm(void **state)
{
    (void)state;
    static const char text[] = "{\"prompt\":[\"a\\u00e9\\ud83d\\ude00\",\"b\"],\"n\":2,\"t\":1.25e-1,\"s\":{"
                               "\"x\":null,\"y\":[true,false,[]]},\"k\":18446744073709551616}";
    static const char marks[] = "{}[]\",:\\u0e-+.19 \n\xC3\xF0\x80";
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 30000; i++) {
        char copy[sizeof text];
        memcpy(copy, text, sizeof text);
        size_t len = sizeof text - 1;
        for (int k = 0; k < 3; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            copy[x % len] = marks[(x >> 32) % (sizeof marks - 1)];
        }
        cJSON *doc, *again;
        if (parse_n(copy, len, NULL, &doc) != LTD_OK) continue;
        char *out = cJSON_PrintUnformatted(doc);
        if (parse(out, &again) != LTD_OK) fail_msg("%s: %s", out, err.text);
        cJSON_Delete(again);
        cJSON_free(out);
        cJSON_Delete(doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse_of_valid_text_accepts),
        cmocka_unit_test(parse_of_invalid_text_refuses_with_a_reason),
        cmocka_unit_test(every_beginning_of_a_document_is_refused),
        cmocka_unit_test(error_names_line_and_column_in_characters),
        cmocka_unit_test(tree_is_what_the_text_says),
        cmocka_unit_test(int64_is_exact_or_invalid),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(many_keys_take_linear_time),
        cmocka_unit_test(nested_objects_keep_their_keys_apart),
        cmocka_unit_test(parse_file_names_the_file),
        cmocka_unit_test(damaged_documents_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
