/* test_model_safetensors.c - D37: good and bad files one by one; the index's rules of D38. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "model/model_private.h"
#include "tests/support/checkpoint_writer.h"

static char *dir;

static int make_dir(void **state)
{
    (void)state;
    dir = support_dir_create();
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    support_dir_remove(dir);
    return 0;
}

static ltd_status open_one(const char *name, st_files **out, ltd_err *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return st_open_file(path, out, err);
}

static st_files *open_good(const char *header, const void *data, size_t n)
{
    st_files *f = NULL;
    ltd_err err = {{0}};
    support_write_safetensors(dir, "x.safetensors", header, data, n);
    if (open_one("x.safetensors", &f, &err) != LTD_OK) fail_msg("%s\n%s", err.text, header);
    return f;
}

static void check_bad_file(const char *label, const char *names)
{
    st_files *f = (st_files *)&f;
    ltd_err err = {{0}};
    ltd_status st = open_one("x.safetensors", &f, &err);
    if (st == LTD_OK || !strstr(err.text, "x.safetensors") || !strstr(err.text, names) ||
        strchr(err.text, '\n'))
        fail_msg("%s: %s: %s", label, ltd_status_name(st), err.text);
    assert_ptr_equal(f, &f); /* untouched */
}

static void check_bad(const char *header, size_t n, const char *names)
{
    static const char zeros[64];
    support_write_safetensors(dir, "x.safetensors", header, zeros, n);
    check_bad_file(header, names);
}

#define A "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}"
#define B "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4,8]}"
static const char good[] = "{" A "," B "}";
static const unsigned char eight[8] = {1, 2, 3, 4, 5, 6, 7, 8};

/* ---------------------------------------------------------------- good files */

static void d37_the_plain_file_loads(void **state)
{
    (void)state;
    assert_int_equal(strlen(good), 109);
    st_files *f = open_good(good, eight, 8);
    assert_int_equal(st_count(f), 2);
    const st_tensor *b = st_find(f, "b");
    assert_ptr_equal(b, st_at(f, 1));
    assert_string_equal(b->name, "b");
    assert_int_equal(b->dtype, ST_BF16);
    assert_string_equal(b->dtype_name, "BF16");
    assert_int_equal(b->rank, 1);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->bytes, 4);
    assert_memory_equal(b->data, eight + 4, 4);
    assert_non_null(strstr(b->file, "x.safetensors"));
    assert_null(st_find(f, "c"));
    assert_null(st_find(f, ""));
    st_close(f);
    st_close(NULL);
}

static void d37_good_variants_load(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        int n;
    } cases[] = {
        {"{" A "," B "}       ", 2},
        {"{" B "," A "}", 2},
        {"{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"}," A "," B "}", 2},
        {"{\"__metadata__\":{}," A "," B "}", 2},
        {"{" B ",\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}," A "}", 3},
        {"{" B ",\"e\":{\"dtype\":\"F32\",\"shape\":[3,0,4294967296,4294967296],\"data_offsets\":[8,8]}," A
         "}",
         3},
        {"{" A ",\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}}", 2},
        {"{" A ",\"s\":{\"data_offsets\":[4,8],\"shape\":[1,1,4],\"dtype\":\"F8_E4M3\",\"note\":[1,2]}}", 2},
        {"{\"q\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 1},
        {"{\"q\":{\"dtype\":\"F4\",\"shape\":[16],\"data_offsets\":[0,8]}}", 1},
        {"{\"q\":{\"dtype\":\"BOOL\",\"shape\":[2,2,2,1,1,1,1,1],\"data_offsets\":[0,8]}}", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        st_files *f = open_good(cases[i].header, eight, 8);
        assert_int_equal(st_count(f), cases[i].n);
        st_close(f);
    }
    st_files *f = open_good("{}", NULL, 0);
    assert_int_equal(st_count(f), 0);
    assert_null(st_find(f, "a"));
    st_close(f);
}

static void scalar_and_empty_shapes_are_kept(void **state)
{
    (void)state;
    st_files *f = open_good("{" A ",\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]},\"e\":{"
                            "\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[4,4]}}",
                            eight, 8);
    assert_int_equal(st_find(f, "s")->rank, 0);
    assert_int_equal(st_find(f, "s")->bytes, 4);
    assert_int_equal(st_find(f, "e")->bytes, 0);
    assert_int_equal(st_find(f, "e")->shape[1], 5);
    assert_int_equal(st_find(f, "e")->dtype, ST_OTHER);
    st_close(f);
}

static void names_are_json_strings(void **state)
{
    (void)state;
    st_files *f = open_good(
        "{\"a\\\"\\u00e9\\/\\ud83d\\ude00\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]}}", eight,
        8);
    assert_non_null(st_find(f, "a\"\xc3\xa9/\xf0\x9f\x98\x80"));
    st_close(f);
}

static void unaligned_data_is_reachable(void **state)
{
    (void)state;
    st_files *f = open_good("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":"
                            "\"F32\",\"shape\":[1],\"data_offsets\":[3,7]},"
                            "\"c\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[7,8]}}",
                            eight, 8);
    assert_memory_equal(st_find(f, "b")->data, eight + 3, 4);
    st_close(f);
}

static void many_tensors_are_all_found(void **state)
{
    (void)state;
    enum { N = 20000 };
    ltd_buf header = {0};
    unsigned char *data = ltd_calloc(N, 1);
    char name[32];
    for (int i = 0; i < N; i++) {
        data[i] = (unsigned char)(i * 37);
        ltd_buf_fmt(&header, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                    i ? "," : "{", i, i, i + 1);
    }
    ltd_buf_str(&header, "}");
    st_files *f = open_good(header.data, data, N);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%d", i);
        const st_tensor *t = st_find(f, name);
        assert_non_null(t);
        assert_int_equal(*(const unsigned char *)t->data, data[i]);
        if (i) assert_true(strcmp(st_at(f, i - 1)->name, st_at(f, i)->name) < 0);
    }
    st_close(f);
    ltd_buf_deinit(&header);
    ltd_free(data);
}

static void fingerprint_follows_the_headers(void **state)
{
    (void)state;
    st_files *f = open_good(good, eight, 8), *same = open_good(good, "abcdefgh", 8),
             *other = open_good("{" B "," A "}", eight, 8);
    assert_true(st_fingerprint(f) == st_fingerprint(same));
    assert_true(st_fingerprint(f) != st_fingerprint(other));
    st_close(f);
    st_close(same);
    st_close(other);
}

/* ---------------------------------------------------------------- bad files */

static void d37_bad_lengths_are_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0, (uint64_t)1 << 63, 118, 100000001, UINT64_MAX, UINT64_MAX - 7, 1};
    for (size_t n = 0; n < 8; n++) { /* shorter than the length itself */
        support_write_file(dir, "x.safetensors", "\2\0\0\0\0\0\0\0", n);
        check_bad_file("short", "8 bytes");
    }
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        unsigned char file[8 + 109 + 8];
        for (int k = 0; k < 8; k++) file[k] = (unsigned char)(lengths[i] >> (8 * k));
        memcpy(file + 8, good, 109);
        memcpy(file + 117, eight, 8);
        support_write_file(dir, "x.safetensors", file, sizeof file);
        check_bad_file("length", "header");
    }
}

static void d37_bad_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t n;
        const char *names;
    } cases[] = {
        {"[]", 0, "'{'"},
        {" {}", 0, "'{'"},
        {"{", 0, "header"},
        {"{}x", 0, "header"},
        {"{\"a\xff\":{}}", 0, "header"},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[2,6]}}", 6, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[6,10]}}", 10, "\"b\""},
        {"{" A "," B "}", 9, "\"b\""},
        {"{" A "," B "}", 7, "\"b\""},
        {"{" A "," B "}", 0, "\"a\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[4,8]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,4]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[-4,0]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[4294967296,4294967296],\"data_offsets\":[4,8]}}", 8,
         "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[9223372036854775807],\"data_offsets\":[4,8]}}", 8,
         "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4,18446744073709551616]}}", 8,
         "\"b\""},
        {"{" A "," A "}", 4, "\"a\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[-2],\"data_offsets\":[4,8]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2.5],\"data_offsets\":[4,8]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":2,\"data_offsets\":[4,8]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF17\",\"shape\":[2],\"data_offsets\":[4,8]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":2,\"shape\":[2],\"data_offsets\":[4,8]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"data_offsets\":[4,8]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"shape\":[2],\"data_offsets\":[4,8]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4,8,8]}}", 8, "\"b\""},
        {"{" A ",\"b\":[4,8]}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"F4\",\"shape\":[7],\"data_offsets\":[4,8]}}", 8, "\"b\""},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[4,8]}}", 8,
         "\"b\""},
        {"{" A ",\"e\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[2,2]}," B "}", 8, "\"e\""},
        {"{\"__metadata__\":{\"n\":3}," A "," B "}", 8, "__metadata__"},
        {"{\"__metadata__\":[]," A "," B "}", 8, "__metadata__"},
        {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "shape"},
        {"{}", 1, "x.safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_bad(cases[i].header, cases[i].n, cases[i].names);
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    st_files *f = NULL;
    ltd_err err = {{0}};
    assert_int_equal(open_one("none.safetensors", &f, &err), LTD_NOT_FOUND);
    assert_non_null(strstr(err.text, "none.safetensors"));
    assert_int_not_equal(st_open_file(dir, &f, &err), LTD_OK);
    char path[4096];
    snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_not_equal(st_open_file(path, &f, &err), LTD_OK);
}

/* ---------------------------------------------------------------- the index */

static void write_two_shards(void)
{
    support_write_safetensors(dir, "one.safetensors",
                              "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", eight, 4);
    support_write_safetensors(dir, "two.safetensors",
                              "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", eight + 4,
                              4);
}

static void write_index(const char *text)
{
    support_write_file(dir, "model.safetensors.index.json", text, strlen(text));
}

static void shards_are_one_checkpoint(void **state)
{
    (void)state;
    st_files *f = NULL;
    ltd_err err = {{0}};
    write_two_shards();
    write_index("{\"metadata\":{},\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}");
    if (st_open(dir, &f, &err) != LTD_OK) fail_msg("%s", err.text);
    assert_int_equal(st_count(f), 2);
    assert_string_equal(st_path(f), dir);
    assert_non_null(strstr(st_find(f, "b")->file, "two.safetensors"));
    assert_memory_equal(st_find(f, "b")->data, eight + 4, 4);
    st_close(f);
}

static void d38_bad_indices_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *names;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"three.safetensors\"}}",
         "three.safetensors is missing"},
        {"{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}", "\"a\""},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"two.safetensors\"}}",
         "\"c\""},
        {"{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "\"a\""},
        {"{\"weight_map\":{\"a\":\"sub/one.safetensors\"}}", "\"a\""},
        {"{\"weight_map\":{\"a\":\"sub\\\\one.safetensors\"}}", "\"a\""},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "\"a\""},
        {"{\"weight_map\":{\"a\":\"..\"}}", "\"a\""},
        {"{\"weight_map\":{\"a\":\"\"}}", "\"a\""},
        {"{\"weight_map\":{\"a\":1}}", "\"a\""},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{}", "weight_map"},
        {"[]", "weight_map"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}}", "index.json"},
        {"{\"weight_map\":", "index.json"},
    };
    write_two_shards();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        st_files *f = NULL;
        ltd_err err = {{0}};
        write_index(cases[i].text);
        ltd_status st = st_open(dir, &f, &err);
        if (st == LTD_OK || !strstr(err.text, cases[i].names) || !strstr(err.text, dir))
            fail_msg("%s: %s", cases[i].text, err.text);
    }
}

static void one_name_in_two_shards_is_refused(void **state)
{
    (void)state;
    st_files *f = NULL;
    ltd_err err = {{0}};
    support_write_safetensors(dir, "one.safetensors", good, eight, 8);
    support_write_safetensors(dir, "two.safetensors", "{" A "}", eight, 4);
    write_index("{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}");
    assert_int_equal(st_open(dir, &f, &err), LTD_CORRUPT);
    assert_non_null(strstr(err.text, "\"a\""));
    assert_non_null(strstr(err.text, "one.safetensors"));
    assert_non_null(strstr(err.text, "two.safetensors"));
}

static void bad_shard_is_named(void **state)
{
    (void)state;
    st_files *f = NULL;
    ltd_err err = {{0}};
    write_two_shards();
    support_write_safetensors(dir, "two.safetensors",
                              "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", eight, 3);
    write_index("{\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}");
    assert_int_equal(st_open(dir, &f, &err), LTD_CORRUPT);
    assert_non_null(strstr(err.text, "two.safetensors"));
    assert_non_null(strstr(err.text, "\"b\""));
}

static void folder_without_weights_is_refused(void **state)
{
    (void)state;
    st_files *f = NULL;
    ltd_err err = {{0}};
    assert_int_equal(st_open(dir, &f, &err), LTD_NOT_FOUND);
    assert_non_null(strstr(err.text, dir));
    support_write_safetensors(dir, "model.safetensors", good, eight, 8);
    if (st_open(dir, &f, &err) != LTD_OK) fail_msg("%s", err.text);
    assert_int_equal(st_count(f), 2);
    st_close(f);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(d37_the_plain_file_loads),          CASE(d37_good_variants_load),
        CASE(scalar_and_empty_shapes_are_kept),  CASE(names_are_json_strings),
        CASE(unaligned_data_is_reachable),       CASE(many_tensors_are_all_found),
        CASE(fingerprint_follows_the_headers),   CASE(d37_bad_lengths_are_refused),
        CASE(d37_bad_headers_are_refused),       CASE(what_is_no_file_is_refused),
        CASE(shards_are_one_checkpoint),         CASE(d38_bad_indices_are_refused),
        CASE(one_name_in_two_shards_is_refused), CASE(bad_shard_is_named),
        CASE(folder_without_weights_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
