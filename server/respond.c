/* respond.c - the non-streamed answer, and the logprobs object of both forms.
 * JSON is made while it is being sent, a part at a time, from text, ids and numbers: an answer of 8,192
 * tokens with 20 alternatives each is 1.4 MB here and never the several MB of its JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "server/server_private.h"

enum { TEXT_SLICE = 16 << 10 };

/* ---------------------------------------------------------------- one token */

typedef struct entry {
    int32_t id;
    bool scored; /* the prompt's first token has nothing before it */
    float logprob;
    const char *tops; /* n_top ids, then n_top logprobs */
    int n_top;
} entry;

static entry entry_at(const srv_gen *g, int32_t choice, int32_t i)
{
    const srv_prompt *p = &g->call->prompts[choice / g->call->n];
    const srv_choice *ch = &g->choices[choice];
    int32_t n_echo = srv__gen_echo_entries(g, choice);
    bool echo = i < n_echo;
    if (echo && (i == 0 || i > p->n_scored)) return (entry){.id = p->ids[i]};
    int n_top = g->call->r.n_logprobs;
    size_t at = (size_t)(echo ? i - 1 : i - n_echo - ch->n_sent) * srv__score_bytes(n_top);
    const char *rec = (echo ? p->scores.data : ch->scores.data) + at;
    entry e = {.scored = true, .tops = rec + 8, .n_top = n_top};
    memcpy(&e.id, rec, 4);
    memcpy(&e.logprob, rec + 4, 4);
    return e;
}

static void put_logprob(ltd_buf *out, float v)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%.9g", isfinite(v) ? (double)v : -9999.0);
    ltd_buf_add(out, text, (size_t)n);
}

/* A token's text, or bytes:\xNN.. where it is not whole characters, or token_id:N where it has none. */
static void put_token(const srv_gen *g, int32_t id, ltd_buf *out)
{
    const char *s;
    size_t n = tok_bytes(g->c->tok, id, &s);
    if (n == 0) ltd_buf_fmt(out, "\"token_id:%d\"", id);
    for (size_t i = 0; i < n;) {
        int k = ltd_utf8_len(s + i, n - i);
        if (k > 0) {
            i += (size_t)k;
            continue;
        }
        ltd_buf_str(out, "\"bytes:");
        for (size_t j = 0; j < n; j++) ltd_buf_fmt(out, "\\\\x%02x", (unsigned char)s[j]);
        ltd_buf_str(out, "\"");
        return;
    }
    if (n) ltd_buf_json_str(out, s, n);
}

/* Two ids may have one spelling (an added token and a plain one): the better one keeps the key. */
static bool same_spelling(const srv_gen *g, int32_t a, int32_t b)
{
    const char *x, *y;
    size_t n = tok_bytes(g->c->tok, a, &x), m = tok_bytes(g->c->tok, b, &y);
    return a == b || (n > 0 && n == m && !memcmp(x, y, n));
}

static void put_tops(const srv_gen *g, const entry *e, ltd_buf *out)
{
    int32_t ids[32];
    int n = 0;
    bool own = false;
    ltd_buf_str(out, "{");
    for (int i = 0; i <= e->n_top; i++) {
        int32_t id = e->id;
        float lp = e->logprob;
        if (i < e->n_top) {
            memcpy(&id, e->tops + 4 * i, 4);
            memcpy(&lp, e->tops + 4 * (e->n_top + i), 4);
            if (id < 0) continue;
        } else if (own) {
            break; /* the token itself is among the best */
        }
        own |= id == e->id;
        bool seen = false;
        for (int k = 0; k < n && !seen; k++) seen = same_spelling(g, ids[k], id);
        if (seen) continue;
        if (n) ltd_buf_str(out, ",");
        ids[n++] = id;
        put_token(g, id, out);
        ltd_buf_str(out, ":");
        put_logprob(out, lp);
    }
    ltd_buf_str(out, "}");
}

/* ---------------------------------------------------------------- text_offset */

/* Where entry i begins, in characters of the text returned; then moves past it.  Entries come in order, each
 * once. */
static int64_t take_offset(srv_gen *g, int32_t choice, int32_t i)
{
    srv_choice *ch = &g->choices[choice];
    const srv_prompt *p = &g->call->prompts[choice / g->call->n];
    int32_t n_echo = srv__gen_echo_entries(g, choice);
    ltd_buf text = {0};
    if (i == n_echo && i > 0) { /* an echo ends with whole characters */
        tok_stream_flush(&ch->offsets, &text);
        ch->chars += srv__utf8_chars(text.data, text.len);
        ltd_buf_clear(&text);
    }
    if (i == 0 || i == n_echo)
        tok_stream_init(&ch->offsets, g->c->tok,
                        i < n_echo && p->from_text ? false : g->call->r.skip_special);
    int64_t at = ch->chars;
    bool silent = (i == 0 && n_echo > 0 && p->auto_head) || (i == n_echo - 1 && p->auto_tail);
    if (!silent) tok_stream_add(&ch->offsets, entry_at(g, choice, i).id, &text);
    ch->chars += srv__utf8_chars(text.data, text.len);
    ltd_buf_deinit(&text);
    return at;
}

static void put_item(srv_gen *g, int32_t choice, int phase, int32_t i, ltd_buf *out)
{
    if (phase == 3) {
        ltd_buf_fmt(out, "%lld", (long long)take_offset(g, choice, i));
        return;
    }
    entry e = entry_at(g, choice, i);
    if (phase == 0)
        put_token(g, e.id, out);
    else if (!e.scored)
        ltd_buf_str(out, "null");
    else if (phase == 1)
        put_logprob(out, e.logprob);
    else
        put_tops(g, &e, out);
}

bool srv__logprobs_write(srv_gen *g, int32_t choice, srv_lp_cursor *cur, ltd_buf *out, size_t want)
{
    static const char *const keys[4] = {"{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[",
                                        "],\"text_offset\":["};
    size_t from = out->len;
    while (cur->phase < 4) {
        if (!cur->open) ltd_buf_str(out, keys[cur->phase]);
        cur->open = true;
        while (cur->i < cur->to) {
            if (out->len - from >= want) return false;
            if (cur->i > cur->from) ltd_buf_str(out, ",");
            put_item(g, choice, cur->phase, cur->i, out);
            cur->i++;
        }
        cur->phase++;
        cur->i = cur->from;
        cur->open = false;
    }
    ltd_buf_str(out, "]}");
    return true;
}

/* ---------------------------------------------------------------- the whole answer */

enum { AT_HEAD, AT_CHOICE, AT_ECHO, AT_TEXT, AT_LOGPROBS, AT_CHOICE_END, AT_TAIL, AT_END };

/* Writes a slice of s into the open string; true at its end. */
static bool put_slice(srv_gen *g, const char *s, size_t n, ltd_buf *out)
{
    size_t k = n > g->text_at ? srv__utf8_cut(s + g->text_at, n - g->text_at, TEXT_SLICE) : 0;
    if (k) srv__json_chars(out, s + g->text_at, k);
    g->text_at += k;
    if (g->text_at < n) return false;
    g->text_at = 0;
    return true;
}

static void choice_end(srv_gen *g, ltd_buf *out)
{
    srv_choice *ch = &g->choices[g->at_choice];
    ltd_buf_fmt(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", srv__gen_finish_name(ch));
    srv__gen_stop_reason(g, ch, out);
    ltd_buf_str(out, "}");
    ltd_buf_deinit(&ch->text);
    ltd_buf_deinit(&ch->scores);
    g->at_choice++;
    g->phase = g->at_choice < g->n_choices ? AT_CHOICE : AT_TAIL;
}

/* One step of the writer, whose state is g->phase. */
static void respond_step(srv_gen *g, ltd_buf *out, size_t want)
{
    srv_choice *ch = g->at_choice < g->n_choices ? &g->choices[g->at_choice] : NULL;
    const srv_prompt *p = ch ? &g->call->prompts[g->at_choice / g->call->n] : NULL;
    switch (g->phase) {
    case AT_HEAD:
        ltd_buf_add(out, g->head.data, g->head.len);
        g->phase = AT_CHOICE;
        break;
    case AT_CHOICE:
        ltd_buf_fmt(out, "%s{\"index\":%d,\"text\":\"", g->at_choice ? "," : "", g->at_choice);
        g->phase = AT_ECHO;
        break;
    case AT_ECHO:
        if (put_slice(g, p->text, g->call->echo ? p->text_len : 0, out)) g->phase = AT_TEXT;
        break;
    case AT_TEXT:
        if (!put_slice(g, ch->text.data, ch->text.len, out)) break;
        ltd_buf_str(out, "\",\"logprobs\":");
        g->lp = (srv_lp_cursor){.to = srv__gen_entries(g, g->at_choice)};
        g->phase = AT_LOGPROBS;
        break;
    case AT_LOGPROBS:
        if (!g->call->logprobs)
            ltd_buf_str(out, "null");
        else if (!srv__logprobs_write(g, g->at_choice, &g->lp, out, want))
            break;
        g->phase = AT_CHOICE_END;
        break;
    case AT_CHOICE_END:
        choice_end(g, out);
        break;
    case AT_TAIL:
        ltd_buf_str(out, "],\"usage\":");
        srv__gen_usage(g, out);
        ltd_buf_str(out, "}");
        g->phase = AT_END;
        break;
    }
}

bool srv__respond_fill(srv_gen *g, ltd_buf *out, size_t want)
{
    size_t from = out->len;
    while (g->phase != AT_END && out->len - from < want) respond_step(g, out, want);
    return g->phase == AT_END;
}
