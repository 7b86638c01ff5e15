/* test_config_options.c - every option through its four sources, every refusal by name, --help, dumps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "config/config_private.h"

static ltd_err err;
static char file_path[] = "/tmp/ltd-test-options.XXXXXX";

enum { MAX_ARGS = 16 };

/* Loads with the arguments and environment given (NULL-terminated lists; either may be NULL). */
static ltd_status load(const char *const *args, const char *const *env, ltd_options *o, opt_action *action)
{
    char *argv[MAX_ARGS + 2] = {(char *)"latentd"}, *envp[MAX_ARGS + 2] = {(char *)"PATH=/bin"};
    int argc = 1;
    for (; args && *args; args++) {
        assert_true(argc < MAX_ARGS);
        argv[argc++] = (char *)*args;
    }
    for (int n = 1; env && *env; env++) envp[n++] = (char *)*env;
    err.text[0] = '\0';
    memset(o, 0xAA, sizeof *o);
    return opt_load(argc, argv, envp, o, action, &err);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void must_load(const char *const *args, const char *const *env, ltd_options *o)
{
    opt_action action;
    if (load(args, env, o, &action) != LTD_OK) fail_msg("%s", err.text);
    assert_int_equal(action, OPT_SERVE);
}

static void must_say(const char *word)
{
    if (!strstr(err.text, word)) fail_msg("\"%s\" does not say \"%s\"", err.text, word);
}

/* Refused, and the error holds each of the words. */
static void must_fail(const char *const *args, const char *const *env, const char *const *words)
{
    ltd_options o;
    opt_action action;
    if (load(args, env, &o, &action) != LTD_INVALID)
        fail_msg("accepted: %s", args && args[0] ? args[0] : env[0]);
    for (; *words; words++) must_say(*words);
    opt_deinit(&o); /* nothing left: legal all the same */
}

static void write_file(const char *text)
{
    FILE *f = fopen(file_path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static bool is_value(const opt_row *r) { return r->type != OPT_T_CONFIG && r->type != OPT_T_ACTION; }

/* ---------------------------------------------------------------- defaults */

static void load_with_the_model_alone_gives_the_defaults(void **state)
{
    (void)state;
    ltd_options o;
    must_load(ARGS("--model", "/models/DeepSeek-V2-Lite//"), NULL, &o);
    assert_string_equal(o.model, "/models/DeepSeek-V2-Lite//");
    assert_int_equal(o.n_served_names, 1);
    assert_string_equal(o.served_names[0], "DeepSeek-V2-Lite");
    assert_int_equal(o.max_running_requests, 256);
    assert_int_equal(o.max_queued_requests, 1024);
    assert_int_equal(o.port, 8000);
    assert_string_equal(o.host, "127.0.0.1");
    assert_int_equal(o.max_n, 128);
    assert_true(o.max_choices >= o.max_n);
    assert_int_equal(o.max_connections, 4096);
    assert_int_equal(o.header_timeout_s, 10);
    assert_int_equal(o.idle_timeout_s, 75);
    assert_int_equal(o.write_timeout_s, 60);
    assert_int_equal(o.request_timeout_s, 0);
    assert_int_equal(o.queue_timeout_s, 0);
    assert_int_equal(o.shutdown_timeout_s, 30);
    assert_int_equal(o.sse_ping_interval_s, 15);
    assert_true(o.mem_fraction == 0.9);
    assert_int_equal(o.context_block, 4096);
    assert_int_equal(o.context_length, 0);
    assert_int_equal(o.chunked_prefill_size, 0);
    assert_int_equal(o.absorb_extend, 0);
    assert_int_equal(o.log_level, LOG_INFO);
    assert_int_equal(o.device, OPT_DEVICE_AUTO);
    assert_int_equal(o.dtype, OPT_DTYPE_AUTO);
    assert_int_equal(o.debug_endpoints, OPT_DEBUG_NO);
    assert_true(o.reuse_generated);
    assert_false(o.log_json || o.log_requests || o.disable_mla || o.disable_radix_cache ||
                 o.disable_overlap || o.check_config);
    assert_null(o.perplexity_file);
    ltd_buf b = {0};
    opt_dump_text(&o, true, &b);
    assert_string_equal(b.data, "model=/models/DeepSeek-V2-Lite//");
    ltd_buf_deinit(&b);
    opt_deinit(&o);
}

static void served_name_is_the_folders_own(void **state)
{
    (void)state;
    static const struct {
        const char *model, *name;
    } cases[] = {{"/", "model"},          {"x", "x"},        {"a/b", "b"},
                 {"a/b///", "b"},         {"/usr/.", "usr"}, {"/usr/lib/..", "usr"},
                 {"/nowhere/..", "model"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ltd_options o;
        must_load(ARGS("--model", cases[i].model), NULL, &o);
        assert_string_equal(o.served_names[0], cases[i].name);
        opt_deinit(&o);
    }
}

/* ---------------------------------------------------------------- sources */

/* Three different allowed values of an option, as text; k = 0..2. */
static void some_value(const opt_row *r, int k, char out[64])
{
    char word[OPT_WORD_MAX];
    int n = 0;
    switch (r->type) {
    case OPT_T_INT:
        if (strcmp(r->name, "context-block") == 0)
            snprintf(out, 64, "%d", 256 + 128 * k);
        else
            snprintf(out, 64, "%d", strcmp(r->name, "max-choices") == 0 ? 300 + k : 2 + k);
        return;
    case OPT_T_NUMBER:
        snprintf(out, 64, "0.%d", 4 + k);
        return;
    case OPT_T_FLAG:
        strcpy(out, k % 2 == 0 ? "true" : "false");
        return;
    case OPT_T_CHOICE:
    case OPT_T_CHOICE2:
        while (opt__choice_word(r, n, word)) n++;
        opt__choice_word(r, (k + (int)r->def + 1) % n, word);
        strcpy(out, word);
        return;
    default:
        snprintf(out, 64, "some%d", k);
    }
}

/* The option's value in force must be `text`. */
static void check_value(const ltd_options *o, const opt_row *r, const char *text, const char *source)
{
    ltd_buf b = {0};
    cJSON *doc = NULL;
    opt_dump_json(o, false, &b);
    assert_int_equal(ltd_json_parse(b.data, b.len, NULL, &doc, &err), LTD_OK);
    const cJSON *v = ltd_json_get(doc, r->name);
    assert_non_null(v);
    if (cJSON_IsArray(v)) {
        assert_int_equal(cJSON_GetArraySize(v), 1);
        v = v->child;
    }
    ltd_buf_clear(&b);
    if (cJSON_IsString(v))
        ltd_buf_str(&b, v->valuestring);
    else if (cJSON_IsBool(v))
        ltd_buf_str(&b, cJSON_IsTrue(v) ? "true" : "false");
    else
        ltd_buf_json_num(&b, v->valuedouble);
    if (strcmp(b.data, text) != 0) fail_msg("--%s is %s, not %s, with %s", r->name, b.data, text, source);
    cJSON_Delete(doc);
    ltd_buf_deinit(&b);
}

static void each_source_wins_over_the_weaker_ones(void **state)
{
    (void)state;
    for (int i = 0; i < opt__n_rows; i++) {
        const opt_row *r = &opt__rows[i];
        if (!is_value(r) || strcmp(r->name, "check-config") == 0) continue;
        bool quoted = r->type != OPT_T_INT && r->type != OPT_T_NUMBER && r->type != OPT_T_FLAG;
        bool is_model = strcmp(r->name, "model") == 0;
        char v[3][64], text[256], config[300], env[300], arg[300], name[48];
        ltd_options o;
        for (int k = 0; k < 3; k++) some_value(r, k, v[k]);
        snprintf(text, sizeof text, "{\"%s\": %s%s%s}", r->name, quoted ? "\"" : "", v[0],
                 quoted ? "\"" : "");
        write_file(text);
        opt__env_name(r, name);
        snprintf(config, sizeof config, "--config=%s", file_path);
        snprintf(env, sizeof env, "%s=%s", name, v[1]);
        snprintf(arg, sizeof arg, "--%s=%s", r->name, v[2]);
        const char *model = is_model ? "--log-requests" : "--model=x";
        must_load(ARGS(model, config), NULL, &o);
        check_value(&o, r, v[0], "the file");
        opt_deinit(&o);
        must_load(ARGS(config, model), ARGS(env), &o);
        check_value(&o, r, v[1], "file and environment");
        opt_deinit(&o);
        must_load(ARGS(arg, model, config), ARGS(env), &o);
        check_value(&o, r, v[2], "all sources");
        opt_deinit(&o);
        must_load(ARGS(arg, model), NULL, &o);
        check_value(&o, r, v[2], "the command line");
        opt_deinit(&o);
    }
}

static void values_may_stand_apart_and_flags_stand_alone(void **state)
{
    (void)state;
    ltd_options o;
    must_load(ARGS("--model", "m", "--port", "0", "--disable-mla", "--log-requests=false", "--device", "cpu",
                   "--dtype", "bfloat16", "--kv-cache-dtype", "f32"),
              NULL, &o);
    assert_int_equal(o.port, 0);
    assert_true(o.disable_mla);
    assert_false(o.log_requests);
    assert_int_equal(o.device, OPT_DEVICE_CPU);
    assert_int_equal(o.dtype, OPT_DTYPE_BF16);
    assert_int_equal(o.kv_cache_dtype, OPT_DTYPE_F32);
    opt_deinit(&o);
    must_load(ARGS("--model=a", "--port=1", "--port=2", "--reuse-generated", "off", "--log-format=json",
                   "--debug-endpoints=local"),
              ARGS("LATENTD_DISABLE_MLA=1", "LATENTD_CHECK_CONFIG=0"), &o);
    assert_int_equal(o.port, 2); /* the last one counts */
    assert_false(o.reuse_generated);
    assert_true(o.log_json && o.disable_mla);
    assert_int_equal(o.debug_endpoints, OPT_DEBUG_LOCAL);
    opt_deinit(&o);
}

static void aliases_mean_the_same(void **state)
{
    (void)state;
    ltd_options o;
    must_load(ARGS("--model-path", "m", "--max-model-len", "77", "--gpu-memory-utilization=0.5",
                   "--max-num-seqs=9", "--max-num-batched-tokens", "33", "--no-enable-prefix-caching"),
              NULL, &o);
    assert_string_equal(o.model, "m");
    assert_int_equal(o.context_length, 77);
    assert_true(o.mem_fraction == 0.5);
    assert_int_equal(o.max_running_requests, 9);
    assert_int_equal(o.chunked_prefill_size, 33);
    assert_true(o.disable_radix_cache);
    opt_deinit(&o);
    must_load(ARGS("--model=m", "--mem-fraction-static=0.25"), NULL, &o);
    assert_true(o.mem_fraction == 0.25);
    opt_deinit(&o);
}

static void served_names_come_from_one_source(void **state)
{
    (void)state;
    char config[300];
    ltd_options o;
    snprintf(config, sizeof config, "--config=%s", file_path);
    write_file("{\"model\": \"m\", \"served_model_name\": [\"f1\", \"f2\"]}");
    must_load(ARGS(config), NULL, &o);
    assert_int_equal(o.n_served_names, 2);
    assert_string_equal(o.served_names[1], "f2");
    opt_deinit(&o);
    must_load(ARGS(config), ARGS("LATENTD_SERVED_MODEL_NAME=e1,e2,e3"), &o);
    assert_int_equal(o.n_served_names, 3);
    assert_string_equal(o.served_names[0], "e1");
    opt_deinit(&o);
    must_load(ARGS("--served-model-name", "a,b", config, "--served-model-name=c d"),
              ARGS("LATENTD_SERVED_MODEL_NAME=e1"), &o);
    assert_int_equal(o.n_served_names, 2);
    assert_string_equal(o.served_names[0], "a,b");
    assert_string_equal(o.served_names[1], "c d");
    ltd_buf b = {0};
    opt_dump_text(&o, true, &b);
    assert_string_equal(b.data, "model=m served-model-name=[\"a,b\",\"c d\"]");
    ltd_buf_clear(&b);
    opt_dump_json(&o, true, &b);
    assert_string_equal(b.data, "{\"model\":\"m\",\"served-model-name\":[\"a,b\",\"c d\"]}");
    ltd_buf_deinit(&b);
    opt_deinit(&o);
    must_fail(ARGS("--model=m", "--served-model-name=a", "--served-model-name=a"), NULL,
              ARGS("--served-model-name", "twice"));
    must_fail(ARGS("--model=m", "--served-model-name="), NULL, ARGS("--served-model-name", "empty"));
    must_fail(ARGS("--model=m"), ARGS("LATENTD_SERVED_MODEL_NAME=a,,b"),
              ARGS("--served-model-name", "empty"));
    must_fail(ARGS("--model=m"), ARGS("LATENTD_SERVED_MODEL_NAME=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"),
              ARGS("--served-model-name", "16"));
}

/* ---------------------------------------------------------------- refusals */

static void refused_from_everywhere(const opt_row *r, const char *value, bool as_text)
{
    char arg[200], env[200], name[48], option[64], config[300], text[300];
    snprintf(option, sizeof option, "--%s", r->name);
    snprintf(arg, sizeof arg, "--%s=%s", r->name, value);
    must_fail(ARGS("--model=m", arg), NULL, ARGS(option, "command line"));
    opt__env_name(r, name);
    snprintf(env, sizeof env, "%s=%s", name, value);
    must_fail(ARGS("--model=m"), ARGS(env), ARGS(option, "environment", name));
    snprintf(text, sizeof text,
             as_text ? "{\"model\": \"m\", \"%s\": \"%s\"}" : "{\"model\": \"m\", \"%s\": %s}", r->name,
             value);
    write_file(text);
    snprintf(config, sizeof config, "--config=%s", file_path);
    must_fail(ARGS(config), NULL, ARGS(r->name, file_path));
}

static void every_bad_value_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const no_numbers[] = {"",    "x",   "1x", " 1", "1 ", "0x10",
                                             "nan", "inf", "--", "-",  "1e", "99999999999999999999999"};
    for (int i = 0; i < opt__n_rows; i++) {
        const opt_row *r = &opt__rows[i];
        char below[64], above[64];
        ltd_buf range = {0};
        if (r->type == OPT_T_INT || r->type == OPT_T_NUMBER) {
            double step = r->type == OPT_T_INT ? 1 : 0.001;
            snprintf(below, sizeof below, "%.12g", r->min - step);
            snprintf(above, sizeof above, "%.12g", r->max + step);
            refused_from_everywhere(r, below, false);
            opt__range_text(r, &range);
            must_say(range.data);
            refused_from_everywhere(r, above, false);
            must_say(range.data);
            for (size_t k = 0; k < sizeof no_numbers / sizeof *no_numbers; k++)
                refused_from_everywhere(r, no_numbers[k], true);
            if (r->type == OPT_T_INT) refused_from_everywhere(r, "130.5", false);
        } else if (r->type == OPT_T_CHOICE || r->type == OPT_T_CHOICE2) {
            refused_from_everywhere(r, "bogus", true);
            opt__range_text(r, &range);
            must_say(range.data);
            refused_from_everywhere(r, "", true);
            refused_from_everywhere(r, "au", true);
        } else if (r->type == OPT_T_FLAG) {
            refused_from_everywhere(r, "maybe", true);
            refused_from_everywhere(r, "", true);
        } else if (r->type == OPT_T_STRING && strcmp(r->name, "model") != 0) {
            refused_from_everywhere(r, "", true);
        }
        ltd_buf_deinit(&range);
    }
}

static void limits_of_each_range_are_allowed(void **state)
{
    (void)state;
    for (int i = 0; i < opt__n_rows; i++) {
        const opt_row *r = &opt__rows[i];
        if (r->type != OPT_T_INT && r->type != OPT_T_NUMBER) continue;
        for (int hi = 0; hi < 2; hi++) {
            char arg[100];
            ltd_options o;
            snprintf(arg, sizeof arg, "--%s=%.12g", r->name, hi ? r->max : r->min);
            /* These two bound one another. */
            const char *other = strcmp(r->name, "max-n") == 0         ? "--max-choices=65536"
                                : strcmp(r->name, "max-choices") == 0 ? "--max-n=1"
                                                                      : "--log-requests";
            must_load(ARGS("--model=m", arg, other), NULL, &o);
            opt_deinit(&o);
        }
    }
}

static void unknown_options_are_named_with_the_nearest(void **state)
{
    (void)state;
    must_fail(ARGS("--modle", "m"), NULL, ARGS("unknown option --modle", "--model"));
    must_fail(ARGS("--model=m", "--max-running=3"), NULL, ARGS("--max-running;", "--max-running-requests"));
    must_fail(ARGS("--model=m", "--Port=3"), NULL, ARGS("--Port", "nearest is --port"));
    must_fail(ARGS("--model=m", "--context_length=3"), NULL,
              ARGS("--context_length", "nearest is --context-length"));
    must_fail(ARGS("--model=m", "--zzzzzzzzzzzz=3"), NULL, ARGS("unknown option --zzzzzzzzzzzz ", "--help"));
    must_fail(ARGS("--model=m", "--", "x"), NULL, ARGS("\"--\""));
    must_fail(ARGS("m"), NULL, ARGS("\"m\"", "--model"));
    must_fail(ARGS("-p", "3"), NULL, ARGS("\"-p\""));
    must_fail(ARGS("--model"), NULL, ARGS("--model needs a value"));
    must_fail(ARGS("--port", "--model=m"), NULL, ARGS("--port needs a value"));
    must_fail(ARGS("--model=m"), ARGS("LATENTD_PROT=1"), ARGS("LATENTD_PROT", "LATENTD_PORT"));
    must_fail(ARGS("--model=m"), ARGS("LATENTD_MAX_MODEL_LEN=1"),
              ARGS("LATENTD_MAX_MODEL_LEN", "LATENTD_CONTEXT_LENGTH"));
    must_fail(ARGS("--model=m"), ARGS("LATENTD_=1"), ARGS("LATENTD_"));
    must_fail(ARGS("--model=m"), ARGS("LATENTD_port=1"), ARGS("LATENTD_port"));
    must_fail(ARGS("--model=m"), ARGS("LATENTD_MAX-N=1"), ARGS("LATENTD_MAX-N"));
    must_fail(ARGS("--model=m"), ARGS("LATENTD_HELP=1"), ARGS("LATENTD_HELP"));
    ltd_options o;
    must_load(ARGS("--model=m"), ARGS("LATENTDX=1", "XLATENTD_PORT=x"), &o);
    opt_deinit(&o);
}

static void bad_files_are_refused_with_key_and_file(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"[]", "must be a JSON object"},
        {"{", "line 1"},
        {"", "line 1"},
        {"{\"port\": 1, \"port\": 2}", "duplicate key \"port\""},
        {"{\"max-n\": 1, \"max_n\": 2}", "\"max-n\" is there twice"},
        {"{\"prot\": 1}", "unknown option prot; the nearest is port"},
        {"{\"max-model-len\": 1}", "nearest is context-length"},
        {"{\"config\": \"x\"}", "\"config\" cannot be set"},
        {"{\"help\": true}", "\"help\" cannot"},
        {"{\"port\": \"80\"}", "\"port\" must be a number"},
        {"{\"port\": null}", "\"port\" must be a number"},
        {"{\"port\": true}", "\"port\" must be"},
        {"{\"disable-mla\": 1}", "\"disable-mla\" must be true or false"},
        {"{\"model\": 1}", "\"model\" must be a string"},
        {"{\"served-model-name\": [1]}", "\"served-model-name\" must be"},
        {"{\"served-model-name\": 1}", "\"served-model-name\" must be"},
        {"{\"device\": true}", "\"device\" must be a string"},
        {"{\"log-format\": true}", "\"log-format\" must be a string"},
        {"{\"host\": {}}", "\"host\" must be"},
        {"{\"port\": 1e30}", "--port"},
    };
    char config[300];
    snprintf(config, sizeof config, "--config=%s", file_path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(cases[i].text);
        must_fail(ARGS("--model=m", config), NULL, ARGS(cases[i].says, file_path));
    }
    must_fail(ARGS("--model=m", "--config=/nowhere/x.json"), NULL, ARGS("--config", "/nowhere/x.json"));
    must_fail(ARGS("--model=m"), ARGS("LATENTD_CONFIG=/nowhere/x.json"),
              ARGS("LATENTD_CONFIG", "/nowhere/x.json"));
    write_file("{\"reuse_generated\": false, \"port\": 3e2, \"mem_fraction\": 0.5}");
    ltd_options o;
    char env[300];
    snprintf(env, sizeof env, "LATENTD_CONFIG=%s", file_path);
    must_load(ARGS("--model=m"), ARGS(env), &o);
    assert_false(o.reuse_generated);
    assert_int_equal(o.port, 300);
    opt_deinit(&o);
    must_load(ARGS("--model=m", config), ARGS("LATENTD_CONFIG=/nowhere/x.json"),
              &o); /* the command line's file is read */
    opt_deinit(&o);
}

static void combinations_are_checked(void **state)
{
    (void)state;
    must_fail(NULL, ARGS("LATENTD_PORT=1"), ARGS("--model", "DIR", "--help"));
    must_fail(ARGS("--model="), NULL, ARGS("--model"));
    must_fail(ARGS("--model=m", "--context-block=200"), NULL, ARGS("--context-block", "multiple of 128"));
    must_fail(ARGS("--model=m", "--max-n=64", "--max-choices=63"), NULL, ARGS("--max-choices", "--max-n"));
    must_fail(ARGS("--model=m", "--check-config", "--perplexity=x"), NULL,
              ARGS("--check-config", "--perplexity"));
}

/* ---------------------------------------------------------------- help, dumps, the sample */

/* What opt_load prints to stdout with these arguments. */
static void printed_by(const char *const *args, const char *const *env, ltd_buf *out)
{
    char path[] = "/tmp/ltd-test-XXXXXX", *data;
    size_t len;
    ltd_options o;
    opt_action action;
    fflush(stdout);
    int fd = mkstemp(path), keep = dup(1);
    dup2(fd, 1);
    ltd_status st = load(args, env, &o, &action);
    fflush(stdout);
    dup2(keep, 1);
    close(keep);
    close(fd);
    assert_int_equal(st, LTD_OK);
    assert_int_equal(action, OPT_EXIT_OK);
    opt_deinit(&o);
    assert_int_equal(ltd_read_file(path, 0, &data, &len, NULL), LTD_OK);
    ltd_buf_add(out, data, len);
    ltd_free(data);
    unlink(path);
}

static void help_lists_every_option(void **state)
{
    (void)state;
    ltd_buf help = {0};
    printed_by(ARGS("--help"), NULL, &help);
    for (int i = 0; i < opt__n_rows; i++) {
        const opt_row *r = &opt__rows[i];
        char word[100], env[48];
        snprintf(word, sizeof word, "\n  --%s", r->name);
        if (!strstr(help.data, word)) fail_msg("--help lacks --%s", r->name);
        assert_non_null(strstr(help.data, r->group));
        opt__env_name(r, env);
        if (r->type != OPT_T_ACTION && !strstr(help.data, env)) fail_msg("--help lacks %s", env);
        for (const char *a = r->aliases; a; a = strchr(a, ' ') ? strchr(a, ' ') + 1 : NULL) {
            snprintf(word, sizeof word, ", --%.*s", (int)strcspn(a, " "), a);
            if (!strstr(help.data, word)) fail_msg("--help lacks%s", word + 1);
        }
        if (r->type == OPT_T_INT) {
            snprintf(word, sizeof word, "Default %.12g; %.12g to %.12g", r->def, r->min, r->max);
            if (!strstr(help.data, word)) fail_msg("--help lacks the range of --%s", r->name);
        }
    }
    for (const char *line = help.data, *end; (end = strchr(line, '\n')); line = end + 1)
        assert_true(end - line <= 100);
    ltd_buf_deinit(&help);
    /* Also beside what would be wrong. */
    printed_by(ARGS("--bogus", "-h"), ARGS("LATENTD_BOGUS=1"), &help);
    assert_true(help.len > 1000);
    ltd_buf_deinit(&help);
    printed_by(ARGS("--version"), NULL, &help);
    assert_non_null(strstr(help.data, ltd_version));
    ltd_buf_deinit(&help);
}

static void names_are_unambiguous(void **state)
{
    (void)state;
    ltd_buf all = {0};
    ltd_buf_str(&all, " ");
    for (int i = 0; i < opt__n_rows; i++)
        ltd_buf_fmt(&all, "%s %s%s", opt__rows[i].name, opt__rows[i].aliases ? opt__rows[i].aliases : "",
                    opt__rows[i].aliases ? " " : "");
    for (char *w = all.data + 1, *end; (end = strchr(w, ' ')); w = end + 1) {
        char word[100];
        snprintf(word, sizeof word, "%.*s ", (int)(end - w + 1), w - 1);
        assert_true(strlen(word) > 2);
        if (strstr(end, word)) fail_msg("two options are called %s", word);
    }
    ltd_buf_deinit(&all);
}

static void dump_shows_what_changed(void **state)
{
    (void)state;
    ltd_options o;
    ltd_buf b = {0};
    cJSON *doc = NULL;
    must_load(ARGS("--model=my models/x=1", "--port=1", "--disable-mla", "--mem-fraction=0.7",
                   "--reuse-generated=off", "--perplexity=f", "--host=127.0.0.1"),
              NULL, &o);
    opt_dump_text(&o, true, &b);
    assert_string_equal(
        b.data,
        "model=\"my models/x=1\" disable-mla=true mem-fraction=0.7 reuse-generated=off port=1 perplexity=f");
    ltd_buf_clear(&b);
    opt_dump_json(&o, true, &b);
    assert_string_equal(b.data, "{\"model\":\"my "
                                "models/"
                                "x=1\",\"disable-mla\":true,\"mem-fraction\":0.7,\"reuse-generated\":\"off\","
                                "\"port\":1,\"perplexity\":\"f\"}");
    ltd_buf_clear(&b);
    opt_dump_json(&o, false, &b);
    assert_int_equal(ltd_json_parse(b.data, b.len, NULL, &doc, &err), LTD_OK);
    for (int i = 0; i < opt__n_rows; i++)
        assert_int_equal(ltd_json_get(doc, opt__rows[i].name) != NULL, is_value(&opt__rows[i]));
    cJSON_Delete(doc);
    ltd_buf_deinit(&b);
    opt_deinit(&o);
}

static void sample_file_is_valid(void **state)
{
    (void)state;
    if (access("config/latentd.json", R_OK) != 0) skip(); /* not run from the repository's root */
    ltd_options o;
    must_load(ARGS("--config", "config/latentd.json"), NULL, &o);
    assert_int_equal(o.n_served_names, 2);
    opt_deinit(&o);
}

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(file_path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(file_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_with_the_model_alone_gives_the_defaults),
        cmocka_unit_test(served_name_is_the_folders_own),
        cmocka_unit_test(each_source_wins_over_the_weaker_ones),
        cmocka_unit_test(values_may_stand_apart_and_flags_stand_alone),
        cmocka_unit_test(aliases_mean_the_same),
        cmocka_unit_test(served_names_come_from_one_source),
        cmocka_unit_test(every_bad_value_is_refused_by_name),
        cmocka_unit_test(limits_of_each_range_are_allowed),
        cmocka_unit_test(unknown_options_are_named_with_the_nearest),
        cmocka_unit_test(bad_files_are_refused_with_key_and_file),
        cmocka_unit_test(combinations_are_checked),
        cmocka_unit_test(help_lists_every_option),
        cmocka_unit_test(names_are_unambiguous),
        cmocka_unit_test(dump_shows_what_changed),
        cmocka_unit_test(sample_file_is_valid),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
