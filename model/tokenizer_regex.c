/* tokenizer_regex.c - Oniguruma patterns as PCRE2 patterns of the same meaning.
 * tokenizer.json's patterns are written for Oniguruma's Ruby syntax.  The two engines agree on most of what
 * pre-tokenizers use, and silently differ on the rest: \s (PCRE2 counts U+180E), \w, \h, \v, script
 * properties (PCRE2 means script extensions), {n}+, nested classes and &&, and $ and ^, which in Ruby syntax
 * are always about lines.  So a pattern is read construct by construct: translated where the difference is
 * known, refused by name where it is not. Measured against Oniguruma over all code points.  A class that is
 * older in the installed PCRE2 is widened to Unicode 16. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_private.h"

#define SPACES                                                                                               \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                           \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"      \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define HEX "0-9A-Fa-f"

/* What Unicode 15.0, 15.1 and 16.0 added to the categories and the script that pre-tokenizers name. */
typedef struct tok__newer {
    const char *name;
    int n;
    struct {
        uint32_t lo, hi;
    } range[36];
} tok__newer;
static const tok__newer newer[] = {
    {"L",
     35,
     {{0x1c89, 0x1c8a},   {0xa7cb, 0xa7cd},   {0xa7da, 0xa7dc},   {0x105c0, 0x105f3}, {0x10d4a, 0x10d65},
      {0x10d6f, 0x10d85}, {0x10ec2, 0x10ec4}, {0x1123f, 0x11240}, {0x11380, 0x11389}, {0x1138b, 0x1138b},
      {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113b7}, {0x113d1, 0x113d1}, {0x113d3, 0x113d3},
      {0x11bc0, 0x11be0}, {0x11f02, 0x11f02}, {0x11f04, 0x11f10}, {0x11f12, 0x11f33}, {0x1342f, 0x1342f},
      {0x13441, 0x13446}, {0x13460, 0x143fa}, {0x16100, 0x1611d}, {0x16d40, 0x16d6c}, {0x18cff, 0x18cff},
      {0x1b132, 0x1b132}, {0x1b155, 0x1b155}, {0x1df25, 0x1df2a}, {0x1e030, 0x1e06d}, {0x1e4d0, 0x1e4eb},
      {0x1e5d0, 0x1e5ed}, {0x1e5f0, 0x1e5f0}, {0x2b739, 0x2b739}, {0x2ebf0, 0x2ee5d}, {0x31350, 0x323af}}},
    {"M", 24, {{0x897, 0x897},     {0xcf3, 0xcf3},     {0xece, 0xece},     {0x10d69, 0x10d6d},
               {0x10efc, 0x10eff}, {0x11241, 0x11241}, {0x113b8, 0x113c0}, {0x113c2, 0x113c2},
               {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113d0}, {0x113d2, 0x113d2},
               {0x113e1, 0x113e2}, {0x11f00, 0x11f01}, {0x11f03, 0x11f03}, {0x11f34, 0x11f3a},
               {0x11f3e, 0x11f42}, {0x11f5a, 0x11f5a}, {0x13440, 0x13440}, {0x13447, 0x13455},
               {0x1611e, 0x1612f}, {0x1e08f, 0x1e08f}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}}},
    {"N",
     10,
     {{0x10d40, 0x10d49},
      {0x116d0, 0x116e3},
      {0x11bf0, 0x11bf9},
      {0x11f50, 0x11f59},
      {0x16130, 0x16139},
      {0x16d70, 0x16d79},
      {0x1ccf0, 0x1ccf9},
      {0x1d2c0, 0x1d2d3},
      {0x1e4f0, 0x1e4f9},
      {0x1e5f1, 0x1e5fa}}},
    {"Nd",
     9,
     {{0x10d40, 0x10d49},
      {0x116d0, 0x116e3},
      {0x11bf0, 0x11bf9},
      {0x11f50, 0x11f59},
      {0x16130, 0x16139},
      {0x16d70, 0x16d79},
      {0x1ccf0, 0x1ccf9},
      {0x1e4f0, 0x1e4f9},
      {0x1e5f1, 0x1e5fa}}},
    {"P",
     10,
     {{0x1b4e, 0x1b4f},
      {0x1b7f, 0x1b7f},
      {0x10d6e, 0x10d6e},
      {0x113d4, 0x113d5},
      {0x113d7, 0x113d8},
      {0x11b00, 0x11b09},
      {0x11be1, 0x11be1},
      {0x11f43, 0x11f4f},
      {0x16d6d, 0x16d6f},
      {0x1e5ff, 0x1e5ff}}},
    {"S",
     25,
     {{0x2427, 0x2429},   {0x2ffc, 0x2fff},   {0x31e4, 0x31e5},   {0x31ef, 0x31ef},   {0x10d8e, 0x10d8f},
      {0x1cc00, 0x1ccef}, {0x1cd00, 0x1ceb3}, {0x1f6dc, 0x1f6dc}, {0x1f774, 0x1f776}, {0x1f77b, 0x1f77f},
      {0x1f7d9, 0x1f7d9}, {0x1f8b2, 0x1f8bb}, {0x1f8c0, 0x1f8c1}, {0x1fa75, 0x1fa77}, {0x1fa87, 0x1fa89},
      {0x1fa8f, 0x1fa8f}, {0x1faad, 0x1faaf}, {0x1fabb, 0x1fabf}, {0x1fac6, 0x1fac6}, {0x1face, 0x1facf},
      {0x1fada, 0x1fadc}, {0x1fadf, 0x1fadf}, {0x1fae8, 0x1fae9}, {0x1faf7, 0x1faf8}, {0x1fbcb, 0x1fbef}}},
    {"Han", 3, {{0x2b739, 0x2b739}, {0x2ebf0, 0x2ee5d}, {0x31350, 0x323af}}},
};

typedef struct tok__regex {
    const char *p, *end;
    ltd_buf *out;
    char *why;
    size_t why_cap;
    bool old_unicode; /* the installed PCRE2 is older than Unicode 16 */
} tok__regex;

static ltd_status refuse(tok__regex *r, const char *what)
{
    snprintf(r->why, r->why_cap, "%s", what);
    return LTD_UNSUPPORTED;
}

/* The newer code points of a category, as class members. */
static void put_newer(tok__regex *r, const char *name)
{
    if (!r->old_unicode) return;
    for (size_t i = 0; i < sizeof newer / sizeof newer[0]; i++) {
        if (strcmp(newer[i].name, name) != 0) continue;
        for (int k = 0; k < newer[i].n; k++)
            ltd_buf_fmt(r->out, "\\x{%x}-\\x{%x}", newer[i].range[k].lo, newer[i].range[k].hi);
    }
}

/* A set given by its class members, in or outside a class. */
static void put_set(tok__regex *r, bool in_class, bool negate, const char *members, const char *newer_of)
{
    if (!in_class) ltd_buf_str(r->out, negate ? "[^" : "[");
    ltd_buf_str(r->out, members);
    if (newer_of) put_newer(r, newer_of);
    if (!in_class) ltd_buf_str(r->out, "]");
}

static void put_word(tok__regex *r, bool in_class, bool negate)
{
    if (!in_class) ltd_buf_str(r->out, negate ? "[^" : "[");
    ltd_buf_str(r->out, "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}");
    if (!in_class)
        ltd_buf_str(r->out, "\\xb2\\xb3\\xb9\\xbc-\\xbe"); /* Oniguruma counts these, but not in a class */
    put_newer(r, "L");
    put_newer(r, "M");
    put_newer(r, "Nd");
    if (!in_class) ltd_buf_str(r->out, "]");
}

static bool is_category(const char *s)
{
    static const char *const all[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me",
                                      "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi",
                                      "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl",
                                      "Zp", "C",  "Cc", "Cf", "Co", "Cs", "Cn"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i], s) == 0) return true;
    return false;
}

/* Behind \p or \P: {Name} or {^Name}; categories by their short names, or a script. */
static ltd_status property(tok__regex *r, bool in_class, bool negate)
{
    static const char *const long_names[][2] = {{"Letter", "L"},      {"Mark", "M"},   {"Number", "N"},
                                                {"Punctuation", "P"}, {"Symbol", "S"}, {"Separator", "Z"}};
    char name[48];
    size_t n = 0;
    if (r->p == r->end || *r->p != '{') return refuse(r, "\\p without {name}");
    r->p++;
    if (r->p < r->end && *r->p == '^') negate = !negate, r->p++;
    for (; r->p < r->end && *r->p != '}'; r->p++) {
        char c = *r->p;
        bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
        if (!letter || n + 1 == sizeof name) return refuse(r, "a \\p{...} name that is not plain letters");
        name[n++] = c;
    }
    if (r->p == r->end) return refuse(r, "an unfinished \\p{");
    r->p++;
    name[n] = 0;
    for (size_t i = 0; i < sizeof long_names / sizeof long_names[0]; i++)
        if (strcmp(name, long_names[i][0]) == 0) snprintf(name, sizeof name, "%s", long_names[i][1]);
    char member[64];
    /* A name that is neither category nor script does not compile, which refuses it. */
    snprintf(member, sizeof member, "\\%c{%s%s}", in_class && negate ? 'P' : 'p',
             is_category(name) ? "" : "sc:", name);
    put_set(r, in_class, negate, member, in_class && negate ? NULL : name);
    return LTD_OK;
}

/* Behind \x or \u: the code point. */
static ltd_status hex_escape(tok__regex *r, char kind)
{
    char digits[9];
    size_t n = 0, want = kind == 'u' ? 4 : 2;
    bool braced = kind == 'x' && r->p < r->end && *r->p == '{';
    if (braced) r->p++, want = 8;
    for (; r->p < r->end && n < want && strchr("0123456789abcdefABCDEF", *r->p); r->p++) digits[n++] = *r->p;
    digits[n] = 0;
    if (braced && (r->p == r->end || *r->p++ != '}')) return refuse(r, "an unfinished \\x{");
    if (n == 0 || (kind == 'u' && n < 4)) return refuse(r, "a \\x or \\u without its digits");
    unsigned long cp = strtoul(digits, NULL, 16);
    if (kind == 'x' && !braced && cp >= 0x80) return refuse(r, "a \\x escape of a raw byte");
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) return refuse(r, "a \\x or \\u that is no character");
    ltd_buf_fmt(r->out, "\\x{%lx}", cp);
    return LTD_OK;
}

/* Behind a backslash.  *set: it stood for a set of characters, not for one. */
static ltd_status escape(tok__regex *r, bool in_class, bool *set)
{
    *set = false;
    if (r->p == r->end) return refuse(r, "a backslash at the end");
    char c = *r->p++;
    bool negate = false;
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))) {
        if ((unsigned char)c < 0x80)
            ltd_buf_str(r->out, "\\"); /* beyond ASCII an escaped character is itself */
        ltd_buf_add(r->out, &c, 1);
        return LTD_OK;
    }
    switch (c) {
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'a':
    case 'e':
        ltd_buf_fmt(r->out, "\\%c", c);
        return LTD_OK;
    case 'v':
        ltd_buf_str(r->out, "\\x0b");
        return LTD_OK;
    case 'x':
    case 'u':
        return hex_escape(r, c);
    case 'A':
    case 'z':
    case 'Z':
        if (in_class) break;
        ltd_buf_fmt(r->out, "\\%c", c);
        return LTD_OK;
    case 'S':
        negate = true; /* fall through */
    case 's':
        *set = true;
        put_set(r, in_class, negate && !in_class, negate && in_class ? NOT_SPACES : SPACES, NULL);
        return LTD_OK;
    case 'D':
    case 'd':
        *set = true;
        if (c == 'D' && in_class)
            ltd_buf_str(r->out, "\\P{Nd}");
        else
            put_set(r, in_class, c == 'D', "\\p{Nd}", "Nd");
        return LTD_OK;
    case 'W':
    case 'w':
        if (c == 'W' && in_class) break;
        *set = true;
        put_word(r, in_class, c == 'W');
        return LTD_OK;
    case 'H':
    case 'h': /* hexadecimal digits in Ruby's syntax */
        if (c == 'H' && in_class) break;
        *set = true;
        put_set(r, in_class, c == 'H', HEX, NULL);
        return LTD_OK;
    case 'P':
        negate = true; /* fall through */
    case 'p':
        *set = true;
        return property(r, in_class, negate);
    default:
        break;
    }
    char what[32];
    snprintf(what, sizeof what, "\\%c%s", c, in_class ? " in a class" : "");
    return refuse(r, what);
}

/* Behind '[': a class without nested classes or set operations. */
static ltd_status char_class(tok__regex *r)
{
    bool set = false, after_set = false, open_range = false, have_one = false, first = true;
    ltd_status st;
    ltd_buf_str(r->out, "[");
    if (r->p < r->end && *r->p == '^') ltd_buf_add(r->out, r->p++, 1);
    for (; r->p < r->end; first = false) {
        char c = *r->p++;
        if (c == ']' && !first) {
            ltd_buf_str(r->out, "]");
            return LTD_OK;
        }
        if (c == '[') return refuse(r, "a class within a class");
        if (c == '&' && r->p < r->end && *r->p == '&') return refuse(r, "&& in a class");
        if (c == '-') {
            bool last = r->p < r->end && *r->p == ']';
            bool range = have_one && !after_set && !last && !open_range;
            if (open_range) return refuse(r, "a range that ends in -");
            ltd_buf_str(r->out, range ? "-" : "\\-");
            open_range = range;
            have_one = false; /* what follows a range's end or a literal - begins anew */
            after_set = false;
            continue;
        }
        if (c == '\\') {
            if ((st = escape(r, true, &set)) != LTD_OK) return st;
            if (set && open_range) return refuse(r, "a range that ends in a set");
        } else {
            if (c == ']') ltd_buf_str(r->out, "\\"); /* the very first: itself */
            ltd_buf_add(r->out, &c, 1);
            while (r->p < r->end && ((unsigned char)*r->p & 0xC0) == 0x80) ltd_buf_add(r->out, r->p++, 1);
            set = false;
        }
        have_one = !set && !open_range;
        after_set = set;
        open_range = false;
    }
    return refuse(r, "an unfinished class");
}

/* Behind '{': an interval, or the brace itself. */
static ltd_status interval(tok__regex *r)
{
    const char *p = r->p;
    const char *lo = p;
    while (p < r->end && *p >= '0' && *p <= '9') p++;
    size_t n_lo = (size_t)(p - lo);
    bool comma = p < r->end && *p == ',';
    if (comma) p++;
    const char *hi = p;
    while (p < r->end && *p >= '0' && *p <= '9') p++;
    size_t n_hi = (size_t)(p - hi);
    if (p == r->end || *p != '}' || (n_lo == 0 && n_hi == 0)) {
        ltd_buf_str(r->out, "\\{");
        return LTD_OK;
    }
    p++;
    if (p < r->end && *p == '+') return refuse(r, "{n}+ (possessive to one engine, repeated to the other)");
    if (p < r->end && *p == '?' && !comma) return refuse(r, "{n}?");
    ltd_buf_str(r->out, "{");
    if (n_lo)
        ltd_buf_add(r->out, lo, n_lo);
    else
        ltd_buf_str(r->out, "0");
    if (comma) ltd_buf_str(r->out, ",");
    ltd_buf_add(r->out, hi, n_hi);
    ltd_buf_str(r->out, "}");
    r->p = p;
    return LTD_OK;
}

/* Behind '(': a plain, a non-capturing, a look-around, an atomic or a case-blind group. */
static ltd_status group(tok__regex *r)
{
    static const char *const kinds[] = {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:", "?-i:"};
    ltd_buf_str(r->out, "(");
    if (r->p < r->end && *r->p == '*') return refuse(r, "(*");
    if (r->p == r->end || *r->p != '?') return LTD_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t n = strlen(kinds[i]);
        if ((size_t)(r->end - r->p) < n || memcmp(r->p, kinds[i], n) != 0) continue;
        ltd_buf_str(r->out, kinds[i]);
        r->p += n;
        return LTD_OK;
    }
    return refuse(r, "a group of an unknown kind");
}

ltd_status tok__regex_translate(const char *pattern, size_t n, ltd_buf *out, char *why, size_t cap)
{
    tok__regex r = {pattern, pattern + n, out, why, cap, false};
    ltd_status st = LTD_OK;
    bool set;
    char version[32] = "0";
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    r.old_unicode = strtol(version, NULL, 10) < 16;
    /* Searching for it is quadratic in a run of spaces: each start runs to the end of the run and fails
     * there.  A leftmost match never begins behind a space (the one before it would have matched as far), so
     * that one start a run is enough. */
    if (n == 4 && memcmp(pattern, "\\s+$", 4) == 0) ltd_buf_str(out, "(?<![" SPACES "])");
    while (r.p < r.end && st == LTD_OK) {
        char c = *r.p++;
        switch (c) {
        case '\\':
            st = escape(&r, false, &set);
            break;
        case '[':
            st = char_class(&r);
            break;
        case '(':
            st = group(&r);
            break;
        case '{':
            st = interval(&r);
            break;
        case ']':
        case '}':
            ltd_buf_fmt(out, "\\%c", c);
            break;
        default:
            ltd_buf_add(out, &c, 1);
            break;
        }
    }
    return st;
}

ltd_status tok__step_compile(const tok__loader *ld, const char *where, const char *pattern, size_t n,
                             tok__step *step)
{
    ltd_buf re = {0};
    char why[128] = "";
    int code = 0;
    PCRE2_SIZE at = 0;
    ltd_status st = LTD_OK;
    if (tok__regex_translate(pattern, n, &re, why, sizeof why) != LTD_OK) {
        st = tok__fail(ld, LTD_UNSUPPORTED, "%s: the pattern holds %s, which is not understood: %.200s",
                       where, why, pattern);
        goto done;
    }
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    if (!cc) {
        st = tok__fail(ld, LTD_NO_MEMORY, "%s: no memory for the pattern", where);
        goto done;
    }
    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    step->re = pcre2_compile((PCRE2_SPTR)re.data, re.len,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE, &code, &at, cc);
    pcre2_compile_context_free(cc);
    if (!step->re) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(code, text, sizeof text);
        st = tok__fail(ld, LTD_UNSUPPORTED, "%s: the pattern does not compile (%s): %.200s", where,
                       (char *)text, pattern);
        goto done;
    }
    /* Where writable and executable memory is denied this fails and matching goes through the interpreter. */
    (void)pcre2_jit_compile(step->re, PCRE2_JIT_COMPLETE);
    const uint8_t *first = NULL;
    if (pcre2_pattern_info(step->re, PCRE2_INFO_FIRSTBITMAP, &first) == 0 && first) {
        memcpy(step->first, first, sizeof step->first);
        step->has_first = true;
    }
done:
    ltd_buf_deinit(&re);
    return st;
}

void tok__step_deinit(tok__step *s)
{
    pcre2_code_free(s->re);
    ltd_free(s->literal);
    memset(s, 0, sizeof *s);
}
