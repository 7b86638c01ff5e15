/* output.c - tokens to text, stop rules, events.
 * Text is released only as far as no stop string can begin in it; with `text` the produced and unreleased tail,
 *     released | text: ... | longest suffix that begins a stop string (held) |
 * and at most 3 bytes of an unfinished character are held in the tok_stream behind it. */
#include <string.h>

#include "scheduler/scheduler_private.h"

const char *sched_finish_name(sched_finish f)
{
    static const char *const names[] = {NULL, "stop", "length", "abort", "error"};
    return names[f];
}

void sched__output_init(sched *s, seq *q)
{
    tok_stream_init(&q->out.stream, s->t, q->g->skip_special);
    /* sized so that decoding allocates nothing: what can be held, and a token's text */
    ltd_buf_reserve(&q->out.text, q->g->longest_stop + 2048);
    q->out.cap_held =
        q->g->n_logprobs >= 0 ? (int32_t)(q->g->longest_stop < 512 ? q->g->longest_stop : 512) + 16 : 0;
    if (!q->out.cap_held) return;
    q->out.held = ltd_alloc(sizeof *q->out.held * (size_t)q->out.cap_held);
    q->out.tokens = ltd_alloc(sizeof *q->out.tokens * (size_t)q->out.cap_held);
}

void sched__output_deinit(seq *q)
{
    ltd_buf_deinit(&q->out.text);
    ltd_free(q->out.held);
    ltd_free(q->out.tokens);
    q->out.held = NULL;
    q->out.tokens = NULL;
}

static void base_event(const sched *s, const seq *q, sched_event *ev)
{
    const group *g = q->g;
    *ev = (sched_event){.kind = SCHED_EV_DELTA,
                        .group = g->id,
                        .seq = q->index,
                        .text = "",
                        .n_top = g->n_logprobs,
                        .finish = q->finish,
                        .stop_id = q->stop_id,
                        .stop_string = q->stop_string,
                        .prompt_tokens = q->n_prompt,
                        .cached_tokens = q->n_cached,
                        .completion_tokens = q->n_tokens - q->n_prompt,
                        .queued_us =
                            q->admitted_us ? q->admitted_us - g->submitted_us : s->now_us - g->submitted_us,
                        .first_token_us = q->first_token_us ? q->first_token_us - g->submitted_us : 0,
                        .group_done = g->n_ended == g->n_seqs};
}

/* Posts n bytes of the text and the tokens that they complete. */
static void post(sched *s, seq *q, size_t n)
{
    seq_output *o = &q->out;
    sched_event ev;
    base_event(s, q, &ev);
    ev.text = n ? o->text.data : "";
    ev.text_len = n;
    while (ev.n_tokens < o->n_held && o->held[ev.n_tokens].end <= o->text_at + (int64_t)n) {
        const held_token *h = &o->held[ev.n_tokens];
        o->tokens[ev.n_tokens++] = (sched_token){
            .id = h->id, .logprob = h->logprob, .top_ids = h->top_ids, .top_logprobs = h->top_logprobs};
    }
    ev.tokens = o->tokens;
    if (!n && !ev.n_tokens && q->finish == SCHED_RUNNING) return;
    sched__post(s, &ev);
    o->n_held -= ev.n_tokens;
    if (o->n_held) memmove(o->held, o->held + ev.n_tokens, sizeof *o->held * (size_t)o->n_held);
    o->text_at += (int64_t)n;
    o->text.len -= n;
    if (o->text.len) memmove(o->text.data, o->text.data + n, o->text.len);
}

/* The earliest stop string in the text (of those, the first listed): true, with where it begins. */
static bool find_stop(const seq *q, size_t *begin, int32_t *which)
{
    const group *g = q->g;
    const ltd_buf *t = &q->out.text;
    bool found = false;
    for (int32_t i = 0; i < g->n_stops; i++) {
        const char *at = t->len ? memmem(t->data, t->len, g->stops[i], g->stop_lens[i]) : NULL;
        if (!at || (found && (size_t)(at - t->data) >= *begin)) continue;
        *begin = (size_t)(at - t->data);
        *which = i;
        found = true;
    }
    return found;
}

/* Length of the longest end of the text that a stop string could begin with. */
static size_t held_back(const seq *q)
{
    const group *g = q->g;
    const ltd_buf *t = &q->out.text;
    size_t most = 0;
    for (int32_t i = 0; i < g->n_stops; i++) {
        size_t n = g->stop_lens[i] - 1 < t->len ? g->stop_lens[i] - 1 : t->len;
        for (; n > most; n--)
            if (memcmp(t->data + t->len - n, g->stops[i], n) == 0) {
                most = n;
                break;
            }
    }
    return most;
}

static bool ends_by_id(const sched *s, const seq *q, int32_t id)
{
    const group *g = q->g;
    for (int32_t i = 0; i < g->n_stop_ids; i++)
        if (g->stop_ids[i] == id) return true;
    if (g->ignore_eos) return false;
    for (int32_t i = 0; i < s->mi->n_eos; i++)
        if (s->mi->eos[i] == id) return true;
    return tok_get_info(s->t)->eos == id;
}

/* The buffer is sized for what is held and a token of ordinary length. */
static void add_text(sched *s, seq *q, int32_t id)
{
    seq_output *o = &q->out;
    const char *bytes;
    size_t most = 3 * (tok_bytes(s->t, id, &bytes) + 4) + 1; /* every byte may become U+FFFD */
    if (o->text.cap - o->text.len < most) {
        sched__guard(s, false);
        ltd_buf_reserve(&o->text, most);
        sched__guard(s, true);
    }
    tok_stream_add(&o->stream, id, &o->text);
}

static void hold_token(sched *s, seq *q, int32_t id, float logprob, const int32_t *top_ids,
                       const float *top_logprobs)
{
    seq_output *o = &q->out;
    int32_t n = q->g->n_logprobs;
    if (n < 0) return;
    if (o->n_held == o->cap_held) { /* tokens of few bytes under a long stop string */
        sched__guard(s, false);
        o->cap_held *= 2;
        o->held = ltd_realloc(o->held, sizeof *o->held * (size_t)o->cap_held);
        o->tokens = ltd_realloc(o->tokens, sizeof *o->tokens * (size_t)o->cap_held);
        sched__guard(s, true);
    }
    held_token *h = &o->held[o->n_held++];
    h->id = id;
    h->logprob = logprob;
    h->end = o->text_at + (int64_t)o->text.len + o->stream.n_held;
    memcpy(h->top_ids, top_ids, sizeof *top_ids * (size_t)n);
    memcpy(h->top_logprobs, top_logprobs, sizeof *top_logprobs * (size_t)n);
}

/* Ends with a cut at the stop string: tokens that reach past it are never told. */
static void end_at_stop(sched *s, seq *q, size_t begin, int32_t which)
{
    seq_output *o = &q->out;
    q->stop_string = which;
    o->text.len = begin + (q->g->include_stop ? q->g->stop_lens[which] : 0);
    o->stream.n_held = 0;
    while (o->n_held && o->held[o->n_held - 1].end > o->text_at + (int64_t)o->text.len) o->n_held--;
    sched__seq_end(s, q, SCHED_STOP);
}

void sched__output_token(sched *s, seq *q, int32_t id, float logprob, const int32_t *top_ids,
                         const float *top_logprobs)
{
    seq_output *o = &q->out;
    size_t begin = 0;
    int32_t which = -1;
    if (!q->first_token_us) q->first_token_us = s->now_us;
    if (ends_by_id(s, q, id)) {
        q->stop_id = id;
        sched__seq_end(s, q, SCHED_STOP);
        return;
    }
    add_text(s, q, id);
    hold_token(s, q, id, logprob, top_ids, top_logprobs);
    if (q->g->n_stops && find_stop(q, &begin, &which)) {
        end_at_stop(s, q, begin, which);
        return;
    }
    if (q->n_tokens - q->n_prompt == q->max_out) {
        sched__seq_end(s, q, SCHED_LENGTH);
        return;
    }
    post(s, q, o->text.len - (q->g->n_stops ? held_back(q) : 0));
}

void sched__output_end(sched *s, seq *q)
{
    seq_output *o = &q->out;
    if (o->stream.t) tok_stream_flush(&o->stream, &o->text); /* NULL: it ended in the queue */
    for (int32_t i = 0; i < o->n_held; i++)                  /* nothing is taken back any more */
        if (o->held[i].end > o->text_at + (int64_t)o->text.len)
            o->held[i].end = o->text_at + (int64_t)o->text.len;
    post(s, q, o->text.len);
}

void sched__output_scores(sched *s, seq *q, const model_result *r, int32_t first_sample, int32_t n,
                          int32_t pos0)
{
    enum { LOT = 64 };
    sched_token tokens[LOT];
    sched_event ev;
    for (int32_t done = 0; done < n; done += LOT) {
        int32_t k = n - done < LOT ? n - done : LOT;
        for (int32_t i = 0; i < k; i++) {
            int64_t at = first_sample + done + i;
            tokens[i] = (sched_token){.id = r->tokens[at],
                                      .logprob = r->logprobs[at],
                                      .top_ids = r->top_ids + at * KERN_MAX_TOP_LOGPROBS,
                                      .top_logprobs = r->top_logprobs + at * KERN_MAX_TOP_LOGPROBS};
        }
        base_event(s, q, &ev);
        ev.kind = SCHED_EV_PROMPT_LOGPROBS;
        ev.tokens = tokens;
        ev.n_tokens = k;
        ev.n_top = q->g->n_prompt_logprobs;
        ev.pos0 = pos0 + done;
        ev.group_done = false;
        sched__post(s, &ev);
    }
}
