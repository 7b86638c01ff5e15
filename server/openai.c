/* openai.c - a /v1/completions body into a checked call, and /tokenize.
 * Runs on libuv's pool: it sees the body and the immutable parts of the server, nothing else.  Costs are
 * bounded before they are paid: counts of prompts and choices are checked before anything is allocated for
 * them, and tokenising gives up at the context's length. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server_private.h"

enum { DEFAULT_MAX_TOKENS = 16, MAX_LOGPROBS = 20, MAX_SALT_BYTES = 1024 };

typedef struct parse {
    const srv_const *c;
    const cJSON *root;
    srv_call *call;
    srv_error *e;
    int64_t max_tokens; /* -1 = not given */
    bool add_special;
} parse;

#define TRY(expr)                                                                                            \
    do {                                                                                                     \
        ltd_status try_st = (expr);                                                                          \
        if (try_st != LTD_OK) return try_st;                                                                 \
    } while (0)

/* ---------------------------------------------------------------- numbers and switches */

static ltd_status parse_sampling(parse *p)
{
    sched_request *r = &p->call->r;
    const model_info *mi = p->c->info;
    int64_t top_k = mi->default_top_k, seed = 0, priority = 0;
    r->temperature = mi->default_temperature;
    r->top_p = mi->default_top_p;
    r->min_p = mi->default_min_p;
    TRY(srv__field_num(p->root, "temperature", 0, 2, &r->temperature, p->e));
    TRY(srv__field_num(p->root, "top_p", 0, 1, &r->top_p, p->e));
    TRY(srv__field_num(p->root, "min_p", 0, 1, &r->min_p, p->e));
    TRY(srv__field_int(p->root, "top_k", -1, INT32_MAX, &top_k, p->e));
    r->top_k = top_k < 0 ? 0 : (int32_t)top_k;
    TRY(srv__field_int(p->root, "seed", INT64_MIN, INT64_MAX, &seed, p->e));
    r->seed = (uint64_t)seed;
    TRY(srv__field_int(p->root, "priority", INT32_MIN, INT32_MAX, &priority, p->e));
    r->priority = (int32_t)priority;
    return LTD_OK;
}

static ltd_status parse_counts(parse *p)
{
    srv_call *call = p->call;
    int64_t n = 1, logprobs = -1;
    TRY(srv__field_int(p->root, "n", 1, p->c->o->max_n, &n, p->e));
    call->n = (int32_t)n;
    call->r.n = call->n;
    TRY(srv__field_int(p->root, "max_tokens", 0, INT64_MAX, &p->max_tokens, p->e));
    TRY(srv__field_int(p->root, "logprobs", 0, MAX_LOGPROBS, &logprobs, p->e));
    TRY(srv__field_bool(p->root, "echo", &call->echo, p->e));
    call->logprobs = logprobs >= 0;
    call->r.n_logprobs = (int32_t)logprobs;
    call->r.n_prompt_logprobs = call->echo ? (int32_t)logprobs : -1;
    if (p->max_tokens == 0 && !call->echo)
        return srv__error(p->e, 400, "max_tokens", NULL, "'max_tokens' must be at least 1 without 'echo'");
    return srv__fields_unserved(p->root, n, p->e);
}

static ltd_status parse_switches(parse *p)
{
    srv_call *call = p->call;
    const cJSON *so = ltd_json_get(p->root, "stream_options");
    bool usage_each = false;
    call->r.skip_special = true;
    p->add_special = true;
    TRY(srv__field_bool(p->root, "stream", &call->stream, p->e));
    TRY(srv__field_bool(p->root, "ignore_eos", &call->r.ignore_eos, p->e));
    TRY(srv__field_bool(p->root, "skip_special_tokens", &call->r.skip_special, p->e));
    TRY(srv__field_bool(p->root, "add_special_tokens", &p->add_special, p->e));
    TRY(srv__field_bool(p->root, "include_stop_str_in_output", &call->r.include_stop, p->e));
    if (ltd_json_is_null(so)) return LTD_OK;
    if (!cJSON_IsObject(so))
        return srv__error(p->e, 400, "stream_options", NULL, "'stream_options' must be an object");
    if (!call->stream)
        return srv__error(p->e, 400, "stream_options", NULL,
                          "'stream_options' is only allowed with 'stream': true");
    TRY(srv__field_bool(so, "include_usage", &call->include_usage, p->e));
    TRY(srv__field_bool(so, "continuous_usage_stats", &usage_each, p->e));
    if (usage_each)
        return srv__error(
            p->e, 400, "stream_options", "unsupported_parameter",
            "'stream_options.continuous_usage_stats' is not supported yet; leave it out or send false");
    return LTD_OK;
}

/* ---------------------------------------------------------------- stop rules and labels */

static ltd_status add_stop(parse *p, const cJSON *v)
{
    srv_call *call = p->call;
    if (!cJSON_IsString(v))
        return srv__error(p->e, 400, "stop", NULL, "'stop' must be a string or a list of strings");
    size_t n = strlen(v->valuestring);
    if (n == 0) return srv__error(p->e, 400, "stop", NULL, "'stop': a stop string must not be empty");
    if (n > SRV_MAX_STOP_BYTES)
        return srv__error(p->e, 400, "stop", NULL, "'stop': a stop string has at most %d bytes, not %zu",
                          SRV_MAX_STOP_BYTES, n);
    if (call->r.n_stops == SCHED_MAX_STOPS)
        return srv__error(p->e, 400, "stop", NULL, "'stop' takes at most %d strings", SCHED_MAX_STOPS);
    int i = call->r.n_stops++;
    call->stops[i] = ltd_strdup(v->valuestring);
    call->r.stops[i] = call->stops[i];
    call->r.stop_lens[i] = n;
    return LTD_OK;
}

static ltd_status parse_stops(parse *p)
{
    sched_request *r = &p->call->r;
    const cJSON *v = ltd_json_get(p->root, "stop"), *at;
    if (cJSON_IsArray(v)) {
        cJSON_ArrayForEach(at, v) TRY(add_stop(p, at));
    } else if (!ltd_json_is_null(v)) {
        TRY(add_stop(p, v));
    }
    v = ltd_json_get(p->root, "stop_token_ids");
    if (ltd_json_is_null(v)) return LTD_OK;
    if (!cJSON_IsArray(v))
        return srv__error(p->e, 400, "stop_token_ids", NULL, "'stop_token_ids' must be a list of token ids");
    cJSON_ArrayForEach(at, v)
    {
        if (r->n_stop_ids == SCHED_MAX_STOP_IDS)
            return srv__error(p->e, 400, "stop_token_ids", NULL, "'stop_token_ids' takes at most %d ids",
                              SCHED_MAX_STOP_IDS);
        TRY(srv__field_id(p->c, at, "stop_token_ids", &r->stop_ids[r->n_stop_ids], p->e));
        r->n_stop_ids++;
    }
    return LTD_OK;
}

static ltd_status parse_labels(parse *p)
{
    const cJSON *v = ltd_json_get(p->root, "request_id");
    if (!ltd_json_is_null(v)) {
        size_t n = cJSON_IsString(v) ? strlen(v->valuestring) : 0;
        bool ok = n >= 1 && n <= SRV_MAX_LABEL;
        for (size_t i = 0; ok && i < n; i++) ok = v->valuestring[i] > 0x20 && v->valuestring[i] < 0x7F;
        if (!ok)
            return srv__error(p->e, 400, "request_id", NULL,
                              "'request_id' must be 1 to %d printable ASCII characters without spaces",
                              SRV_MAX_LABEL);
        memcpy(p->call->label, v->valuestring, n + 1);
    }
    v = ltd_json_get(p->root, "cache_salt");
    if (ltd_json_is_null(v)) return LTD_OK;
    size_t n = cJSON_IsString(v) ? strlen(v->valuestring) : 0;
    if (n < 1 || n > MAX_SALT_BYTES)
        return srv__error(p->e, 400, "cache_salt", NULL, "'cache_salt' must be a string of 1 to %d bytes",
                          MAX_SALT_BYTES);
    srv__hash128(p->c->salt_key, v->valuestring, n, p->call->r.salt);
    if (!p->call->r.salt[0]) p->call->r.salt[0] = 1; /* all zero means no salt */
    return LTD_OK;
}

/* ---------------------------------------------------------------- prompts */

static ltd_status too_long(parse *p, int64_t n, bool at_least)
{
    return srv__error(p->e, 400, "prompt", "context_length_exceeded",
                      "The prompt has %s%lld tokens, the model's context holds %d",
                      at_least ? "at least " : "", (long long)n, p->c->info->context_length);
}

static ltd_status prompt_from_text(parse *p, const cJSON *v, srv_prompt *to)
{
    const tok_info *ti = tok_get_info(p->c->tok);
    size_t len = strlen(v->valuestring);
    int64_t n = 0;
    ltd_err err;
    ltd_status st = tok_encode(p->c->tok, v->valuestring, len, p->add_special ? TOK_ADD_SPECIAL : TOK_PLAIN,
                               p->c->info->context_length, &to->ids, &n, &err);
    if (st == LTD_TOO_LARGE) return too_long(p, n, true);
    if (st != LTD_OK)
        return srv__error(p->e, 400, "prompt", NULL, "'prompt' cannot be tokenised: %s", err.text);
    if (n > p->c->info->context_length) return too_long(p, n, false);
    if (n == 0) return srv__error(p->e, 400, "prompt", NULL, "'prompt' must not be empty");
    to->n = (int32_t)n;
    to->from_text = true;
    to->auto_head = p->add_special && ti->add_bos && n > 0 && to->ids[0] == ti->bos;
    to->auto_tail = p->add_special && ti->add_eos && n > 1 && to->ids[n - 1] == ti->eos;
    if (!p->call->echo) return LTD_OK;
    to->text = ltd_strdup(v->valuestring);
    to->text_len = len;
    return LTD_OK;
}

static ltd_status prompt_from_ids(parse *p, const cJSON *v, srv_prompt *to)
{
    const cJSON *at;
    int64_t n = 0;
    cJSON_ArrayForEach(at, v) n++;
    if (n == 0) return srv__error(p->e, 400, "prompt", NULL, "'prompt' must not be empty");
    /* A bad id is named even in a prompt that is too long. */
    int32_t id;
    cJSON_ArrayForEach(at, v)
    {
        if (!cJSON_IsNumber(at))
            return srv__error(p->e, 400, "prompt", NULL,
                              "'prompt': a list holds either strings or token ids, not both");
        TRY(srv__field_id(p->c, at, "prompt", &id, p->e));
    }
    if (n > p->c->info->context_length) return too_long(p, n, false);
    to->ids = ltd_alloc((size_t)n * sizeof *to->ids);
    cJSON_ArrayForEach(at, v) TRY(srv__field_id(p->c, at, "prompt", &to->ids[to->n++], p->e));
    if (!p->call->echo) return LTD_OK;
    ltd_buf text = {0};
    tok_decode(p->c->tok, to->ids, n, p->call->r.skip_special, &text);
    to->text = text.data ? text.data : ltd_strdup("");
    to->text_len = text.len;
    return LTD_OK;
}

static ltd_status prompt_one(parse *p, const cJSON *v, srv_prompt *to)
{
    if (cJSON_IsString(v)) return prompt_from_text(p, v, to);
    if (cJSON_IsArray(v)) return prompt_from_ids(p, v, to);
    return srv__error(
        p->e, 400, "prompt", NULL,
        "'prompt' must be a string, a list of strings, a list of token ids or a list of lists of token ids");
}

static ltd_status parse_prompts(parse *p)
{
    srv_call *call = p->call;
    const cJSON *v = ltd_json_get(p->root, "prompt"), *first = cJSON_IsArray(v) ? v->child : NULL, *at;
    if (ltd_json_is_null(v)) return srv__error(p->e, 400, "prompt", NULL, "'prompt' is required");
    bool many = cJSON_IsString(first) || cJSON_IsArray(first);
    int64_t n = 1;
    if (many) {
        n = 0;
        cJSON_ArrayForEach(at, v) n++;
    }
    if (n * call->n > p->c->o->max_choices)
        return srv__error(p->e, 400, many ? "prompt" : "n", NULL,
                          "%lld prompts x %d choices are over the limit of %lld (--max-choices)",
                          (long long)n, call->n, (long long)p->c->o->max_choices);
    call->prompts = ltd_calloc((size_t)n, sizeof *call->prompts);
    call->n_prompts = (int32_t)n;
    if (!many) return prompt_one(p, v, &call->prompts[0]);
    int32_t i = 0;
    cJSON_ArrayForEach(at, v)
    {
        if (at->type != first->type)
            return srv__error(p->e, 400, "prompt", NULL, "'prompt': the items of a list must be of one kind");
        TRY(prompt_one(p, at, &call->prompts[i++]));
    }
    return LTD_OK;
}

/* A prompt is never cut, and an explicit max_tokens never clamped (D19). */
static ltd_status check_lengths(parse *p)
{
    srv_call *call = p->call;
    int64_t context = p->c->info->context_length, longest = 0;
    for (int32_t i = 0; i < call->n_prompts; i++) {
        int64_t n = call->prompts[i].n;
        call->prompt_tokens += n;
        if (n > longest) longest = n;
    }
    bool given = p->max_tokens >= 0;
    int64_t want = given ? p->max_tokens : 1;
    if (want > context - longest)
        return srv__error(p->e, 400, given ? "max_tokens" : "prompt", "context_length_exceeded",
                          "The prompt has %lld tokens, and %lld more (%s) are over the context of %lld",
                          (long long)longest, (long long)want, given ? "max_tokens" : "the least to generate",
                          (long long)context);
    /* Prompts of one call may have different lengths: the scheduler ends each at the context. */
    call->r.max_tokens = (int32_t)(given ? want : DEFAULT_MAX_TOKENS);
    if (!given && call->r.max_tokens > context) call->r.max_tokens = (int32_t)context;
    return LTD_OK;
}

/* ---------------------------------------------------------------- the whole */

static void log_unknown(const cJSON *root)
{
    static const char *const known[] = {"model",
                                        "prompt",
                                        "max_tokens",
                                        "min_tokens",
                                        "temperature",
                                        "top_p",
                                        "top_k",
                                        "min_p",
                                        "n",
                                        "best_of",
                                        "seed",
                                        "stop",
                                        "stop_token_ids",
                                        "include_stop_str_in_output",
                                        "ignore_eos",
                                        "logprobs",
                                        "echo",
                                        "logit_bias",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "repetition_penalty",
                                        "stream",
                                        "stream_options",
                                        "skip_special_tokens",
                                        "add_special_tokens",
                                        "suffix",
                                        "response_format",
                                        "tools",
                                        "priority",
                                        "cache_salt",
                                        "return_token_ids",
                                        "request_id",
                                        "user",
                                        "metadata",
                                        "store",
                                        "service_tier",
                                        "timings"};
    const cJSON *at;
    if (!log_enabled(LOG_DEBUG)) return;
    cJSON_ArrayForEach(at, root)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known && !found; i++)
            found = !strcmp(known[i], at->string);
        if (!found) log_debug("server", "unknown field ignored name=%.64s", at->string);
    }
}

static ltd_status parse_all(parse *p)
{
    TRY(srv__field_model(p->c, p->root, &p->call->model, p->e));
    TRY(parse_counts(p));
    TRY(parse_sampling(p));
    TRY(parse_switches(p));
    TRY(parse_stops(p));
    TRY(parse_labels(p));
    TRY(parse_prompts(p));
    TRY(check_lengths(p));
    log_unknown(p->root);
    return LTD_OK;
}

ltd_status srv__call_parse(const srv_const *c, const char *body, size_t len, srv_call **out, srv_error *e)
{
    cJSON *root;
    *out = NULL;
    ltd_status st = srv__parse_body(body, len, &root, e);
    if (st != LTD_OK) return st;
    parse p = {.c = c, .root = root, .call = ltd_calloc(1, sizeof *p.call), .e = e, .max_tokens = -1};
    st = parse_all(&p);
    bool seeded = !ltd_json_is_null(ltd_json_get(root, "seed"));
    cJSON_Delete(root);
    if (st != LTD_OK) {
        srv__call_destroy(p.call);
        return st;
    }
    p.call->seeded = seeded;
    *out = p.call;
    return LTD_OK;
}

void srv__call_destroy(srv_call *call)
{
    if (!call) return;
    for (int32_t i = 0; i < call->n_prompts; i++) {
        ltd_free(call->prompts[i].ids);
        ltd_free(call->prompts[i].text);
        ltd_buf_deinit(&call->prompts[i].scores);
    }
    ltd_free(call->prompts);
    for (int i = 0; i < SCHED_MAX_STOPS; i++) ltd_free(call->stops[i]);
    ltd_free(call);
}

/* ---------------------------------------------------------------- /tokenize, /detokenize */

static ltd_status tokenize_root(const srv_const *c, const cJSON *root, ltd_buf *out, srv_error *e)
{
    const char *name;
    bool add_special = true;
    int32_t *ids = NULL;
    int64_t n = 0;
    ltd_err err;
    TRY(srv__field_model(c, root, &name, e));
    TRY(srv__field_bool(root, "add_special_tokens", &add_special, e));
    const cJSON *v = ltd_json_get(root, "prompt");
    if (!ltd_json_is_null(ltd_json_get(root, "messages")))
        return srv__error(e, 400, "messages", "unsupported_parameter",
                          "'messages' is not supported yet; send 'prompt'");
    if (!cJSON_IsString(v)) return srv__error(e, 400, "prompt", NULL, "'prompt' must be a string");
    if (tok_encode(c->tok, v->valuestring, strlen(v->valuestring), add_special ? TOK_ADD_SPECIAL : TOK_PLAIN,
                   0, &ids, &n, &err) != LTD_OK)
        return srv__error(e, 400, "prompt", NULL, "'prompt' cannot be tokenised: %s", err.text);
    ltd_buf_str(out, "{\"tokens\":[");
    for (int64_t i = 0; i < n; i++) {
        char one[16];
        int k = snprintf(one, sizeof one, i ? ",%d" : "%d", ids[i]);
        ltd_buf_add(out, one, (size_t)k);
    }
    ltd_buf_fmt(out, "],\"count\":%lld,\"max_model_len\":%d}", (long long)n, c->info->context_length);
    ltd_free(ids);
    return LTD_OK;
}

static ltd_status detokenize_root(const srv_const *c, const cJSON *root, ltd_buf *out, srv_error *e)
{
    const char *name;
    const cJSON *v = ltd_json_get(root, "tokens"), *at;
    TRY(srv__field_model(c, root, &name, e));
    if (!cJSON_IsArray(v)) return srv__error(e, 400, "tokens", NULL, "'tokens' must be a list of token ids");
    int64_t n = 0;
    ltd_status st = LTD_OK;
    cJSON_ArrayForEach(at, v) n++;
    int32_t *ids = ltd_alloc((size_t)n * sizeof *ids);
    n = 0;
    cJSON_ArrayForEach(at, v)
    {
        if ((st = srv__field_id(c, at, "tokens", &ids[n++], e)) != LTD_OK) break;
    }
    if (st == LTD_OK) {
        ltd_buf text = {0};
        tok_decode(c->tok, ids, n, false, &text);
        ltd_buf_str(out, "{\"prompt\":");
        ltd_buf_json_str(out, text.data ? text.data : "", text.len);
        ltd_buf_str(out, "}");
        ltd_buf_deinit(&text);
    }
    ltd_free(ids);
    return st;
}

static ltd_status with_root(const srv_const *c, const char *body, size_t len, ltd_buf *out, srv_error *e,
                            ltd_status (*fn)(const srv_const *, const cJSON *, ltd_buf *, srv_error *))
{
    cJSON *root;
    ltd_status st = srv__parse_body(body, len, &root, e);
    if (st != LTD_OK) return st;
    st = fn(c, root, out, e);
    cJSON_Delete(root);
    return st;
}

ltd_status srv__tokenize(const srv_const *c, const char *body, size_t len, ltd_buf *out, srv_error *e)
{
    return with_root(c, body, len, out, e, tokenize_root);
}

ltd_status srv__detokenize(const srv_const *c, const char *body, size_t len, ltd_buf *out, srv_error *e)
{
    return with_root(c, body, len, out, e, detokenize_root);
}
