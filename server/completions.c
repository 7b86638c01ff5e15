/* completions.c - a completion from its parsed body to the last message of the engine.
 * The group's id goes into the map before the loop looks at the engine's messages, so none can be missed;
 * once the client has left the id is taken out, and what the engine still says about it finds nobody. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server_private.h"

/* ---------------------------------------------------------------- the generation's state */

srv_gen *srv__gen_create(srv_req *req, const srv_const *c, srv_call *call)
{
    srv *s = req->s;
    srv_gen *g = ltd_calloc(1, sizeof *g);
    g->req = req;
    g->c = c;
    g->call = call;
    g->n_choices = call->n_prompts * call->n;
    g->choices = ltd_calloc((size_t)g->n_choices, sizeof *g->choices);
    for (int32_t i = 0; i < g->n_choices; i++) {
        g->choices[i].stop_id = g->choices[i].stop_string = -1;
        tok_stream_init(&g->choices[i].offsets, c->tok, call->r.skip_special);
    }
    g->created = ltd_unix_s();
    snprintf(g->id, sizeof g->id, "cmpl-%s", req->own_id);
    ltd_buf_fmt(&g->head, "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":", g->id,
                (long long)g->created);
    ltd_buf_json_str(&g->head, call->model, strlen(call->model));
    ltd_buf_fmt(&g->head, ",\"system_fingerprint\":\"%s\"", s->fingerprint);
    if (strcmp(req->label, req->own_id)) {
        ltd_buf_str(&g->head, ",\"request_id\":");
        ltd_buf_json_str(&g->head, req->label, strlen(req->label));
    }
    ltd_buf_str(&g->head, ",\"choices\":[");
    return g;
}

void srv__gen_destroy(srv_gen *g)
{
    if (!g) return;
    for (int32_t i = 0; i < g->n_choices; i++) {
        ltd_buf_deinit(&g->choices[i].text);
        ltd_buf_deinit(&g->choices[i].scores);
    }
    ltd_free(g->choices);
    ltd_buf_deinit(&g->head);
    ltd_buf_deinit(&g->out);
    srv__call_destroy(g->call);
    ltd_free(g);
}

int32_t srv__gen_echo_entries(const srv_gen *g, int32_t choice)
{
    return g->call->echo && g->call->logprobs ? g->call->prompts[choice / g->call->n].n : 0;
}

int32_t srv__gen_entries(const srv_gen *g, int32_t choice)
{
    const srv_choice *ch = &g->choices[choice];
    if (!g->call->logprobs) return 0;
    return srv__gen_echo_entries(g, choice) + ch->n_sent +
           (int32_t)(ch->scores.len / srv__score_bytes(g->call->r.n_logprobs));
}

const char *srv__gen_finish_name(const srv_choice *ch)
{
    const char *name = sched_finish_name(ch->finish);
    return name ? name : "length";
}

void srv__gen_stop_reason(const srv_gen *g, const srv_choice *ch, ltd_buf *out)
{
    const sched_request *r = &g->call->r;
    if (ch->stop_string >= 0 && ch->stop_string < r->n_stops) {
        ltd_buf_json_str(out, g->call->stops[ch->stop_string], r->stop_lens[ch->stop_string]);
        return;
    }
    for (int32_t i = 0; i < r->n_stop_ids; i++) {
        if (ch->stop_id != r->stop_ids[i]) continue;
        ltd_buf_fmt(out, "%d", ch->stop_id);
        return;
    }
    ltd_buf_str(out, "null"); /* also for the model's own end of text */
}

void srv__gen_usage(const srv_gen *g, ltd_buf *out)
{
    int64_t completion = 0, cached = 0, prompt = g->call->prompt_tokens;
    for (int32_t i = 0; i < g->n_choices; i++) {
        completion += g->choices[i].completion_tokens;
        if (i % g->call->n == 0) cached += g->choices[i].cached_tokens; /* a prompt counts once, whatever n */
    }
    ltd_buf_fmt(out,
                "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,\"prompt_tokens_"
                "details\":{\"cached_tokens\":%lld},"
                "\"completion_tokens_details\":{\"reasoning_tokens\":0}}",
                (long long)prompt, (long long)completion, (long long)(prompt + completion),
                (long long)cached);
}

void srv__gen_fail(srv_gen *g, const srv_error *e)
{
    if (g->failed) return;
    g->failed = true;
    g->error = *e;
}

bool srv__gen_done(const srv_gen *g) { return g->failed || g->n_finished == g->n_choices; }

/* Scores of a prompt come once for each choice, and again after a retraction: what is known already is
 * skipped. */
static bool apply_prompt(srv_gen *g, const srv_msg *m)
{
    srv_prompt *p = &g->call->prompts[m->seq / g->call->n];
    size_t each = srv__score_bytes(m->n_top);
    if (!g->call->echo || !g->call->logprobs || m->n_top != g->call->r.n_prompt_logprobs) return false;
    int32_t skip = p->n_scored + 1 - m->pos0;
    if (skip < 0 || skip >= m->n_tokens) return false;
    int32_t n = m->n_tokens - skip;
    if (n > p->n - 1 - p->n_scored) n = p->n - 1 - p->n_scored;
    ltd_buf_add(&p->scores, srv__msg_scores(m) + (size_t)skip * each, (size_t)n * each);
    p->n_scored += n;
    return p->n_scored == p->n - 1;
}

bool srv__gen_apply(srv_gen *g, const srv_msg *m)
{
    if (m->group_done) g->active = false;
    if (m->seq < 0 || m->seq >= g->n_choices || g->failed) return false;
    if (m->kind == SCHED_EV_PROMPT_LOGPROBS) return apply_prompt(g, m);
    srv_choice *ch = &g->choices[m->seq];
    if (ch->finish != SCHED_RUNNING) return false;
    if (m->text_len) ltd_buf_add(&ch->text, srv__msg_text(m), m->text_len);
    g->pending_bytes += m->text_len;
    if (g->call->logprobs && m->n_top == g->call->r.n_logprobs && m->n_tokens) {
        size_t bytes = (size_t)m->n_tokens * srv__score_bytes(m->n_top);
        ltd_buf_add(&ch->scores, srv__msg_scores(m), bytes);
        g->pending_bytes += bytes;
    }
    ch->cached_tokens = m->cached_tokens;
    ch->completion_tokens = m->completion_tokens;
    g->queued_us = m->queued_us;
    if (!g->first_token_us) g->first_token_us = m->first_token_us;
    if (m->finish != SCHED_RUNNING) {
        ch->finish = m->finish;
        ch->stop_id = m->stop_id;
        ch->stop_string = m->stop_string;
        g->n_finished++;
        if (m->finish == SCHED_ABORT) g->aborted = true;
        if (m->finish == SCHED_ERROR) {
            srv_error e;
            srv__error(&e, 500, NULL, "engine_error", "The engine failed while it worked on the request");
            srv__gen_fail(g, &e);
        }
    }
    return m->text_len || m->finish != SCHED_RUNNING;
}

/* ---------------------------------------------------------------- submitting */

static void run_parse(srv_job *job)
{
    job->st = srv__call_parse(&job->s->c, job->body.data ? job->body.data : "", job->body.len, &job->call,
                              &job->error);
    ltd_buf_deinit(&job->body);
}

/* What an echo does not need goes; ids for its log-probabilities stay. */
static void drop_prompts(srv_call *call)
{
    if (call->echo && call->logprobs) return;
    for (int32_t i = 0; i < call->n_prompts; i++) {
        ltd_free(call->prompts[i].ids);
        call->prompts[i].ids = NULL;
    }
}

static ltd_status submit(srv_req *req, srv_call *call, uint64_t *id, srv_error *e)
{
    srv *s = req->s;
    sched_request *r = &call->r;
    ltd_err err = {0};
    const int32_t **prompts = ltd_alloc((size_t)call->n_prompts * sizeof *prompts);
    int32_t *lens = ltd_alloc((size_t)call->n_prompts * sizeof *lens);
    for (int32_t i = 0; i < call->n_prompts; i++) {
        prompts[i] = call->prompts[i].ids;
        lens[i] = call->prompts[i].n;
    }
    r->prompts = prompts;
    r->prompt_lens = lens;
    r->n_prompts = call->n_prompts;
    if (!call->seeded) r->seed = srv__random(s);
    if (s->o->request_timeout_s) r->deadline_us = req->t0_us + s->o->request_timeout_s * 1000000;
    snprintf(r->label, sizeof r->label, "%.*s", (int)sizeof r->label - 1, req->label);
    ltd_status st = sched_submit(s->sched, r, id, &err);
    r->prompts = NULL;
    r->prompt_lens = NULL;
    ltd_free(prompts);
    ltd_free(lens);
    if (st == LTD_OK) return LTD_OK;
    if (st == LTD_TOO_LARGE) return srv__error(e, 400, "prompt", "context_length_exceeded", "%s", err.text);
    if (st == LTD_FULL) {
        srv__error(e, 503, NULL, "overloaded", "The server is full: too many requests are waiting");
    } else if (st == LTD_STOPPING) {
        srv__error(e, 503, NULL, "shutting_down", "The server is shutting down");
    } else if (st == LTD_DEVICE) {
        srv__error(e, 503, NULL, "engine_failed", "The engine has failed; the server is about to end");
    } else {
        return srv__error(e, st == LTD_INVALID || st == LTD_UNSUPPORTED ? 400 : 500, NULL, NULL, "%s",
                          err.text[0] ? err.text : ltd_status_text(st));
    }
    e->retry_after_s = 1;
    return st;
}

static void parsed(srv_job *job)
{
    srv_req *req = job->req;
    srv *s = req->s;
    srv_error e;
    uint64_t id;
    if (job->st != LTD_OK) {
        srv__req_error(req, &job->error);
        return;
    }
    srv_call *call = job->call;
    if (srv__check_ready(s, &e) != LTD_OK) {
        srv__req_error(req, &e);
        return;
    }
    if (call->label[0]) memcpy(req->label, call->label, sizeof req->label);
    if (submit(req, call, &id, &e) != LTD_OK) {
        srv__req_error(req, &e);
        return;
    }
    job->call = NULL;
    drop_prompts(call);
    req->gen = srv__gen_create(req, &s->c, call);
    req->gen->group = id;
    req->gen->active = true;
    req->state = SRV_ENGINE;
    req->last_sent_ms = (int64_t)uv_now(&s->loop);
    srv__groups_put(&s->groups, id, req);
}

void srv__completions(srv_req *req) { srv__job_start(req, run_parse, parsed, 0); }

/* ---------------------------------------------------------------- what the engine says */

void srv__completions_leave(srv_req *req, sched_cancel_reason why)
{
    srv_gen *g = req->gen;
    if (!g || !g->active) return;
    g->active = false;
    srv__groups_remove(&req->s->groups, g->group);
    sched_cancel(req->s->sched, g->group, why);
}

/* An abort that we did not ask for: over its time, or cut off by the shutdown. */
static bool abort_error(const srv_req *req, srv_error *e)
{
    const srv *s = req->s;
    const srv_gen *g = req->gen;
    bool began = req->state == SRV_SENDING;
    if (!g->aborted) return false;
    if (s->phase == SRV_STOPPING) {
        srv__error(e, 503, NULL, "shutting_down", "The server is shutting down");
        return true;
    }
    for (int32_t i = 0; i < g->n_choices && !began; i++) began = g->choices[i].completion_tokens > 0;
    if (began) return false;
    srv__error(e, 503, NULL, "timeout", "The request was over its time before it could begin");
    e->retry_after_s = 1;
    return true;
}

/* Nothing has been answered yet: is it time to? */
static void maybe_begin(srv_req *req)
{
    srv_gen *g = req->gen;
    srv_error e;
    bool done = srv__gen_done(g);
    if (!g->call->stream && !done) return;
    if (g->failed) {
        srv__req_error(req, &g->error);
        return;
    }
    if (done && abort_error(req, &e)) {
        srv__req_error(req, &e);
        return;
    }
    req->state = SRV_GENERATED;
    srv__req_wake(req);
}

void srv__completions_event(srv *s, const srv_msg *m)
{
    srv_req *req = srv__groups_get(&s->groups, m->group);
    if (!req) return;
    srv_gen *g = req->gen;
    srv_error e;
    bool news = srv__gen_apply(g, m);
    if (!g->active)
        srv__groups_remove(&s->groups, m->group);
    else if (g->failed)
        srv__completions_leave(req, SCHED_CANCEL_CLIENT);
    if (g->call->stream && g->pending_bytes > SRV_MAX_PENDING_BYTES) {
        s->n_slow_readers++;
        log_info("server", "id=%s event=slow_reader pending=%zu", req->label, g->pending_bytes);
        srv__completions_leave(req, SCHED_CANCEL_SLOW_READER);
        srv__req_leave(req);
        return;
    }
    if (!news && !srv__gen_done(g)) return;
    if (req->state == SRV_ENGINE) {
        maybe_begin(req);
    } else if (req->state == SRV_SENDING) {
        if (s->phase == SRV_STOPPING && abort_error(req, &e)) srv__gen_fail(g, &e);
        srv__req_wake(req);
    }
}
