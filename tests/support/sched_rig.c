/* sched_rig.c - see sched_rig.h. */
#include "tests/support/sched_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/byte_tokenizer.h"

sched_options rig_options(void)
{
    return (sched_options){.max_running = 16,
                           .max_queued = 64,
                           .chunk_rows = 32,
                           .radix_cache = true,
                           .reuse_generated = true,
                           .overlap = true,
                           .check_every_step = true};
}

static tok *load_tokenizer(int32_t vocab)
{
    char dir[] = "/tmp/ltd-rig-XXXXXX", path[64];
    ltd_err err;
    tok *t;
    assert_non_null(mkdtemp(dir));
    support_write_byte_tokenizer(dir, NULL);
    if (tok_load(dir, vocab, &t, &err) != LTD_OK) fail_msg("%s", err.text);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
    return t;
}

/* ---------------------------------------------------------------- events */

static rig_group *group_of(rig *g, uint64_t id)
{
    if ((int64_t)id >= g->n_groups) {
        int64_t n = 2 * (int64_t)id + 64;
        g->groups = ltd_realloc(g->groups, sizeof *g->groups * (size_t)n);
        memset(g->groups + g->n_groups, 0, sizeof *g->groups * (size_t)(n - g->n_groups));
        g->n_groups = n;
    }
    return &g->groups[id];
}

static rig_seq *seq_of(rig *g, uint64_t id, int32_t seq)
{
    rig_group *gr = group_of(g, id);
    if (seq >= gr->n_seqs) {
        gr->seqs = ltd_realloc(gr->seqs, sizeof *gr->seqs * (size_t)(seq + 1));
        memset(gr->seqs + gr->n_seqs, 0, sizeof *gr->seqs * (size_t)(seq + 1 - gr->n_seqs));
        gr->n_seqs = seq + 1;
    }
    return &gr->seqs[seq];
}

static void note_scores(rig_seq *q, const sched_event *ev)
{
    assert_int_equal(ev->pos0, q->n_scores + 1);
    assert_int_equal(ev->finish, SCHED_RUNNING);
    assert_false(ev->group_done);
    for (int32_t i = 0; i < ev->n_tokens; i++) {
        if (q->n_scores == q->cap_scores)
            q->scores =
                ltd_realloc(q->scores, sizeof *q->scores * (size_t)(q->cap_scores = 2 * q->cap_scores + 64));
        q->scores[q->n_scores++] = ev->tokens[i].logprob;
    }
}

static void note_delta(rig_seq *q, const sched_event *ev)
{
    for (size_t i = 0; i < ev->text_len;) {
        int k = ltd_utf8_len(ev->text + i, ev->text_len - i);
        if (k <= 0)
            fail_msg("group %llu: an event's text is not whole characters", (unsigned long long)ev->group);
        i += (size_t)k;
    }
    if (ev->finish == SCHED_RUNNING) assert_true(ev->text_len > 0 || ev->n_tokens > 0);
    assert_true(ev->completion_tokens >= q->last.completion_tokens);
    ltd_buf_add(&q->text, ev->text, ev->text_len);
    ltd_buf_add(&q->frames, ev->text, ev->text_len);
    ltd_buf_str(&q->frames, "|");
    for (int32_t i = 0; i < ev->n_tokens; i++) {
        if (q->n_ids == q->cap_ids) {
            q->cap_ids = 2 * q->cap_ids + 64;
            q->ids = ltd_realloc(q->ids, sizeof *q->ids * (size_t)q->cap_ids);
            q->logprobs = ltd_realloc(q->logprobs, sizeof *q->logprobs * (size_t)q->cap_ids);
        }
        q->ids[q->n_ids] = ev->tokens[i].id;
        q->logprobs[q->n_ids++] = ev->tokens[i].logprob;
        for (int32_t t = 1; t < ev->n_top; t++)
            assert_true(ev->tokens[i].top_logprobs[t] < ev->tokens[i].top_logprobs[t - 1]);
    }
}

static void on_event(void *user, const sched_event *ev)
{
    rig *g = user;
    if (g->on_event) g->on_event(g->user, ev);
    pthread_mutex_lock(&g->lock);
    rig_seq *q = seq_of(g, ev->group, ev->seq);
    if (q->n_events && q->last.finish != SCHED_RUNNING)
        fail_msg("group %llu seq %d: an event after the last", (unsigned long long)ev->group, ev->seq);
    assert_true(ev->n_top >= 0 || ev->n_tokens == 0);
    if (ev->kind == SCHED_EV_PROMPT_LOGPROBS)
        note_scores(q, ev);
    else
        note_delta(q, ev);
    q->n_events++;
    q->last = *ev;
    rig_group *gr = &g->groups[ev->group];
    if (gr->done) fail_msg("group %llu: an event after group_done", (unsigned long long)ev->group);
    if (ev->group_done) {
        assert_int_not_equal(ev->finish, SCHED_RUNNING);
        for (int32_t i = 0; i < gr->n_seqs; i++) assert_int_not_equal(gr->seqs[i].last.finish, SCHED_RUNNING);
        gr->done = true;
        g->n_done++;
        pthread_cond_broadcast(&g->ended);
    }
    pthread_mutex_unlock(&g->lock);
}

/* ---------------------------------------------------------------- life */

void rig_open(rig *g, const fake_config *fake, const sched_options *o)
{
    ltd_err err;
    model_limits l;
    memset(g, 0, sizeof *g);
    g->fake = fake ? *fake : (fake_config){0};
    g->o = o ? *o : rig_options();
    g->now_us = 1000000;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->ended, NULL);
    fake_model_config(&g->fake);
    if (model_open(NULL, &g->m, &err) != LTD_OK) fail_msg("%s", err.text);
    g->t = load_tokenizer(model_get_info(g->m)->vocab_size);
    if (!g->o.context_length) g->o.context_length = model_get_info(g->m)->context_length;
    sched_model_limits(&g->o, &l);
    l.max_slots = g->o.n_slots;
    if (model_start(g->m, &l, &g->o.n_slots, &err) != LTD_OK) fail_msg("%s", err.text);
    if (sched_create(&g->o, g->m, g->t, on_event, g, &g->s, &err) != LTD_OK) fail_msg("%s", err.text);
}

void rig_idle(rig *g)
{
    sched_stats st;
    ltd_buf out = {0};
    if (sched_debug(g->s, SCHED_DEBUG_CHECK, 0, &out) != LTD_OK)
        fail_msg("%s", out.data ? out.data : "check failed");
    ltd_buf_deinit(&out);
    sched_get_stats(g->s, &st);
    assert_true(st.idle);
    assert_int_equal(st.running, 0);
    assert_int_equal(st.waiting, 0);
    assert_int_equal(st.slots_locked, 0);
    assert_int_equal(st.slots_free + st.slots_cached, st.slots_total);
    assert_int_equal(st.double_gives, 0);
}

void rig_close(rig *g)
{
    sched_stop(g->s);
    sched_destroy(g->s);
    model_close(g->m);
    tok_destroy(g->t);
    for (int64_t i = 0; i < g->n_groups; i++) {
        for (int32_t k = 0; k < g->groups[i].n_seqs; k++) {
            rig_seq *q = &g->groups[i].seqs[k];
            ltd_buf_deinit(&q->text);
            ltd_buf_deinit(&q->frames);
            ltd_free(q->ids);
            ltd_free(q->logprobs);
            ltd_free(q->scores);
        }
        ltd_free(g->groups[i].seqs);
    }
    ltd_free(g->groups);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->ended);
}

/* ---------------------------------------------------------------- asking */

sched_request rig_request(const int32_t *const *ids, const int32_t *n, int32_t max_tokens)
{
    return (sched_request){.prompts = ids,
                           .prompt_lens = n,
                           .n_prompts = 1,
                           .n = 1,
                           .max_tokens = max_tokens,
                           .top_p = 1,
                           .n_logprobs = -1,
                           .n_prompt_logprobs = -1,
                           .skip_special = true};
}

uint64_t rig_submit(rig *g, const sched_request *r)
{
    ltd_err err;
    uint64_t id = 0;
    if (sched_submit(g->s, r, &id, &err) != LTD_OK) fail_msg("%s", err.text);
    return id;
}

uint64_t rig_ask(rig *g, const char *prompt, int32_t max_tokens, const char *stop)
{
    int32_t ids[4096], n = (int32_t)strlen(prompt);
    const int32_t *p = ids;
    assert_true(n <= 4096);
    for (int32_t i = 0; i < n; i++) ids[i] = (unsigned char)prompt[i];
    sched_request r = rig_request(&p, &n, max_tokens);
    if (stop) {
        r.stops[0] = stop;
        r.stop_lens[0] = strlen(stop);
        r.n_stops = 1;
    }
    return rig_submit(g, &r);
}

ltd_status rig_step(rig *g)
{
    int64_t wake_us;
    g->now_us += 1000;
    ltd_status st = sched_step(g->s, g->now_us, &wake_us);
    if (st == LTD_AGAIN && wake_us) assert_true(wake_us > g->now_us);
    return st;
}

void rig_run(rig *g)
{
    int64_t wake_us = 0;
    for (int64_t n = 0; n < 10000000; n++) {
        g->now_us += 1000;
        ltd_status st = sched_step(g->s, g->now_us, &wake_us);
        if (st == LTD_DEVICE || (st == LTD_AGAIN && !wake_us)) return;
        sched_stats stats;
        if (st == LTD_AGAIN && (sched_get_stats(g->s, &stats), stats.idle)) return;
        if (st == LTD_AGAIN && wake_us > g->now_us) g->now_us = wake_us - 1000;
    }
    fail_msg("the scheduler never came to rest");
}

rig_seq *rig_of(rig *g, uint64_t group, int32_t seq) { return seq_of(g, group, seq); }

bool rig_ended(rig *g, uint64_t group)
{
    pthread_mutex_lock(&g->lock);
    bool done = group_of(g, group)->done;
    pthread_mutex_unlock(&g->lock);
    return done;
}

void rig_wait(rig *g, int64_t n_done)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&g->lock);
    while (g->n_done < n_done)
        if (pthread_cond_timedwait(&g->ended, &g->lock, &until) != 0)
            fail_msg("%lld of %lld groups ended", (long long)g->n_done, (long long)n_done);
    pthread_mutex_unlock(&g->lock);
}

void rig_text(rig *g, uint64_t group, int32_t seq, const char *text, sched_finish finish)
{
    rig_seq *q = seq_of(g, group, seq);
    assert_string_equal(q->text.data ? q->text.data : "", text);
    assert_int_equal(q->last.finish, finish);
}

/* ---------------------------------------------------------------- what must come out */

static bool stopped_by_text(const sched_request *r, ltd_buf *text)
{
    size_t cut = SIZE_MAX;
    for (int32_t i = 0; i < r->n_stops; i++) {
        const char *at = text->len ? memmem(text->data, text->len, r->stops[i], r->stop_lens[i]) : NULL;
        if (!at) continue;
        size_t here = (size_t)(at - text->data) + (r->include_stop ? r->stop_lens[i] : 0);
        if (here < cut) cut = here;
    }
    if (cut == SIZE_MAX) return false;
    text->data[text->len = cut] = 0;
    return true;
}

static bool stopped_by_id(const rig *g, const sched_request *r, int32_t id)
{
    for (int32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    return !r->ignore_eos && id == model_get_info(g->m)->eos[0];
}

void rig_expected(rig *g, const sched_request *r, int32_t prompt, rig_expect *e)
{
    int32_t n = r->prompt_lens[prompt], max = r->max_tokens;
    memset(e, 0, sizeof *e);
    if (max > g->o.context_length - n) max = g->o.context_length - n;
    if (max > g->o.n_slots - n + 1) max = g->o.n_slots - n + 1;
    assert_true(max <= (int32_t)(sizeof e->ids / sizeof *e->ids));
    kern_sample_params p = {.temperature = 0, .target = -1};
    int32_t got = fake_model_generate(&g->fake, r->prompts[prompt], n, &p, true, max, e->ids, NULL);
    e->finish = got < max ? SCHED_ERROR : SCHED_LENGTH;
    tok_stream s;
    tok_stream_init(&s, g->t, r->skip_special);
    while (e->n < got) {
        int32_t id = e->ids[e->n++];
        if (stopped_by_id(g, r, id)) {
            e->finish = SCHED_STOP;
            break;
        }
        tok_stream_add(&s, id, &e->text);
        if (stopped_by_text(r, &e->text)) {
            e->finish = SCHED_STOP;
            return;
        }
    }
    tok_stream_flush(&s, &e->text);
}
