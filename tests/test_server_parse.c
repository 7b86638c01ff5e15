/* test_server_parse - bodies of /v1/completions: what is taken, with which defaults, and what is refused with
 * which field named. */
#include "server/server_private.h"

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

enum { CONTEXT = 100, VOCAB = 300 };

static ltd_options options;
static model_info info;
static srv_const consts;
static tok *tokenizer;
static char *names[] = {"first", "second"};

static tok *load(const char *config)
{
    char dir[] = "/tmp/latentd-test-XXXXXX", path[64];
    tok *t;
    ltd_err err;
    assert_non_null(mkdtemp(dir));
    support_write_byte_tokenizer(dir, &(support_tok_opts){.config = config});
    if (tok_load(dir, VOCAB, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    unlink(path);
    rmdir(dir);
    return t;
}

static int setup(void **state)
{
    (void)state;
    tokenizer = load(NULL);
    options.max_n = 8;
    options.max_choices = 20;
    options.served_names[0] = names[0];
    options.served_names[1] = names[1];
    options.n_served_names = 2;
    info = (model_info){.vocab_size = VOCAB,
                        .context_length = CONTEXT,
                        .default_temperature = 0.25F,
                        .default_top_p = 0.5F,
                        .default_top_k = 7,
                        .default_min_p = 0.125F};
    consts = (srv_const){.o = &options, .info = &info, .tok = tokenizer, .salt_key = {1, 2}};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tok_destroy(tokenizer);
    return 0;
}

static srv_call *taken(const char *body)
{
    srv_call *call;
    srv_error e;
    if (srv__call_parse(&consts, body, strlen(body), &call, &e) != LTD_OK)
        fail_msg("%s: %s", body, e.message);
    return call;
}

static void refused(const char *body, int status, const char *param, const char *words)
{
    srv_call *call = NULL;
    srv_error e;
    if (srv__call_parse(&consts, body, strlen(body), &call, &e) == LTD_OK) fail_msg("accepted: %s", body);
    assert_null(call);
    if (e.status != status || (param ? !e.param || strcmp(param, e.param) : e.param != NULL) ||
        !strstr(e.message, words))
        fail_msg("%s: %d %s: %s", body, e.status, e.param ? e.param : "-", e.message);
    ltd_buf json = {0};
    srv__error_json(&e, &json);
    assert_non_null(strstr(json.data, "\"type\":"));
    ltd_buf_deinit(&json);
}

static void defaults_come_from_the_checkpoint(void **state)
{
    (void)state;
    srv_call *c = taken("{\"prompt\":\"hi\"}");
    assert_string_equal(c->model, "first");
    assert_int_equal(c->n_prompts, 1);
    assert_int_equal(c->n, 1);
    assert_int_equal(c->prompts[0].n, 2);
    assert_int_equal(c->prompts[0].ids[1], 'i');
    assert_int_equal(c->r.max_tokens, 16);
    assert_true(c->r.temperature == 0.25F && c->r.top_p == 0.5F && c->r.min_p == 0.125F);
    assert_int_equal(c->r.top_k, 7);
    assert_int_equal(c->r.n_logprobs, -1);
    assert_int_equal(c->r.n_prompt_logprobs, -1);
    assert_true(c->r.skip_special && !c->r.ignore_eos && !c->r.include_stop && !c->stream && !c->echo &&
                !c->seeded);
    assert_true(c->r.salt[0] == 0 && c->r.salt[1] == 0);
    srv__call_destroy(c);
}

static void every_field_arrives(void **state)
{
    (void)state;
    srv_call *c = taken("{\"model\":\"second\",\"prompt\":[[1,2,3],[4]],\"max_tokens\":5,\"temperature\":1.5,"
                        "\"top_p\":0.75,\"top_k\":-1,\"min_p\":0,\"n\":2,\"seed\":-9,"
                        "\"stop\":[\"ab\",\"c\"],\"stop_token_ids\":[7,8],\"include_stop_str_in_output\":"
                        "true,\"ignore_eos\":true,\"logprobs\":3,\"echo\":true,\"stream\":true,"
                        "\"stream_options\":{\"include_usage\":true},\"skip_special_tokens\":false,"
                        "\"priority\":-4,\"cache_salt\":\"x\",\"request_id\":\"r-1\",\"user\":5}");
    assert_string_equal(c->model, "second");
    assert_int_equal(c->n_prompts, 2);
    assert_int_equal(c->prompts[0].n, 3);
    assert_int_equal(c->prompts[1].ids[0], 4);
    assert_int_equal(c->prompt_tokens, 4);
    assert_int_equal(c->r.max_tokens, 5);
    assert_int_equal(c->r.n, 2);
    assert_true(c->r.temperature == 1.5F && c->r.top_p == 0.75F && c->r.min_p == 0);
    assert_int_equal(c->r.top_k, 0);
    assert_true(c->r.seed == (uint64_t)-9 && c->seeded);
    assert_int_equal(c->r.n_stops, 2);
    assert_string_equal(c->r.stops[0], "ab");
    assert_int_equal(c->r.stop_lens[1], 1);
    assert_int_equal(c->r.n_stop_ids, 2);
    assert_int_equal(c->r.stop_ids[1], 8);
    assert_int_equal(c->r.n_logprobs, 3);
    assert_int_equal(c->r.n_prompt_logprobs, 3);
    assert_int_equal(c->r.priority, -4);
    assert_true(c->r.include_stop && c->r.ignore_eos && !c->r.skip_special && c->echo && c->stream &&
                c->include_usage);
    assert_true(c->r.salt[0] != 0);
    assert_string_equal(c->label, "r-1");
    assert_memory_equal(c->prompts[1].text, "\x04", 2);
    srv__call_destroy(c);
}

static void salts_are_told_apart(void **state)
{
    (void)state;
    srv_call *a = taken("{\"prompt\":\"a\",\"cache_salt\":\"x\"}"),
             *b = taken("{\"prompt\":\"a\",\"cache_salt\":\"y\"}"),
             *again = taken("{\"prompt\":\"a\",\"cache_salt\":\"x\"}");
    assert_memory_equal(a->r.salt, again->r.salt, sizeof a->r.salt);
    assert_memory_not_equal(a->r.salt, b->r.salt, sizeof a->r.salt);
    srv__call_destroy(a);
    srv__call_destroy(b);
    srv__call_destroy(again);
}

/* SipHash-2-4's 128-bit test vector for the empty message under the key 00..0f. */
static void hash128_has_the_published_values(void **state)
{
    (void)state;
    uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u}, out[2];
    static const unsigned char want[16] = {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6,
                                           0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93};
    srv__hash128(key, "", 0, out);
    assert_memory_equal(out, want, 16);
}

static void lengths_are_exact_d19(void **state)
{
    (void)state;
    char body[1024], text[CONTEXT + 2];
    static const struct {
        int n, max_tokens;
        bool ok;
    } rows[] = {{CONTEXT - 1, -1, true},   {CONTEXT - 1, 1, true},   {CONTEXT, -1, false},
                {CONTEXT, 1, false},       {CONTEXT + 1, -1, false}, {CONTEXT - 10, 10, true},
                {CONTEXT - 10, 11, false}, {1, CONTEXT, false},      {1, CONTEXT - 1, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memset(text, 'x', sizeof text);
        text[rows[i].n] = 0;
        int k = snprintf(body, sizeof body, "{\"prompt\":\"%s\"", text);
        if (rows[i].max_tokens >= 0)
            k += snprintf(body + k, sizeof body - (size_t)k, ",\"max_tokens\":%d", rows[i].max_tokens);
        snprintf(body + k, sizeof body - (size_t)k, "}");
        if (rows[i].ok)
            srv__call_destroy(taken(body));
        else
            refused(body, 400, rows[i].max_tokens >= 0 ? "max_tokens" : "prompt", "100");
    }
    /* Scoring alone may fill the context. */
    memset(text, 'x', CONTEXT);
    text[CONTEXT] = 0;
    snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":0,\"echo\":true}", text);
    srv__call_destroy(taken(body));
}

static void a_bos_makes_an_empty_prompt_good(void **state)
{
    (void)state;
    tok *with_bos = load("{\"add_bos_token\":true,\"bos_token\":\"<bos>\",\"eos_token\":\"<eos>\"}");
    refused("{\"prompt\":\"\"}", 400, "prompt", "empty");
    consts.tok = with_bos;
    srv_call *c = taken("{\"prompt\":\"\",\"echo\":true}");
    assert_int_equal(c->prompts[0].n, 1);
    assert_int_equal(c->prompts[0].ids[0], 256);
    assert_true(c->prompts[0].auto_head);
    srv__call_destroy(c);
    refused("{\"prompt\":\"\",\"add_special_tokens\":false}", 400, "prompt", "empty");
    consts.tok = tokenizer;
    tok_destroy(with_bos);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *field, *value, *words;
    } rows[] = {
        {"temperature", "-1", "between 0 and 2"},
        {"temperature", "\"x\"", "number"},
        {"temperature", "NaN", "finite"},
        {"temperature", "-Infinity", "finite"},
        {"top_p", "1e999", "finite"},
        {"top_p", "1.5", "between"},
        {"top_k", "-2", "between"},
        {"top_k", "0.01", "integer"},
        {"n", "9", "between 1 and 8"},
        {"n", "0", "between"},
        {"n", "1e400", "finite"},
        {"max_tokens", "-1", "at least 0"},
        {"max_tokens", "2147483647", "context of 100"},
        {"max_tokens", "0", "echo"},
        {"seed", "1e40", "64 bits"},
        {"seed", "1.5", "integer"},
        {"logprobs", "21", "between 0 and 20"},
        {"logprobs", "true", "integer"},
        {"stop", "\"\"", "empty"},
        {"stop", "[\"x\",\"\"]", "empty"},
        {"stop", "5", "string"},
        {"stop", "{}", "string"},
        {"stop_token_ids", "[300]", "vocabulary of 300"},
        {"stop_token_ids", "7", "list"},
        {"stream", "\"yes\"", "true or false"},
        {"echo", "1", "true or false"},
        {"logit_bias", "{\"5\":1}", "not supported yet"},
        {"logit_bias", "[]", "object"},
        {"presence_penalty", "0.5", "not supported yet"},
        {"frequency_penalty", "5", "between"},
        {"repetition_penalty", "1.5", "not supported"},
        {"min_tokens", "1", "not supported"},
        {"best_of", "2", "not supported"},
        {"best_of", "0", "at least 1"},
        {"suffix", "\"x\"", "not supported"},
        {"suffix", "1", "string"},
        {"response_format", "{\"type\":\"json_object\"}", "not supported"},
        {"response_format", "\"text\"", "object"},
        {"tools", "[1]", "not supported"},
        {"return_token_ids", "true", "not supported"},
        {"timings", "true", "not supported"},
        {"stream_options", "{}", "only allowed"},
        {"cache_salt", "\"\"", "1 to 1024"},
        {"request_id", "\"\\n\"", "printable"},
        {"priority", "3000000000", "between"},
        {"model", "5", "string"},
    };
    char body[256];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"%s\":%s}", rows[i].field, rows[i].value);
        refused(body, 400, rows[i].field, rows[i].words);
    }
    refused("{\"prompt\":\"a\",\"model\":\"third\"}", 404, "model", "third");
    refused("{\"prompt\":\"a\",\"n\":2,\"best_of\":1}", 400, "best_of", "at least 'n'");
    refused("{\"prompt\":\"a\",\"stream\":true,\"stream_options\":[]}", 400, "stream_options", "object");
    refused("{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}}", 400,
            "stream_options", "not supported");
}

static void prompts_of_every_wrong_shape(void **state)
{
    (void)state;
    static const char *const rows[] = {"null",
                                       "5",
                                       "true",
                                       "{}",
                                       "[]",
                                       "[[]]",
                                       "[\"a\",1]",
                                       "[1,\"a\"]",
                                       "[[1],\"a\"]",
                                       "[[1],2]",
                                       "[[\"a\"]]",
                                       "[-1]",
                                       "[300]",
                                       "[1.5]",
                                       "[9223372036854775808]",
                                       "[null]",
                                       "[[1],[null]]",
                                       "[\"a\",\"\"]",
                                       "\"\""};
    char body[128];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(body, sizeof body, "{\"prompt\":%s}", rows[i]);
        refused(body, 400, "prompt", "");
    }
    refused("{\"prompt\":[\"a\",\"b\",\"c\",\"d\"],\"n\":6}", 400, "prompt", "4 prompts x 6");
    refused("{}", 400, "prompt", "required");
    refused("{\"PROMPT\":\"a\"}", 400, "prompt", "required");
    refused("", 400, NULL, "no body");
    refused("[]", 400, NULL, "object");
    refused("{\"prompt\":\"a\"}x", 400, NULL, "JSON");
    refused("{\"a\":NaN}", 400, NULL, "JSON");
    refused("{\"prompt\":\"NaN\",}", 400, NULL, "JSON");
}

static void nulls_and_neutral_values_are_as_absent(void **state)
{
    (void)state;
    srv__call_destroy(taken("{\"prompt\":\"a\",\"model\":null,\"max_tokens\":null,\"temperature\":null,"
                            "\"stop\":null,\"logprobs\":null,\"stream\":null,\"stream_options\":null,"
                            "\"best_of\":1,\"suffix\":\"\",\"logit_bias\":{},\"presence_penalty\":0,"
                            "\"frequency_penalty\":0,\"repetition_penalty\":1,\"min_tokens\":0,"
                            "\"response_format\":{\"type\":\"text\"},\"tools\":[],\"n\":null,\"seed\":null,"
                            "\"vendor\":{\"x\":[1]}}"));
    srv_call *c = taken("{\"prompt\":\"a\",\"n\":2,\"best_of\":2,\"max_tokens\":3.0}");
    assert_int_equal(c->r.max_tokens, 3);
    srv__call_destroy(c);
}

static void tokenize_and_detokenize(void **state)
{
    (void)state;
    ltd_buf out = {0};
    srv_error e;
    const char *body = "{\"prompt\":\"hi<asst>\"}";
    assert_int_equal(srv__tokenize(&consts, body, strlen(body), &out, &e), LTD_OK);
    assert_string_equal(out.data, "{\"tokens\":[104,105,259],\"count\":3,\"max_model_len\":100}");
    ltd_buf_clear(&out);
    body = "{\"tokens\":[104,226,130,172,259]}";
    assert_int_equal(srv__detokenize(&consts, body, strlen(body), &out, &e), LTD_OK);
    assert_string_equal(out.data, "{\"prompt\":\"h\xe2\x82\xac<asst>\"}");
    ltd_buf_clear(&out);
    body = "{\"tokens\":[]}";
    assert_int_equal(srv__detokenize(&consts, body, strlen(body), &out, &e), LTD_OK);
    assert_string_equal(out.data, "{\"prompt\":\"\"}");
    body = "{\"tokens\":[300]}";
    assert_int_equal(srv__detokenize(&consts, body, strlen(body), &out, &e), LTD_INVALID);
    assert_string_equal(e.param, "tokens");
    ltd_buf_deinit(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_come_from_the_checkpoint),
        cmocka_unit_test(every_field_arrives),
        cmocka_unit_test(salts_are_told_apart),
        cmocka_unit_test(hash128_has_the_published_values),
        cmocka_unit_test(lengths_are_exact_d19),
        cmocka_unit_test(a_bos_makes_an_empty_prompt_good),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(prompts_of_every_wrong_shape),
        cmocka_unit_test(nulls_and_neutral_values_are_as_absent),
        cmocka_unit_test(tokenize_and_detokenize),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
