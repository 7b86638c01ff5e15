/* parse.c - bodies to JSON, and one field at a time with its type and range.
 * Every refusal names the field in `param`; null counts as absent, as the official clients send it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/server_private.h"

/* ---------------------------------------------------------------- bodies */

static size_t skip_string(const char *s, size_t len, size_t i)
{
    for (i++; i < len && s[i] != '"'; i++)
        if (s[i] == '\\') i++;
    return i < len ? i + 1 : len;
}

static bool number_like(char c) { return (c >= '0' && c <= '9') || (c && strchr("+-.eE", c)); }

/* Whether s[i..) is a value that JSON has no word for (NaN, Infinity) or a number that no double holds. */
static bool bad_number(const char *s, size_t len, size_t i)
{
    char word[64];
    size_t n = 0;
    if (s[i] == '-' && i + 1 < len) i++;
    if (s[i] == 'N' || s[i] == 'I') return true;
    while (i + n < len && n < sizeof word - 1 && number_like(s[i + n])) {
        word[n] = s[i + n];
        n++;
    }
    word[n] = 0;
    return n > 0 && isinf(strtod(word, NULL));
}

/* In a document that was refused: the top-level field, of those we know, whose value is no finite number. */
static const char *field_of_bad_number(const char *s, size_t len)
{
    static const char *const fields[] = {"temperature",
                                         "top_p",
                                         "top_k",
                                         "min_p",
                                         "n",
                                         "best_of",
                                         "max_tokens",
                                         "min_tokens",
                                         "seed",
                                         "logprobs",
                                         "presence_penalty",
                                         "frequency_penalty",
                                         "repetition_penalty",
                                         "priority",
                                         "logit_bias",
                                         "prompt"};
    const char *key = NULL;
    size_t key_len = 0;
    int depth = 0;
    for (size_t i = 0; i < len;) {
        char c = s[i];
        if (c == '"') {
            size_t end = skip_string(s, len, i), next = end;
            while (next < len && strchr(" \t\r\n", s[next]) && s[next]) next++;
            if (depth == 1 && next < len && s[next] == ':' && end >= i + 2) {
                key = s + i + 1;
                key_len = end - i - 2;
            }
            i = end;
            continue;
        }
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (c == 'N' || c == 'I' || c == '-' || (c >= '0' && c <= '9')) {
            if (key && bad_number(s, len, i)) {
                for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
                    if (strlen(fields[f]) == key_len && !memcmp(fields[f], key, key_len)) return fields[f];
                return NULL;
            }
            while (i + 1 < len && number_like(s[i + 1])) i++;
        }
        i++;
    }
    return NULL;
}

ltd_status srv__parse_body(const char *body, size_t len, cJSON **out, srv_error *e)
{
    ltd_json_limits limits = {.max_values = SRV_MAX_JSON_VALUES};
    ltd_err err;
    *out = NULL;
    if (len == 0) return srv__error(e, 400, NULL, NULL, "The request has no body; a JSON object is needed");
    ltd_status st = ltd_json_parse(body, len, &limits, out, &err);
    if (st == LTD_NO_MEMORY) return srv__error(e, 503, NULL, NULL, "No memory for the request");
    if (st != LTD_OK) {
        const char *field = st == LTD_CORRUPT ? field_of_bad_number(body, len) : NULL;
        if (field)
            return srv__error(e, 400, field, NULL,
                              "'%s' must be a finite number (body is not valid JSON: %s)", field, err.text);
        return srv__error(e, 400, NULL, NULL, "The body is not valid JSON: %s", err.text);
    }
    if (cJSON_IsObject(*out)) return LTD_OK;
    cJSON_Delete(*out);
    *out = NULL;
    return srv__error(e, 400, NULL, NULL, "The body must be a JSON object");
}

/* ---------------------------------------------------------------- fields */

ltd_status srv__field_bool(const cJSON *o, const char *name, bool *out, srv_error *e)
{
    const cJSON *v = ltd_json_get(o, name);
    if (ltd_json_is_null(v)) return LTD_OK;
    if (!cJSON_IsBool(v)) return srv__error(e, 400, name, NULL, "'%s' must be true or false", name);
    *out = cJSON_IsTrue(v);
    return LTD_OK;
}

ltd_status srv__field_int(const cJSON *o, const char *name, int64_t lo, int64_t hi, int64_t *out,
                          srv_error *e)
{
    const cJSON *v = ltd_json_get(o, name);
    int64_t i;
    if (ltd_json_is_null(v)) return LTD_OK;
    if (ltd_json_int64(v, &i) != LTD_OK)
        return srv__error(e, 400, name, NULL, "'%s' must be an integer%s", name,
                          cJSON_IsNumber(v) ? " of at most 64 bits" : "");
    if (i < lo || i > hi) {
        if (hi == INT64_MAX)
            return srv__error(e, 400, name, NULL, "'%s' must be at least %lld, not %lld", name, (long long)lo,
                              (long long)i);
        return srv__error(e, 400, name, NULL, "'%s' must be between %lld and %lld, not %lld", name,
                          (long long)lo, (long long)hi, (long long)i);
    }
    *out = i;
    return LTD_OK;
}

ltd_status srv__field_num(const cJSON *o, const char *name, double lo, double hi, float *out, srv_error *e)
{
    const cJSON *v = ltd_json_get(o, name);
    if (ltd_json_is_null(v)) return LTD_OK;
    if (!cJSON_IsNumber(v)) return srv__error(e, 400, name, NULL, "'%s' must be a number", name);
    if (!(v->valuedouble >= lo && v->valuedouble <= hi))
        return srv__error(e, 400, name, NULL, "'%s' must be between %g and %g, not %g", name, lo, hi,
                          v->valuedouble);
    *out = (float)v->valuedouble;
    return LTD_OK;
}

ltd_status srv__field_model(const srv_const *c, const cJSON *o, const char **out, srv_error *e)
{
    const cJSON *v = ltd_json_get(o, "model");
    *out = c->o->served_names[0];
    if (ltd_json_is_null(v)) return LTD_OK;
    if (!cJSON_IsString(v)) return srv__error(e, 400, "model", NULL, "'model' must be a string");
    for (int i = 0; i < c->o->n_served_names; i++) {
        if (strcmp(c->o->served_names[i], v->valuestring)) continue;
        *out = c->o->served_names[i];
        return LTD_OK;
    }
    size_t n = strlen(v->valuestring);
    return srv__error(e, 404, "model", "model_not_found",
                      "The model '%.*s' does not exist; this server has '%s'",
                      (int)srv__utf8_cut(v->valuestring, n, 200), v->valuestring, c->o->served_names[0]);
}

ltd_status srv__field_id(const srv_const *c, const cJSON *v, const char *name, int32_t *out, srv_error *e)
{
    int64_t id;
    if (ltd_json_int64(v, &id) != LTD_OK)
        return srv__error(e, 400, name, NULL, "'%s': a token id must be an integer", name);
    if (id < 0 || id >= c->info->vocab_size)
        return srv__error(e, 400, name, NULL, "'%s': token id %lld is outside the vocabulary of %d", name,
                          (long long)id, c->info->vocab_size);
    *out = (int32_t)id;
    return LTD_OK;
}

/* ---------------------------------------------------------------- what is not served yet */

static ltd_status unserved(srv_error *e, const char *name, const char *neutral)
{
    return srv__error(e, 400, name, "unsupported_parameter",
                      "'%s' is not supported yet; leave it out or send %s", name, neutral);
}

/* Numbers with a neutral value: of the right type and range, but anything else is refused. */
static ltd_status unserved_numbers(const cJSON *o, srv_error *e)
{
    static const struct {
        const char *name;
        double lo, hi;
        float neutral;
        const char *text;
    } rows[] = {
        {"presence_penalty", -2, 2, 0, "0"},
        {"frequency_penalty", -2, 2, 0, "0"},
        {"repetition_penalty", 0, 2, 1, "1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float v = rows[i].neutral;
        ltd_status st = srv__field_num(o, rows[i].name, rows[i].lo, rows[i].hi, &v, e);
        if (st != LTD_OK) return st;
        if (v != rows[i].neutral) return unserved(e, rows[i].name, rows[i].text);
    }
    int64_t min_tokens = 0;
    ltd_status st = srv__field_int(o, "min_tokens", 0, INT32_MAX, &min_tokens, e);
    if (st != LTD_OK) return st;
    return min_tokens ? unserved(e, "min_tokens", "0") : LTD_OK;
}

static ltd_status unserved_objects(const cJSON *o, srv_error *e)
{
    const cJSON *v = ltd_json_get(o, "logit_bias");
    if (!ltd_json_is_null(v)) {
        if (!cJSON_IsObject(v))
            return srv__error(e, 400, "logit_bias", NULL,
                              "'logit_bias' must be an object of token ids and biases");
        if (v->child) return unserved(e, "logit_bias", "{}");
    }
    v = ltd_json_get(o, "response_format");
    if (!ltd_json_is_null(v)) {
        const cJSON *type = ltd_json_get(v, "type");
        if (!cJSON_IsObject(v) || !cJSON_IsString(type))
            return srv__error(e, 400, "response_format", NULL,
                              "'response_format' must be an object with a 'type'");
        if (strcmp(type->valuestring, "text")) return unserved(e, "response_format", "{\"type\": \"text\"}");
    }
    v = ltd_json_get(o, "tools");
    if (!ltd_json_is_null(v) && !(cJSON_IsArray(v) && !v->child)) return unserved(e, "tools", "[]");
    v = ltd_json_get(o, "suffix");
    if (!ltd_json_is_null(v)) {
        if (!cJSON_IsString(v)) return srv__error(e, 400, "suffix", NULL, "'suffix' must be a string");
        if (v->valuestring[0]) return unserved(e, "suffix", "an empty string");
    }
    return LTD_OK;
}

ltd_status srv__fields_unserved(const cJSON *o, int64_t n, srv_error *e)
{
    ltd_status st;
    bool ids = false, timings = false;
    int64_t best_of = n;
    if ((st = srv__field_int(o, "best_of", 1, INT64_MAX, &best_of, e)) != LTD_OK) return st;
    if (best_of < n)
        return srv__error(e, 400, "best_of", NULL, "'best_of' must be at least 'n' (%lld)", (long long)n);
    if (best_of > n) return unserved(e, "best_of", "the same as 'n'");
    if ((st = srv__field_bool(o, "return_token_ids", &ids, e)) != LTD_OK) return st;
    if (ids) return unserved(e, "return_token_ids", "false");
    if ((st = srv__field_bool(o, "timings", &timings, e)) != LTD_OK) return st;
    if (timings) return unserved(e, "timings", "false");
    if ((st = unserved_numbers(o, e)) != LTD_OK) return st;
    return unserved_objects(o, e);
}

/* ---------------------------------------------------------------- salts */

static uint64_t rotl(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[1] = rotl(v[1], 13) ^ v[0], v[0] = rotl(v[0], 32);
    v[2] += v[3], v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotl(v[1], 17) ^ v[2], v[2] = rotl(v[2], 32);
}

/* SipHash-2-4 with 128 bits of result, keyed once a process: nobody can find two salts that share a tree. */
void srv__hash128(const uint64_t key[2], const void *data, size_t n, uint64_t out[2])
{
    const unsigned char *p = data;
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575ull, key[1] ^ 0x646f72616e646f6dull ^ 0xee,
                     key[0] ^ 0x6c7967656e657261ull, key[1] ^ 0x7465646279746573ull};
    for (size_t i = 0; i <= n; i += 8) {
        uint64_t m = 0;
        size_t part = n - i < 8 ? n - i : 8;
        memcpy(&m, p + i, part);
        if (part < 8) m |= (uint64_t)n << 56;
        v[3] ^= m;
        for (int r = 0; r < 2; r++) sip_round(v);
        v[0] ^= m;
    }
    v[2] ^= 0xee;
    for (int r = 0; r < 4; r++) sip_round(v);
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    for (int r = 0; r < 4; r++) sip_round(v);
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}
