/* options.c - the daemon's options: one table, four sources.
 * default < JSON file < environment < command line.  Every source hands its values as text (or a JSON value)
 * to the same setters, so that a range, its message and its help cannot drift apart.  --help, GET /info and
 * the start's log line are made from the same table in options_text.c. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_private.h"

/* clang-format off */
#define F(field) offsetof(ltd_options, field)
#define STRING(name, alias, field, def, what, group, help)                                                   \
    {name, alias, OPT_T_STRING, F(field), 0, 0, 0, def, what, group, help}
#define INT(name, alias, field, def, min, max, unit, group, help)                                            \
    {name, alias, OPT_T_INT, F(field), def, min, max, NULL, unit, group, help}
#define NUMBER(name, alias, field, def, min, max, unit, group, help)                                         \
    {name, alias, OPT_T_NUMBER, F(field), def, min, max, NULL, unit, group, help}
#define FLAG(name, alias, field, group, help)                                                                \
    {name, alias, OPT_T_FLAG, F(field), 0, 0, 1, NULL, NULL, group, help}
#define CHOICE(name, alias, field, def, choices, group, help)                                                \
    {name, alias, sizeof(((ltd_options *)0)->field) == sizeof(bool) ? OPT_T_CHOICE2 : OPT_T_CHOICE,          \
     F(field), def, 0, 0, choices, NULL, group, help}

static const char MODEL[] = "Model", DEVICE[] = "Device and memory", SCHED[] = "Scheduler",
                  SERVER[] = "Server", OPERATION[] = "Operation", ACTION[] = "Instead of serving";

#define DAY 86400

const opt_row opt__rows[] = {
    STRING("model", "model-path", model, NULL, "DIR", MODEL,
        "Checkpoint folder in Hugging Face format (config.json, *.safetensors, tokenizer.json). Required."),
    {"served-model-name", NULL, OPT_T_NAMES, F(served_names), 0, 0, 0, NULL, "NAME", MODEL,
        "Name that requests use for the model; repeat it for several (up to 16; in the environment separated by commas, in "
        "the file an array). Default: the folder's own name."},
    INT("context-length", "max-model-len", context_length, 0, 0, 1 << 24, "tokens", MODEL,
        "Longest prompt plus answer; 0 = the checkpoint's max_position_embeddings."),
    CHOICE("dtype", NULL, dtype, OPT_DTYPE_AUTO, "auto|f32,float32|bf16,bfloat16", MODEL,
        "Activations: auto = f32 on the CPU, bf16 on CUDA."),
    CHOICE("kv-cache-dtype", NULL, kv_cache_dtype, OPT_DTYPE_AUTO, "auto|f32,float32|bf16,bfloat16", MODEL,
        "What the token pool stores: auto = as --dtype."),
    FLAG("disable-mla", NULL, disable_mla, MODEL,
        "Keep decompressed keys and values a head instead of the latent: slower and larger, an independent check."),
    INT("context-block", NULL, context_block, 4096, 128, 1 << 20, "tokens", MODEL,
        "Prefill attends the context in blocks of so many tokens; a multiple of 128. Part of what fixes the bits of an answer."),
    INT("absorb-extend", NULL, absorb_extend, 0, 0, 65536, "rows", MODEL,
        "Prompt remainders of up to so many rows take the absorbed path; 0 = none."),

    CHOICE("device", NULL, device, OPT_DEVICE_AUTO, "auto|cpu|cuda", DEVICE,
        "auto = CUDA where this build and this machine have it, else the CPU."),
    INT("cpu-threads", NULL, cpu_threads, 0, 0, 1024, "threads", DEVICE,
        "Compute threads of the CPU backend; 0 = all processors that the process may use."),
    NUMBER("mem-fraction", "mem-fraction-static gpu-memory-utilization", mem_fraction, 0.9, 0.05, 0.98, "of the device's memory", DEVICE,
        "Everything that is allocated: weights, workspaces and the token pool, which gets what is left."),
    INT("max-total-tokens", NULL, max_total_tokens, 0, 0, 1 << 30, "tokens", DEVICE,
        "Slots of the token pool; 0 = what fits."),

    INT("max-running-requests", "max-num-seqs", max_running_requests, 256, 1, 4096, "sequences", SCHED,
        "Sequences in prefill or decode at once."),
    INT("max-queued-requests", NULL, max_queued_requests, 1024, 1, 1000000, "requests", SCHED,
        "Requests waiting; above that the answer is 503."),
    INT("chunked-prefill-size", "max-num-batched-tokens", chunked_prefill_size, 0, 0, 1 << 20, "tokens", SCHED,
        "Prompt rows in one step, between which running answers go on; 0 = 8192 on CUDA, 128 on the CPU."),
    FLAG("disable-radix-cache", "no-enable-prefix-caching", disable_radix_cache, SCHED,
        "Share no prefixes between requests."),
    FLAG("disable-overlap", NULL, disable_overlap, SCHED,
        "One step in flight instead of two."),
    CHOICE("reuse-generated", NULL, reuse_generated, 1, "off|on", SCHED,
        "Let a later prompt reuse the cached rows of generated text; off = the same bits for a conversation's next turn, too."),

    STRING("host", NULL, host, "127.0.0.1", "ADDRESS", SERVER,
        "Address to listen on; 0.0.0.0 or :: = all."),
    INT("port", NULL, port, 8000, 0, 65535, NULL, SERVER,
        "Port to listen on; 0 = any free one, which the log names."),
    INT("max-connections", NULL, max_connections, 4096, 1, 1000000, "connections", SERVER,
        "Open connections; above that the answer is 503."),
    INT("max-body-bytes", NULL, max_body_bytes, 0, 0, 1 << 30, "bytes", SERVER,
        "Largest request body; 0 = the larger of 4 MiB and 48 bytes a token of the context."),
    INT("max-n", NULL, max_n, 128, 1, 4096, "choices", SERVER,
        "Largest n of a request."),
    INT("max-choices", NULL, max_choices, 2048, 1, 65536, "choices", SERVER,
        "Choices of one request in all: its prompts times n; not below --max-n."),
    INT("header-timeout", NULL, header_timeout_s, 10, 0, DAY, "seconds", SERVER,
        "For a request's headers to arrive; 0 = none."),
    INT("idle-timeout", NULL, idle_timeout_s, 75, 0, DAY, "seconds", SERVER,
        "A connection without a request is closed after that; 0 = never."),
    INT("write-timeout", NULL, write_timeout_s, 60, 0, DAY, "seconds", SERVER,
        "A client that takes nothing of its answer for that long is dropped; 0 = never."),
    INT("request-timeout", NULL, request_timeout_s, 0, 0, DAY, "seconds", SERVER,
        "A request ends after that, whatever it has; 0 = never."),
    INT("queue-timeout", NULL, queue_timeout_s, 0, 0, DAY, "seconds", SERVER,
        "A request that has waited that long without starting is answered 503; 0 = never."),
    INT("shutdown-timeout", NULL, shutdown_timeout_s, 30, 0, DAY, "seconds", SERVER,
        "After SIGTERM what runs may take that long to finish; 0 = end it at once."),
    INT("sse-ping-interval", NULL, sse_ping_interval_s, 15, 0, DAY, "seconds", SERVER,
        "A comment line is sent on streams that were silent for that long; 0 = none."),

    CHOICE("log-level", NULL, log_level, LOG_INFO, "error|warn,warning|info|debug", OPERATION,
        "What is logged, to standard error."),
    CHOICE("log-format", NULL, log_json, 0, "text|json", OPERATION,
        "One line an event: key=value text, or a JSON object."),
    FLAG("log-requests", NULL, log_requests, OPERATION,
        "A line for each request when it ends (its sizes and times, never its text)."),
    CHOICE("debug-endpoints", NULL, debug_endpoints, OPT_DEBUG_NO, "no|local|yes", OPERATION,
        "Endpoints that look into and disturb the engine, for tests: local = from this machine only."),
    {"config", NULL, OPT_T_CONFIG, 0, 0, 0, 0, NULL, "FILE", OPERATION,
        "JSON file with options by their long names, weaker than the environment and the command line."},

    FLAG("check-config", NULL, check_config, ACTION,
        "Check the options and the checkpoint's files, say what would be served, and exit."),
    STRING("perplexity", NULL, perplexity_file, NULL, "FILE", ACTION,
        "Print the model's perplexity on this text and exit."),
    {"help", NULL, OPT_T_ACTION, 0, 0, 0, 0, NULL, NULL, ACTION, "Print this and exit."},
    {"version", NULL, OPT_T_ACTION, 0, 0, 0, 0, NULL, NULL, ACTION, "Print the version and exit."},
};
/* clang-format on */
const int opt__n_rows = sizeof opt__rows / sizeof *opt__rows;
_Static_assert(sizeof opt__rows / sizeof *opt__rows <= OPT_ROWS_MAX, "raise OPT_ROWS_MAX");

/* ---------------------------------------------------------------- finding */

/* Whether one of the words in list (parted by sep) is s[0..n). */
static bool among(const char *list, char sep, const char *s, size_t n)
{
    while (list && *list) {
        size_t len = strcspn(list, (const char[]){sep, 0});
        if (len == n && memcmp(list, s, n) == 0) return true;
        list += len + (list[len] ? 1 : 0);
    }
    return false;
}

static const opt_row *find_row(const char *name, size_t len, bool aliases)
{
    for (int i = 0; i < opt__n_rows; i++) {
        const opt_row *r = &opt__rows[i];
        if (strlen(r->name) == len && memcmp(r->name, name, len) == 0) return r;
        if (aliases && among(r->aliases, ' ', name, len)) return r;
    }
    return NULL;
}

/* ---------------------------------------------------------------- setting */

/* Where a value came from: "command line", "environment (LATENTD_PORT)", "file x.json". */
typedef struct opt_source {
    char text[512];
} opt_source;

typedef struct opt_loader {
    ltd_options *o;
    ltd_err *err;
    char *config_file;
    opt_source config_from;
} opt_loader;

static void *field(ltd_options *o, const opt_row *r) { return (char *)o + r->offset; }

static ltd_status refuse(opt_loader *ld, const opt_row *r, const char *value, const opt_source *from)
{
    ltd_buf range = {0};
    opt__range_text(r, &range);
    ltd_status st = ltd_fail(ld->err, LTD_INVALID, "--%s: \"%.100s\" from the %s is not allowed: must be %s",
                             r->name, value, from->text, range.data);
    ltd_buf_deinit(&range);
    return st;
}

static bool parse_int(const char *s, int64_t *out)
{
    const char *p = s + (*s == '-');
    int64_t v = 0;
    if (!*p) return false;
    for (; *p; p++) {
        if (*p < '0' || *p > '9') return false;
        if (v < (int64_t)1 << 58) v = v * 10 + (*p - '0'); /* beyond every range */
    }
    *out = *s == '-' ? -v : v;
    return true;
}

static bool parse_number(const char *s, double *out)
{
    char *end;
    if (!*s || s[strspn(s, "0123456789+-.eE")]) return false; /* no hex, nan, inf, blanks */
    *out = strtod(s, &end);
    return !*end && isfinite(*out);
}

static int find_choice(const opt_row *r, const char *value)
{
    const char *c = r->choices;
    for (int n = 0; *c; n++) {
        char one[2 * OPT_WORD_MAX];
        size_t len = strcspn(c, "|");
        LTD_CHECK(len < sizeof one, "choices of %s", r->name);
        memcpy(one, c, len);
        one[len] = '\0';
        if (among(one, ',', value, strlen(value))) return n;
        c += len + (c[len] ? 1 : 0);
    }
    return -1;
}

static void set_choice(ltd_options *o, const opt_row *r, int n)
{
    if (r->type == OPT_T_CHOICE2)
        *(bool *)field(o, r) = n != 0;
    else
        memcpy(field(o, r), &n, sizeof n); /* every enum of ltd_options is an int wide */
}
_Static_assert(sizeof(opt_device) == sizeof(int) && sizeof(opt_dtype) == sizeof(int) &&
                   sizeof(opt_debug) == sizeof(int) && sizeof(log_level) == sizeof(int),
               "set_choice writes an int");

static ltd_status add_name(opt_loader *ld, const opt_row *r, const char *s, size_t n, const opt_source *from)
{
    ltd_options *o = ld->o;
    if (n == 0) return ltd_fail(ld->err, LTD_INVALID, "--%s: an empty name from the %s", r->name, from->text);
    if (o->n_served_names == OPT_MAX_NAMES)
        return ltd_fail(ld->err, LTD_INVALID, "--%s: more than %d names from the %s", r->name, OPT_MAX_NAMES,
                        from->text);
    for (int i = 0; i < o->n_served_names; i++)
        if (strlen(o->served_names[i]) == n && memcmp(o->served_names[i], s, n) == 0)
            return ltd_fail(ld->err, LTD_INVALID, "--%s: \"%.*s\" given twice from the %s", r->name, (int)n,
                            s, from->text);
    char *name = ltd_alloc(n + 1);
    memcpy(name, s, n);
    name[n] = '\0';
    o->served_names[o->n_served_names++] = name;
    return LTD_OK;
}

static void clear_names(ltd_options *o)
{
    for (int i = 0; i < o->n_served_names; i++) ltd_free(o->served_names[i]);
    memset(o->served_names, 0, sizeof o->served_names);
    o->n_served_names = 0;
}

static void replace_string(char **at, const char *value)
{
    ltd_free(*at);
    *at = ltd_strdup(value);
}

static ltd_status set_text(opt_loader *ld, const opt_row *r, const char *value, const opt_source *from)
{
    void *at = field(ld->o, r);
    int64_t i;
    double d;
    int n;
    switch (r->type) {
    case OPT_T_STRING:
    case OPT_T_CONFIG:
        if (!*value)
            return ltd_fail(ld->err, LTD_INVALID, "--%s: an empty value from the %s", r->name, from->text);
        if (r->type == OPT_T_CONFIG) {
            replace_string(&ld->config_file, value);
            ld->config_from = *from;
        } else {
            replace_string(at, value);
        }
        return LTD_OK;
    case OPT_T_NAMES:
        return add_name(ld, r, value, strlen(value), from);
    case OPT_T_INT:
        if (!parse_int(value, &i) || (double)i < r->min || (double)i > r->max)
            return refuse(ld, r, value, from);
        *(int64_t *)at = i;
        return LTD_OK;
    case OPT_T_NUMBER:
        if (!parse_number(value, &d) || d < r->min || d > r->max) return refuse(ld, r, value, from);
        *(double *)at = d;
        return LTD_OK;
    case OPT_T_FLAG:
        n = strcmp(value, "true") == 0 || strcmp(value, "1") == 0;
        if (!n && strcmp(value, "false") != 0 && strcmp(value, "0") != 0) return refuse(ld, r, value, from);
        *(bool *)at = n != 0;
        return LTD_OK;
    case OPT_T_CHOICE:
    case OPT_T_CHOICE2:
        if ((n = find_choice(r, value)) < 0) return refuse(ld, r, value, from);
        set_choice(ld->o, r, n);
        return LTD_OK;
    case OPT_T_ACTION:
        break;
    }
    return ltd_fail(ld->err, LTD_INVALID, "--%s: only on the command line", r->name);
}

/* ---------------------------------------------------------------- the file */

static ltd_status wrong_type(opt_loader *ld, const opt_row *r, const char *wanted, const opt_source *from)
{
    return ltd_fail(ld->err, LTD_INVALID, "%s: \"%s\" must be %s", from->text, r->name, wanted);
}

static ltd_status set_json(opt_loader *ld, const opt_row *r, const cJSON *v, const opt_source *from)
{
    char number[64];
    int64_t i;
    const cJSON *name;
    ltd_status st;
    switch (r->type) {
    case OPT_T_FLAG:
        if (!cJSON_IsBool(v)) return wrong_type(ld, r, "true or false", from);
        return set_text(ld, r, cJSON_IsTrue(v) ? "true" : "false", from);
    case OPT_T_CHOICE2:
        if (cJSON_IsBool(v) && find_choice(r, "on") == 1)
            return set_text(ld, r, cJSON_IsTrue(v) ? "on" : "off", from);
        break;
    case OPT_T_INT:
        if (!cJSON_IsNumber(v)) return wrong_type(ld, r, "a number", from);
        if (ltd_json_int64(v, &i) == LTD_OK)
            snprintf(number, sizeof number, "%lld", (long long)i);
        else
            snprintf(number, sizeof number, "%.17g", v->valuedouble);
        return set_text(ld, r, number, from);
    case OPT_T_NUMBER:
        if (!cJSON_IsNumber(v)) return wrong_type(ld, r, "a number", from);
        snprintf(number, sizeof number, "%.17g", v->valuedouble);
        return set_text(ld, r, number, from);
    case OPT_T_NAMES:
        if (!cJSON_IsArray(v)) break;
        cJSON_ArrayForEach(name, v)
        {
            if (!cJSON_IsString(name)) return wrong_type(ld, r, "a string or an array of strings", from);
            if ((st = set_text(ld, r, name->valuestring, from)) != LTD_OK) return st;
        }
        return LTD_OK;
    default:
        break;
    }
    if (!cJSON_IsString(v))
        return wrong_type(ld, r, r->type == OPT_T_NAMES ? "a string or an array of strings" : "a string",
                          from);
    return set_text(ld, r, v->valuestring, from);
}

/* An option nobody knows: names it and the nearest that there is. */
static ltd_status unknown(opt_loader *ld, const char *what, const char *name, size_t len, const char *prefix)
{
    const opt_row *near = opt__nearest(name, len);
    char hint[160] = "";
    char env[48];
    if (near) {
        opt__env_name(near, env);
        bool upper = strncmp(prefix, "LATENTD_", 8) == 0;
        snprintf(hint, sizeof hint, "; the nearest is %s%s", upper ? "" : prefix, upper ? env : near->name);
    }
    return ltd_fail(ld->err, LTD_INVALID, "%s %s%.*s%s (--help lists all options)", what, prefix,
                    (int)(len < 100 ? len : 100), name, hint);
}

static ltd_status read_file(opt_loader *ld)
{
    cJSON *doc = NULL;
    ltd_err inner = {{0}};
    ltd_status st = ltd_json_parse_file(ld->config_file, 1 << 20, &doc, &inner);
    if (st != LTD_OK)
        return ltd_fail(ld->err, LTD_INVALID, "--config from the %s: %s", ld->config_from.text, inner.text);
    opt_source from;
    snprintf(from.text, sizeof from.text, "file %.500s", ld->config_file);
    bool seen[OPT_ROWS_MAX] = {false};
    const cJSON *m = NULL;
    if (!cJSON_IsObject(doc))
        st = ltd_fail(ld->err, LTD_INVALID, "%s: must be a JSON object of options", from.text);
    cJSON_ArrayForEach(m, doc)
    {
        if (st != LTD_OK) break;
        ltd_buf name = {0};
        ltd_buf_str(&name, m->string);
        for (size_t i = 0; i < name.len; i++)
            if (name.data[i] == '_') name.data[i] = '-';
        const opt_row *r = find_row(name.data, name.len, false);
        if (!r) {
            char what[600];
            snprintf(what, sizeof what, "%s: unknown option", from.text);
            st = unknown(ld, what, name.data, name.len, "");
        } else if (r->type == OPT_T_CONFIG || r->type == OPT_T_ACTION) {
            st = ltd_fail(ld->err, LTD_INVALID, "%s: \"%s\" cannot be set in a file", from.text, r->name);
        } else if (seen[r - opt__rows]) {
            st = ltd_fail(ld->err, LTD_INVALID, "%s: \"%s\" is there twice", from.text, r->name);
        } else {
            seen[r - opt__rows] = true;
            st = set_json(ld, r, m, &from);
        }
        ltd_buf_deinit(&name);
    }
    cJSON_Delete(doc);
    return st;
}

/* ---------------------------------------------------------------- environment and command line */

static ltd_status set_names(opt_loader *ld, const opt_row *r, const char *list, const opt_source *from)
{
    clear_names(ld->o); /* a stronger source replaces the list */
    for (;;) {
        size_t n = strcspn(list, ",");
        ltd_status st = add_name(ld, r, list, n, from);
        if (st != LTD_OK) return st;
        if (!list[n]) return LTD_OK;
        list += n + 1;
    }
}

/* only: this row and no other, or NULL for all but --config. */
static ltd_status read_environment(opt_loader *ld, char **envp, const opt_row *only)
{
    for (; envp && *envp; envp++) {
        const char *eq = strchr(*envp, '=');
        if (strncmp(*envp, "LATENTD_", 8) != 0 || !eq) continue;
        char name[64], env[48];
        size_t n = (size_t)(eq - *envp) - 8, i = 0;
        for (; i < n && i < sizeof name - 1; i++) {
            char c = (*envp)[8 + i];
            name[i] = c == '_' ? '-' : c >= 'A' && c <= 'Z' ? (char)(c + 32) : '?'; /* '?': in no name */
        }
        const opt_row *r = n == i ? find_row(name, n, false) : NULL;
        if (!r || r->type == OPT_T_ACTION) {
            if (only) continue;
            return unknown(ld, "unknown option in the environment:", *envp + 8, n, "LATENTD_");
        }
        if (only ? r != only : r->type == OPT_T_CONFIG) continue;
        opt_source from;
        opt__env_name(r, env);
        snprintf(from.text, sizeof from.text, "environment (%s)", env);
        ltd_status st =
            r->type == OPT_T_NAMES ? set_names(ld, r, eq + 1, &from) : set_text(ld, r, eq + 1, &from);
        if (st != LTD_OK) return st;
    }
    return LTD_OK;
}

static ltd_status read_arguments(opt_loader *ld, int argc, char **argv, const opt_row *only)
{
    static const opt_source from = {"command line"};
    bool names_seen = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value = NULL;
        if (strncmp(a, "--", 2) != 0 || !a[2]) {
            if (only) continue;
            return ltd_fail(
                ld->err, LTD_INVALID,
                "unexpected argument \"%.200s\": options begin with --, the checkpoint is --model DIR", a);
        }
        size_t len = strcspn(a + 2, "=");
        const opt_row *r = find_row(a + 2, len, true);
        if (!r) {
            if (only) continue;
            return unknown(ld, "unknown option", a + 2, len, "--");
        }
        if (a[2 + len] == '=') {
            value = a + 2 + len + 1;
        } else if (r->type == OPT_T_FLAG) {
            value = "true";
        } else if (i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0) {
            value = argv[++i];
        } else {
            if (only && r != only) continue;
            return ltd_fail(ld->err, LTD_INVALID, "--%s needs a value", r->name);
        }
        if (only ? r != only : r->type == OPT_T_CONFIG) continue;
        if (r->type == OPT_T_NAMES && !names_seen) {
            names_seen = true;
            clear_names(ld->o);
        }
        ltd_status st = set_text(ld, r, value, &from);
        if (st != LTD_OK) return st;
    }
    return LTD_OK;
}

/* ---------------------------------------------------------------- the whole */

static void set_defaults(ltd_options *o)
{
    for (const opt_row *r = opt__rows; r < opt__rows + opt__n_rows; r++) {
        if (r->type == OPT_T_INT) *(int64_t *)field(o, r) = (int64_t)r->def;
        if (r->type == OPT_T_NUMBER) *(double *)field(o, r) = r->def;
        if (r->type == OPT_T_CHOICE || r->type == OPT_T_CHOICE2) set_choice(o, r, (int)r->def);
        if (r->type == OPT_T_STRING && r->choices) replace_string(field(o, r), r->choices);
    }
}

static ltd_status check_combinations(const ltd_options *o, ltd_err *err)
{
    if (!o->model)
        return ltd_fail(err, LTD_INVALID,
                        "--model is missing: give the folder of a checkpoint, --model DIR (or LATENTD_MODEL, "
                        "or \"model\" "
                        "in the --config file; --help lists all options)");
    if (o->context_block % 128 != 0)
        return ltd_fail(err, LTD_INVALID, "--context-block: %lld is not allowed: must be a multiple of 128",
                        (long long)o->context_block);
    if (o->max_choices < o->max_n)
        return ltd_fail(err, LTD_INVALID,
                        "--max-choices: %lld is below --max-n %lld: raise the one or lower the other",
                        (long long)o->max_choices, (long long)o->max_n);
    if (o->check_config && o->perplexity_file)
        return ltd_fail(err, LTD_INVALID, "--check-config and --perplexity exclude one another");
    return LTD_OK;
}

static opt_action asked_action(int argc, char **argv)
{
    ltd_buf out = {0};
    for (int i = 1; i < argc && !out.len; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) opt__help(&out);
        if (strcmp(argv[i], "--version") == 0)
            ltd_buf_fmt(&out, "latentd %s (%s)\n", ltd_version, ltd_build_id);
    }
    if (!out.len) return OPT_SERVE;
    fwrite(out.data, 1, out.len, stdout);
    fflush(stdout);
    ltd_buf_deinit(&out);
    return OPT_EXIT_OK;
}

ltd_status opt_load(int argc, char **argv, char **envp, ltd_options *o, opt_action *action, ltd_err *err)
{
    memset(o, 0, sizeof *o);
    if ((*action = asked_action(argc, argv)) == OPT_EXIT_OK) return LTD_OK;
    opt_loader ld = {.o = o, .err = err};
    const opt_row *config = find_row("config", 6, false);
    ltd_status st;
    set_defaults(o);
    if ((st = read_environment(&ld, envp, config)) != LTD_OK) goto fail;
    if ((st = read_arguments(&ld, argc, argv, config)) != LTD_OK) goto fail;
    if (ld.config_file && (st = read_file(&ld)) != LTD_OK) goto fail;
    if ((st = read_environment(&ld, envp, NULL)) != LTD_OK) goto fail;
    if ((st = read_arguments(&ld, argc, argv, NULL)) != LTD_OK) goto fail;
    if ((st = check_combinations(o, err)) != LTD_OK) goto fail;
    if (o->n_served_names == 0) o->served_names[o->n_served_names++] = opt__folder_name(o->model);
    ltd_free(ld.config_file);
    return LTD_OK;
fail:
    ltd_free(ld.config_file);
    opt_deinit(o);
    return st;
}

void opt_deinit(ltd_options *o)
{
    clear_names(o);
    for (const opt_row *r = opt__rows; r < opt__rows + opt__n_rows; r++)
        if (r->type == OPT_T_STRING) ltd_free(*(char **)field(o, r));
    memset(o, 0, sizeof *o);
}
