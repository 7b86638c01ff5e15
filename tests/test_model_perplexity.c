/* test_model_perplexity.c - the bundled checkpoint predicts its held-out text as well as transformers says (tests/models/demo/heldout.json). */
#include <stdarg.h>
#include <setjmp.h>
#include <math.h>
#include <cjson/cJSON.h>
#include <cmocka.h>

#include "model/tokenizer.h"
#include "tests/support/model_runner.h"

static const char dir[] = "tests/models/demo";

static double number(const cJSON *o, const char *key)
{
    const cJSON *v = ltd_json_get(o, key);
    if (!cJSON_IsNumber(v)) fail_msg("heldout.json has no number %s", key);
    return v->valuedouble;
}

static void check(bool mha, opt_dtype dtype, int32_t chunk, const char *key)
{
    ltd_err err;
    cJSON *want;
    char *text;
    size_t n;
    tok *t;
    model_ppl got;
    runner r;
    if (ltd_json_parse_file("tests/models/demo/heldout.json", 0, &want, &err) != LTD_OK)
        fail_msg("%s", err.text);
    if (ltd_read_file("tests/models/demo/heldout.txt", 0, &text, &n, &err) != LTD_OK)
        fail_msg("%s", err.text);
    if (tok_load(dir, 0, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    ltd_options o = runner_options(dir);
    o.disable_mla = mha;
    o.dtype = dtype;
    runner_open(&r, &o, chunk, 1);
    model__capture(r.m, NULL);
    if (model_perplexity(r.m, t, text, n, (int32_t)number(want, "window"), &got, &err) != LTD_OK)
        fail_msg("%s", err.text);
    print_message("tokens=%lld perplexity=%.6f, transformers %.6f\n", (long long)got.n_tokens, got.perplexity,
                  number(want, key));
    assert_int_equal(got.n_tokens, (int64_t)number(want, "tokens"));
    double d = got.perplexity / number(want, key) - 1;
    if (!(fabs(d) < (dtype == OPT_DTYPE_BF16 ? 1e-3 : 2e-5)))
        fail_msg("perplexity %.6f is %.2g off transformers' %.6f", got.perplexity, d, number(want, key));
    runner_close(&r);
    tok_destroy(t);
    ltd_free(text);
    cJSON_Delete(want);
}

static void f32_is_transformers_f32(void **state)
{
    (void)state;
    check(false, OPT_DTYPE_F32, 128, "perplexity");
}
static void bf16_is_near_transformers_bf16(void **state)
{
    (void)state;
    check(false, OPT_DTYPE_BF16, 256, "perplexity_bf16");
}
static void the_mha_pool_gives_the_same(void **state)
{
    (void)state;
    check(true, OPT_DTYPE_F32, 100, "perplexity");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_is_transformers_f32),
        cmocka_unit_test(bf16_is_near_transformers_bf16),
        cmocka_unit_test(the_mha_pool_gives_the_same),
    };
    log_start(&(log_config){.level = LOG_WARN, .fd = 2});
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    log_stop();
    return failed;
}
