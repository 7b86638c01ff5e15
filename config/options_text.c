/* options_text.c - the option table in words: --help, ranges, the nearest name, dumps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_private.h"

enum { HELP_INDENT = 8, HELP_WIDTH = 100 };

bool opt__choice_word(const opt_row *r, int n, char word[OPT_WORD_MAX])
{
    const char *c = r->choices;
    while (c && n-- > 0) {
        c = strchr(c, '|');
        if (c) c++;
    }
    if (!c) return false;
    size_t len = strcspn(c, "|,");
    LTD_CHECK(len < OPT_WORD_MAX, "choices of %s", r->name);
    memcpy(word, c, len);
    word[len] = '\0';
    return true;
}

void opt__env_name(const opt_row *r, char out[48])
{
    int n = snprintf(out, 48, "LATENTD_%s", r->name);
    for (int i = 0; i < n && i < 47; i++)
        out[i] = out[i] == '-' ? '_' : out[i] >= 'a' && out[i] <= 'z' ? (char)(out[i] - 32) : out[i];
}

static void add_choices(const opt_row *r, ltd_buf *out, const char *between, const char *last)
{
    char word[OPT_WORD_MAX], next[OPT_WORD_MAX];
    for (int i = 0; opt__choice_word(r, i, word); i++) {
        if (i) ltd_buf_str(out, opt__choice_word(r, i + 1, next) ? between : last);
        ltd_buf_str(out, word);
    }
}

void opt__range_text(const opt_row *r, ltd_buf *out)
{
    switch (r->type) {
    case OPT_T_INT:
    case OPT_T_NUMBER:
        ltd_buf_fmt(out, "%s%.12g to %.12g", r->type == OPT_T_INT ? "a whole number, " : "a number, ", r->min,
                    r->max);
        if (r->unit) ltd_buf_fmt(out, " %s", r->unit);
        return;
    case OPT_T_FLAG:
        ltd_buf_str(out, "true or false");
        return;
    case OPT_T_CHOICE:
    case OPT_T_CHOICE2:
        add_choices(r, out, ", ", " or ");
        return;
    default:
        ltd_buf_str(out, "text");
    }
}

/* ---------------------------------------------------------------- the nearest name */

enum { NAME_MAX_LEN = 48 };

static int distance(const char *a, size_t na, const char *b, size_t nb)
{
    int row[NAME_MAX_LEN + 1];
    for (size_t j = 0; j <= nb; j++) row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int up = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
            if (up + 1 < best) best = up + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[nb];
}

const opt_row *opt__nearest(const char *name, size_t len)
{
    char plain[NAME_MAX_LEN];
    if (len == 0 || len > sizeof plain) return NULL;
    for (size_t i = 0; i < len; i++)
        plain[i] = name[i] == '_' ? '-' : name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] + 32) : name[i];
    const opt_row *best = NULL;
    int best_d = (int)(len / 3 > 2 ? len / 3 : 2) + 1; /* farther than that helps nobody */
    for (const opt_row *r = opt__rows; r < opt__rows + opt__n_rows; r++) {
        const char *word = r->name, *rest = r->aliases;
        while (word && *word) {
            size_t n = strcspn(word, " ");
            int d = distance(plain, len, word, n < NAME_MAX_LEN ? n : NAME_MAX_LEN);
            /* A beginning that is spelt right counts as near: --max-running for --max-running-requests. */
            if (len >= 4 && len < n && memcmp(plain, word, len) == 0 && d > 1) d = 1;
            if (d < best_d) {
                best_d = d;
                best = r;
            }
            word = word == r->name ? rest : word[n] ? word + n + 1 : NULL;
        }
    }
    return best;
}

char *opt__folder_name(const char *path)
{
    char *real = NULL;
    size_t n;
    const char *base;
    for (int pass = 0;; pass++) {
        n = strlen(path);
        while (n > 0 && path[n - 1] == '/') n--;
        base = path + n;
        while (base > path && base[-1] != '/') base--;
        n = (size_t)(path + n - base);
        bool nameless = n == 0 || (n == 1 && base[0] == '.') || (n == 2 && base[0] == '.' && base[1] == '.');
        if (!nameless) break;
        if (pass == 0 && (real = realpath(path, NULL))) {
            path = real; /* "." and ".." are places, not names */
            continue;
        }
        base = "model";
        n = 5;
        break;
    }
    char *name = ltd_alloc(n + 1);
    memcpy(name, base, n);
    name[n] = '\0';
    free(real);
    return name;
}

/* ---------------------------------------------------------------- --help */

static void add_wrapped(ltd_buf *out, const char *text)
{
    size_t column = HELP_INDENT;
    ltd_buf_fmt(out, "%*s", HELP_INDENT, "");
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column > HELP_INDENT && column + n + 1 > HELP_WIDTH) {
            ltd_buf_fmt(out, "\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
        } else if (column > HELP_INDENT) {
            ltd_buf_str(out, " ");
            column++;
        }
        ltd_buf_add(out, text, n);
        column += n;
        text += n + (text[n] ? 1 : 0);
    }
    ltd_buf_str(out, "\n");
}

static void add_row(ltd_buf *out, const opt_row *r)
{
    char word[OPT_WORD_MAX], env[48];
    ltd_buf facts = {0};
    ltd_buf_fmt(out, "  --%s", r->name);
    if (r->type == OPT_T_INT) ltd_buf_str(out, " N");
    if (r->type == OPT_T_NUMBER) ltd_buf_str(out, " X");
    if (r->type == OPT_T_CHOICE || r->type == OPT_T_CHOICE2) {
        ltd_buf_str(out, " ");
        add_choices(r, out, "|", "|");
    }
    if (r->type != OPT_T_INT && r->type != OPT_T_NUMBER && r->unit) ltd_buf_fmt(out, " %s", r->unit);
    for (const char *a = r->aliases; a && *a;) {
        size_t n = strcspn(a, " ");
        ltd_buf_fmt(out, ", --%.*s", (int)n, a);
        a += n + (a[n] ? 1 : 0);
    }
    ltd_buf_str(out, "\n");
    add_wrapped(out, r->help);
    if (r->type == OPT_T_ACTION) return;
    opt__env_name(r, env);
    if (r->type == OPT_T_INT || r->type == OPT_T_NUMBER)
        ltd_buf_fmt(&facts, "Default %.12g; %.12g to %.12g%s%s; ", r->def, r->min, r->max, r->unit ? " " : "",
                    r->unit ? r->unit : "");
    if (r->type == OPT_T_FLAG) ltd_buf_str(&facts, "Default false; ");
    if (r->choices && opt__choice_word(r, (int)r->def, word)) ltd_buf_fmt(&facts, "Default %s; ", word);
    ltd_buf_str(&facts, env);
    add_wrapped(out, facts.data);
    ltd_buf_deinit(&facts);
}

void opt__help(ltd_buf *out)
{
    ltd_buf_str(
        out,
        "latentd serves a DeepSeek-V2 checkpoint over the OpenAI API.\n\n"
        "  latentd --model DIR [options]\n\n"
        "--option VALUE and --option=VALUE are the same; switches take no value, or =true or =false.\n"
        "An option's value comes from the command line, else from the environment (the name shown with it),\n"
        "else from the JSON file given by --config (the long names as keys), else it is the default.\n");
    const char *group = "";
    for (const opt_row *r = opt__rows; r < opt__rows + opt__n_rows; r++) {
        if (strcmp(group, r->group) != 0) ltd_buf_fmt(out, "\n%s\n", r->group);
        group = r->group;
        add_row(out, r);
    }
}

/* ---------------------------------------------------------------- dumps */

static bool is_default(const ltd_options *o, const opt_row *r)
{
    const void *at = (const char *)o + r->offset;
    int n;
    switch (r->type) {
    case OPT_T_INT:
        return *(const int64_t *)at == (int64_t)r->def;
    case OPT_T_NUMBER:
        return *(const double *)at == r->def;
    case OPT_T_FLAG:
        return !*(const bool *)at;
    case OPT_T_CHOICE2:
        return *(const bool *)at == (r->def != 0);
    case OPT_T_CHOICE:
        memcpy(&n, at, sizeof n);
        return n == (int)r->def;
    case OPT_T_STRING: {
        const char *s = *(char *const *)at;
        return r->choices ? s && strcmp(s, r->choices) == 0 : !s;
    }
    case OPT_T_NAMES: {
        if (o->n_served_names != 1 || !o->model) return o->n_served_names == 0;
        char *name = opt__folder_name(o->model);
        bool same = strcmp(name, o->served_names[0]) == 0;
        ltd_free(name);
        return same;
    }
    default:
        return true;
    }
}

static void add_value(const ltd_options *o, const opt_row *r, ltd_buf *out)
{
    const void *at = (const char *)o + r->offset;
    char word[OPT_WORD_MAX] = "";
    int n;
    switch (r->type) {
    case OPT_T_INT:
        ltd_buf_fmt(out, "%lld", (long long)*(const int64_t *)at);
        return;
    case OPT_T_NUMBER:
        ltd_buf_json_num(out, *(const double *)at);
        return;
    case OPT_T_FLAG:
        ltd_buf_str(out, *(const bool *)at ? "true" : "false");
        return;
    case OPT_T_CHOICE2:
    case OPT_T_CHOICE:
        if (r->type == OPT_T_CHOICE)
            memcpy(&n, at, sizeof n);
        else
            n = *(const bool *)at;
        opt__choice_word(r, n, word);
        ltd_buf_json_str(out, word, strlen(word));
        return;
    case OPT_T_STRING: {
        const char *s = *(char *const *)at;
        if (s)
            ltd_buf_json_str(out, s, strlen(s));
        else
            ltd_buf_str(out, "null");
        return;
    }
    case OPT_T_NAMES:
        ltd_buf_str(out, "[");
        for (int i = 0; i < o->n_served_names; i++) {
            if (i) ltd_buf_str(out, ",");
            ltd_buf_json_str(out, o->served_names[i], strlen(o->served_names[i]));
        }
        ltd_buf_str(out, "]");
        return;
    default:
        return;
    }
}

void opt_dump_json(const ltd_options *o, bool only_changed, ltd_buf *out)
{
    const char *between = "";
    ltd_buf_str(out, "{");
    for (const opt_row *r = opt__rows; r < opt__rows + opt__n_rows; r++) {
        if (r->type == OPT_T_CONFIG || r->type == OPT_T_ACTION || (only_changed && is_default(o, r)))
            continue;
        ltd_buf_fmt(out, "%s\"%s\":", between, r->name);
        add_value(o, r, out);
        between = ",";
    }
    ltd_buf_str(out, "}");
}

void opt_dump_text(const ltd_options *o, bool only_changed, ltd_buf *out)
{
    const char *between = "";
    ltd_buf value = {0};
    ltd_buf_add(out, "", 0);
    for (const opt_row *r = opt__rows; r < opt__rows + opt__n_rows; r++) {
        if (r->type == OPT_T_CONFIG || r->type == OPT_T_ACTION || (only_changed && is_default(o, r)))
            continue;
        ltd_buf_clear(&value);
        add_value(o, r, &value);
        /* A string literal without anything to escape and without blanks is clearer without its quotes. */
        bool bare = value.len > 2 && value.data[0] == '"' && !strpbrk(value.data, " \\=");
        ltd_buf_fmt(out, "%s%s=%.*s", between, r->name, (int)(value.len - (bare ? 2 : 0)),
                    value.data + (bare ? 1 : 0));
        between = " ";
    }
    ltd_buf_deinit(&value);
}
