/* json.c - strict JSON into a cJSON tree.
 * One pass, no recursion: the text is checked and the tree is built by the same code, so that there is no
 * second parser that might read it differently (cJSON's own cuts strings at \u0000, lets the first duplicate
 * win, rounds big integers, and refuses numbers longer than 63 characters).  Of cJSON we use the nodes and
 * cJSON_Delete. Every node that was linked is reached from ps->root, so that one cJSON_Delete undoes a failed
 * parse. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "config/config.h"

enum {
    DEPTH_DEFAULT = 64,
    DEPTH_MAX = 1000,  /* cJSON_Delete recurses */
    KEYS_BY_PAIRS = 8, /* objects of up to so many keys are compared pair by pair */
};

/* A key of an object that is still open: its spelling (between the quotes) and the hash of what it spells. */
typedef struct json_key {
    uint64_t hash;
    size_t at, len;
    const char *name; /* the node's own string: what it spells */
} json_key;

typedef struct json_frame {
    cJSON *node;
    size_t first_key; /* where its keys begin in ps->keys */
} json_frame;

typedef struct json_parser {
    const char *s;
    size_t len, i;
    int max_depth, depth;
    int64_t max_values, n_values;
    cJSON *root;
    json_frame *frames;
    json_key *keys;
    size_t n_keys, cap_keys;
    uint32_t *table; /* key numbers + 1; scratch of check_keys */
    size_t cap_table;
    ltd_err *err;
} json_parser;

static ltd_status fail_at(const json_parser *ps, size_t at, ltd_status st, const char *reason)
{
    size_t line = 1, column = 1;
    if (!ps->err) return st;
    for (size_t i = 0; i < at; i++) {
        unsigned char c = (unsigned char)ps->s[i];
        if (c == '\n') {
            line++;
            column = 1;
        } else if ((c & 0xC0) != 0x80) {
            column++;
        }
    }
    return ltd_fail(ps->err, st, "line %zu, column %zu: %s", line, column, reason);
}

static ltd_status fail_memory(const json_parser *ps)
{
    return fail_at(ps, ps->i, LTD_NO_MEMORY, "no memory for the document");
}

/* ---------------------------------------------------------------- duplicate keys */

/* SipHash-1-3 with a key drawn once a process: a client that could make keys collide could make us quadratic.
 */
static uint64_t rotl(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] = rotl(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] = rotl(v[2], 32);
}

static uint64_t hash_seed[2];

__attribute__((constructor)) static void hash_seed_draw(void)
{
    if (getrandom(hash_seed, sizeof hash_seed, GRND_NONBLOCK) != (ssize_t)sizeof hash_seed)
        hash_seed[0] = (uint64_t)ltd_now_us(), hash_seed[1] = (uint64_t)(uintptr_t)&hash_seed;
}

static uint64_t hash_key(const char *s, size_t n)
{
    uint64_t v[4] = {hash_seed[0] ^ 0x736f6d6570736575u, hash_seed[1] ^ 0x646f72616e646f6du,
                     hash_seed[0] ^ 0x6c7967656e657261u, hash_seed[1] ^ 0x7465646279746573u};
    uint64_t m;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(&m, s + i, 8);
        v[3] ^= m;
        sip_round(v);
        v[0] ^= m;
    }
    m = 0;
    memcpy(&m, s + i, n - i);
    m |= (uint64_t)n << 56;
    v[3] ^= m;
    sip_round(v);
    v[0] ^= m;
    v[2] ^= 0xff;
    for (int r = 0; r < 3; r++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static ltd_status push_key(json_parser *ps, size_t at, const char *name)
{
    if (ps->n_keys == ps->cap_keys) {
        size_t cap = ps->cap_keys ? ps->cap_keys * 2 : 64;
        json_key *keys = cap < UINT32_MAX ? realloc(ps->keys, cap * sizeof *keys) : NULL;
        if (!keys) return fail_memory(ps);
        ps->keys = keys;
        ps->cap_keys = cap;
    }
    size_t len = strlen(name);
    ps->keys[ps->n_keys++] = (json_key){hash_key(name, len), at, len, name};
    return LTD_OK;
}

static bool same_key(const json_key *a, const json_key *b)
{
    return a->hash == b->hash && a->len == b->len && memcmp(a->name, b->name, a->len) == 0;
}

static ltd_status fail_duplicate(json_parser *ps, const json_key *key)
{
    /* The key is the client's text: whole characters of it, and not too many. */
    char reason[96];
    size_t shown = 0;
    while (shown < key->len) {
        size_t step = (size_t)ltd_utf8_len(key->name + shown, key->len - shown);
        if (shown + step > 60) break;
        shown += step;
    }
    size_t n = 0;
    memcpy(reason, "duplicate key \"", 15);
    n = 15;
    memcpy(reason + n, key->name, shown);
    n += shown;
    memcpy(reason + n, shown < key->len ? "...\"" : "\"", shown < key->len ? 5 : 2);
    return fail_at(ps, key->at, LTD_CORRUPT, reason);
}

/* Looks for two equal keys in the object that is being closed, and forgets its keys.  Linear: the scratch
 * table is at most four times the object's own number of keys. */
static ltd_status check_keys(json_parser *ps, size_t first)
{
    size_t n = ps->n_keys - first;
    ps->n_keys = first;
    if (n == 0) return LTD_OK; /* ps->keys may still be NULL */
    json_key *k = ps->keys + first;
    if (n <= KEYS_BY_PAIRS) {
        for (size_t a = 1; a < n; a++)
            for (size_t b = 0; b < a; b++)
                if (same_key(&k[a], &k[b])) return fail_duplicate(ps, &k[a]);
        return LTD_OK;
    }
    size_t size = 16;
    while (size < n * 2) size *= 2;
    if (size > ps->cap_table) {
        uint32_t *table = realloc(ps->table, size * sizeof *table);
        if (!table) return fail_memory(ps);
        ps->table = table;
        ps->cap_table = size;
    }
    memset(ps->table, 0, size * sizeof *ps->table);
    for (size_t a = 0; a < n; a++) {
        size_t slot = k[a].hash & (size - 1);
        for (; ps->table[slot]; slot = (slot + 1) & (size - 1))
            if (same_key(&k[a], &k[ps->table[slot] - 1])) return fail_duplicate(ps, &k[a]);
        ps->table[slot] = (uint32_t)a + 1;
    }
    return LTD_OK;
}

/* ---------------------------------------------------------------- strings */

static int hex4(const char *s)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v << 4 | d;
    }
    return v;
}

static size_t put_utf8(char *out, uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

/* At the backslash ps->s[*at]: writes what the escape spells to out[*n] and moves both on. */
static ltd_status read_escape(const json_parser *ps, size_t *at, char *out, size_t *n)
{
    size_t i = *at;
    if (i + 1 >= ps->len) return fail_at(ps, i, LTD_CORRUPT, "string without its closing quote");
    char c = ps->s[i + 1];
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        out[(*n)++] = to[simple - from];
        *at = i + 2;
        return LTD_OK;
    }
    if (c != 'u') return fail_at(ps, i, LTD_CORRUPT, "unknown escape in a string");
    int hi = ps->len - i >= 6 ? hex4(ps->s + i + 2) : -1;
    if (hi < 0) return fail_at(ps, i, LTD_CORRUPT, "\\u without four hexadecimal digits");
    if (hi == 0) return fail_at(ps, i, LTD_CORRUPT, "\\u0000 is not allowed in a string");
    uint32_t cp = (uint32_t)hi;
    size_t used = 6;
    if (hi >= 0xD800 && hi < 0xE000) {
        int lo = hi < 0xDC00 && ps->len - i >= 12 && ps->s[i + 6] == '\\' && ps->s[i + 7] == 'u'
                     ? hex4(ps->s + i + 8)
                     : -1;
        if (lo < 0xDC00 || lo > 0xDFFF)
            return fail_at(ps, i, LTD_CORRUPT, "half a surrogate pair in a string");
        cp = 0x10000 + ((uint32_t)(hi - 0xD800) << 10) + (uint32_t)(lo - 0xDC00);
        used = 12;
    }
    *n += put_utf8(out + *n, cp);
    *at = i + used;
    return LTD_OK;
}

/* At an opening quote: checks and decodes the string into memory that cJSON_Delete can free. */
static ltd_status read_string(json_parser *ps, char **out)
{
    size_t open = ps->i, i = open + 1;
    /* First its end: what it spells is never longer than its spelling. */
    while (i < ps->len && ps->s[i] != '"') i += ps->s[i] == '\\' ? 2 : 1;
    if (i >= ps->len) return fail_at(ps, open, LTD_CORRUPT, "string without its closing quote");
    size_t end = i, n = 0;
    char *text = cJSON_malloc(end - open);
    if (!text) return fail_memory(ps);
    ltd_status st = LTD_OK;
    for (i = open + 1; i < end;) {
        unsigned char c = (unsigned char)ps->s[i];
        if (c == '\\') {
            if ((st = read_escape(ps, &i, text, &n)) != LTD_OK) break;
        } else if (c < 0x20) {
            st = fail_at(ps, i, LTD_CORRUPT, "control character in a string (write it as an escape)");
            break;
        } else if (c < 0x80) {
            text[n++] = (char)c;
            i++;
        } else {
            int len = ltd_utf8_len(ps->s + i, end - i);
            if (len <= 0) {
                st = fail_at(ps, i, LTD_CORRUPT, "bytes that are not UTF-8");
                break;
            }
            memcpy(text + n, ps->s + i, (size_t)len);
            n += (size_t)len;
            i += (size_t)len;
        }
    }
    if (st != LTD_OK) {
        cJSON_free(text);
        return st;
    }
    text[n] = '\0';
    ps->i = end + 1;
    *out = text;
    return LTD_OK;
}

/* ---------------------------------------------------------------- numbers */

static bool is_digit(const json_parser *ps, size_t i)
{
    return i < ps->len && ps->s[i] >= '0' && ps->s[i] <= '9';
}

/* Finds the number's end by JSON's grammar; *digits counts its digits but for leading zeros and the
 * exponent's. */
static ltd_status scan_number(const json_parser *ps, size_t *end, size_t *digits)
{
    size_t i = ps->i;
    if (ps->s[i] == '-') i++;
    if (!is_digit(ps, i)) return fail_at(ps, ps->i, LTD_CORRUPT, "not a value");
    size_t first = i;
    if (ps->s[i] == '0') {
        i++;
        if (is_digit(ps, i)) return fail_at(ps, ps->i, LTD_CORRUPT, "number with a leading zero");
    } else {
        while (is_digit(ps, i)) i++;
    }
    *digits = i - first;
    if (i < ps->len && ps->s[i] == '.') {
        first = ++i;
        while (is_digit(ps, i)) i++;
        if (i == first) return fail_at(ps, ps->i, LTD_CORRUPT, "number without digits after its point");
        *digits += i - first;
    }
    if (i < ps->len && (ps->s[i] == 'e' || ps->s[i] == 'E')) {
        i++;
        if (i < ps->len && (ps->s[i] == '+' || ps->s[i] == '-')) i++;
        first = i;
        while (is_digit(ps, i)) i++;
        if (i == first) return fail_at(ps, ps->i, LTD_CORRUPT, "number without digits in its exponent");
    }
    *end = i;
    return LTD_OK;
}

static ltd_status read_number(json_parser *ps, cJSON *node)
{
    size_t end = 0, digits = 0;
    ltd_status st = scan_number(ps, &end, &digits);
    if (st != LTD_OK) return st;
    size_t n = end - ps->i;
    /* strtod wants a NUL; the daemon never leaves the "C" locale. */
    char small[64], *text = n < sizeof small ? small : cJSON_malloc(n + 1);
    if (!text) return fail_memory(ps);
    memcpy(text, ps->s + ps->i, n);
    text[n] = '\0';
    double v = strtod(text, NULL);
    node->type = cJSON_Number;
    node->valuedouble = v;
    node->valueint = v >= INT32_MAX ? INT32_MAX : v <= INT32_MIN ? INT32_MIN : (int)v;
    /* A double tells up to 15 digits below 2^53 apart; anything else keeps its spelling for ltd_json_int64.
     */
    if (digits > 15 || fabs(v) >= 9007199254740992.0) {
        if (text == small && (text = cJSON_malloc(n + 1))) memcpy(text, small, n + 1);
        if (!text) return fail_memory(ps);
        node->valuestring = text;
    } else if (text != small) {
        cJSON_free(text);
    }
    if (!isfinite(v)) return fail_at(ps, ps->i, LTD_CORRUPT, "number too large");
    ps->i = end;
    return LTD_OK;
}

/* ---------------------------------------------------------------- values */

static void skip_space(json_parser *ps)
{
    while (ps->i < ps->len) {
        char c = ps->s[ps->i];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') break;
        ps->i++;
    }
}

static void link_node(json_parser *ps, cJSON *node)
{
    if (ps->depth == 0) {
        ps->root = node;
        return;
    }
    /* As cJSON keeps lists: the first child's prev is the last child. */
    cJSON *parent = ps->frames[ps->depth - 1].node, *first = parent->child;
    if (!first) {
        parent->child = node->prev = node;
        return;
    }
    node->prev = first->prev;
    first->prev->next = node;
    first->prev = node;
}

/* After '{' or ',': the key and its colon. */
static ltd_status read_key(json_parser *ps, cJSON *node)
{
    size_t at = ps->i;
    if (at >= ps->len) return fail_at(ps, at, LTD_CORRUPT, "object without its closing brace");
    if (ps->s[at] != '"') return fail_at(ps, at, LTD_CORRUPT, "expected a key in quotes");
    ltd_status st = read_string(ps, &node->string);
    if (st != LTD_OK) return st;
    if ((st = push_key(ps, at, node->string)) != LTD_OK) return st;
    skip_space(ps);
    if (ps->i >= ps->len || ps->s[ps->i] != ':')
        return fail_at(ps, ps->i, LTD_CORRUPT, "expected ':' after a key");
    ps->i++;
    skip_space(ps);
    return LTD_OK;
}

static bool take_word(json_parser *ps, const char *word)
{
    size_t n = strlen(word);
    if (ps->len - ps->i < n || memcmp(ps->s + ps->i, word, n) != 0) return false;
    ps->i += n;
    return true;
}

/* One value into node; arrays and objects are only opened. */
static ltd_status read_value(json_parser *ps, cJSON *node)
{
    if (ps->i >= ps->len) return fail_at(ps, ps->i, LTD_CORRUPT, "the text ends where a value is expected");
    if (ps->max_values && ++ps->n_values > ps->max_values)
        return fail_at(ps, ps->i, LTD_TOO_LARGE, "too many values");
    char c = ps->s[ps->i];
    if (c == '{' || c == '[') {
        if (ps->depth == ps->max_depth)
            return fail_at(ps, ps->i, LTD_TOO_LARGE, "arrays and objects nested too deeply");
        node->type = c == '{' ? cJSON_Object : cJSON_Array;
        ps->frames[ps->depth++] = (json_frame){node, ps->n_keys};
        ps->i++;
        return LTD_OK;
    }
    if (c == '"') {
        node->type = cJSON_String;
        return read_string(ps, &node->valuestring);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(ps, node);
    if (take_word(ps, "true")) {
        node->type = cJSON_True;
        node->valueint = 1;
    } else if (take_word(ps, "false")) {
        node->type = cJSON_False;
    } else if (take_word(ps, "null")) {
        node->type = cJSON_NULL;
    } else {
        return fail_at(ps, ps->i, LTD_CORRUPT, "not a value");
    }
    return LTD_OK;
}

/* A value is complete: closes what ends here.  *more: another value follows in the innermost open container.
 */
static ltd_status close_values(json_parser *ps, bool *more)
{
    *more = false;
    while (ps->depth > 0) {
        json_frame *f = &ps->frames[ps->depth - 1];
        bool object = f->node->type == cJSON_Object;
        skip_space(ps);
        if (ps->i >= ps->len)
            return fail_at(ps, ps->i, LTD_CORRUPT,
                           object ? "object without its closing brace" : "array without its closing bracket");
        char c = ps->s[ps->i];
        if (c == ',') {
            ps->i++;
            skip_space(ps);
            *more = true;
            return LTD_OK;
        }
        if (c != (object ? '}' : ']'))
            return fail_at(ps, ps->i, LTD_CORRUPT, object ? "expected ',' or '}'" : "expected ',' or ']'");
        ltd_status st = object ? check_keys(ps, f->first_key) : LTD_OK;
        if (st != LTD_OK) return st;
        ps->i++;
        ps->depth--;
    }
    return LTD_OK;
}

static ltd_status parse_document(json_parser *ps)
{
    ltd_status st;
    bool more = true;
    skip_space(ps);
    while (more) {
        cJSON *node = cJSON_malloc(sizeof *node);
        if (!node) return fail_memory(ps);
        memset(node, 0, sizeof *node);
        int depth = ps->depth;
        link_node(ps, node);
        if (depth > 0 && ps->frames[depth - 1].node->type == cJSON_Object &&
            (st = read_key(ps, node)) != LTD_OK)
            return st;
        if ((st = read_value(ps, node)) != LTD_OK) return st;
        if (ps->depth > depth) {
            skip_space(ps);
            char end = node->type == cJSON_Object ? '}' : ']';
            if (ps->i >= ps->len || ps->s[ps->i] != end) continue; /* its first value */
        }
        if ((st = close_values(ps, &more)) != LTD_OK) return st;
    }
    skip_space(ps);
    if (ps->i < ps->len) return fail_at(ps, ps->i, LTD_CORRUPT, "text after the end of the value");
    return LTD_OK;
}

ltd_status ltd_json_parse(const char *text, size_t len, const ltd_json_limits *limits, struct cJSON **out,
                          ltd_err *err)
{
    int depth = limits && limits->max_depth > 0 ? limits->max_depth : DEPTH_DEFAULT;
    if (depth > DEPTH_MAX) depth = DEPTH_MAX;
    json_frame frames[DEPTH_DEFAULT];
    json_parser ps = {
        .s = text, .len = len, .max_depth = depth, .max_values = limits ? limits->max_values : 0, .err = err};
    ps.frames = depth <= DEPTH_DEFAULT ? frames : ltd_calloc((size_t)depth, sizeof *ps.frames);
    ltd_status st = parse_document(&ps);
    if (ps.frames != frames) ltd_free(ps.frames);
    free(ps.keys);
    free(ps.table);
    if (st != LTD_OK) {
        cJSON_Delete(ps.root);
        return st;
    }
    *out = ps.root;
    return LTD_OK;
}

ltd_status ltd_json_parse_file(const char *path, size_t max_bytes, struct cJSON **out, ltd_err *err)
{
    char *text;
    size_t len;
    ltd_status st = ltd_read_file(path, max_bytes, &text, &len, err);
    if (st != LTD_OK) return st;
    ltd_err inner = {{0}};
    st = ltd_json_parse(text, len, NULL, out, &inner);
    ltd_free(text);
    return st == LTD_OK ? st : ltd_fail(err, st, "%s: %s", path, inner.text);
}

/* ---------------------------------------------------------------- getters */

const struct cJSON *ltd_json_get(const struct cJSON *obj, const char *key)
{
    const cJSON *m = NULL;
    if (!cJSON_IsObject(obj)) return NULL;
    cJSON_ArrayForEach(m, obj) if (m->string && strcmp(m->string, key) == 0) return m;
    return NULL;
}

bool ltd_json_is_null(const struct cJSON *v) { return !v || cJSON_IsNull(v); }

/* The number's spelling, by JSON's grammar, as an integer; exact. */
static ltd_status int64_of_text(const char *s, int64_t *out)
{
    bool negative = *s == '-';
    if (negative) s++;
    const char *mant_end = s + strcspn(s, "eE");
    int64_t exp10 = 0;
    if (*mant_end) {
        const char *e = mant_end + 1;
        bool minus = *e == '-';
        if (*e == '-' || *e == '+') e++;
        for (; *e; e++)
            if (exp10 < INT64_MAX / 100) exp10 = exp10 * 10 + (*e - '0');
        if (minus) exp10 = -exp10;
    }
    /* last: behind the last digit that is not 0; digits behind the point lower the exponent. */
    const char *point = memchr(s, '.', (size_t)(mant_end - s)), *last = mant_end;
    while (last > s && (last[-1] == '0' || last[-1] == '.')) last--;
    if (last == s) {
        *out = 0;
        return LTD_OK;
    }
    if (point && last > point)
        exp10 -= last - (point + 1);
    else
        exp10 += (point ? point : mant_end) - last;
    if (exp10 < 0 || exp10 > 18) return LTD_INVALID;
    uint64_t v = 0;
    for (const char *p = s; p < last; p++) {
        if (*p == '.') continue;
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
            return LTD_INVALID;
    }
    for (; exp10 > 0; exp10--)
        if (__builtin_mul_overflow(v, 10u, &v)) return LTD_INVALID;
    if (v > (uint64_t)INT64_MAX + (negative ? 1 : 0)) return LTD_INVALID;
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return LTD_OK;
}

ltd_status ltd_json_int64(const struct cJSON *v, int64_t *out)
{
    if (!cJSON_IsNumber(v)) return LTD_INVALID;
    if (v->valuestring) return int64_of_text(v->valuestring, out);
    double d = v->valuedouble;
    if (!(d >= -0x1p63 && d < 0x1p63) || d != floor(d)) return LTD_INVALID;
    *out = (int64_t)d;
    return LTD_OK;
}
