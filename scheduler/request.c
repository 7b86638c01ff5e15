/* request.c - the life of groups and sequences: made from a request, queued, ended, released.
 * Ending and releasing are two things: a sequence ends when its outcome is known (its last event goes out), and is released when the last launched
 * step that names it has been applied, since until then the device may read and write its slots. */
#include <string.h>

#include "scheduler/scheduler_private.h"

/* Independent streams for the choices of one seed (the finaliser of SplitMix64). */
static uint64_t choice_seed(uint64_t seed, int32_t choice)
{
    uint64_t x = seed + 0x9e3779b97f4a7c15u * (uint64_t)(choice + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }

static void init_seq(const sched *s, const sched_request *r, group *g, seq *q, int32_t index)
{
    int32_t prompt = index / r->n, n = r->prompt_lens[prompt];
    *q = (seq){.g = g,
               .index = index,
               .choice = index % r->n,
               .n_prompt = n,
               .n_tokens = n,
               .req_row = -1,
               .stop_id = -1,
               .stop_string = -1};
    /* the last drawn token needs no slot: a pool of n slots gives a prompt of p tokens n - p + 1 more */
    q->max_out = min32(r->max_tokens, min32(s->o.context_length - n, s->o.n_slots - n + 1));
    q->n_target = q->max_out > 0 ? n : n - 1;
    q->scores = r->n_prompt_logprobs >= 0 && q->choice == 0;
    q->tokens = ltd_alloc(((size_t)n + (size_t)q->max_out) * sizeof *q->tokens);
    memcpy(q->tokens, r->prompts[prompt], (size_t)n * sizeof *q->tokens);
    q->params = (kern_sample_params){.temperature = r->temperature,
                                     .top_p = r->top_p,
                                     .min_p = r->min_p,
                                     .top_k = r->top_k,
                                     .seed = choice_seed(r->seed, q->choice),
                                     .target = -1,
                                     .n_logprobs = r->n_logprobs,
                                     .repetition = 1,
                                     .mask_row = -1};
}

static ltd_status check_request(const sched *s, const sched_request *r, ltd_err *err)
{
    if (r->n_prompts < 1 || r->n < 1 || r->max_tokens < 0 || r->n_stops < 0 || r->n_stops > SCHED_MAX_STOPS ||
        r->n_stop_ids < 0 || r->n_stop_ids > SCHED_MAX_STOP_IDS)
        return ltd_fail(err, LTD_INVALID,
                        "a request of %d prompts, n %d, max_tokens %d, %d stops, %d stop ids", r->n_prompts,
                        r->n, r->max_tokens, r->n_stops, r->n_stop_ids);
    for (int32_t i = 0; i < r->n_stops; i++)
        if (!r->stop_lens[i]) return ltd_fail(err, LTD_INVALID, "stop string %d is empty", i);
    for (int32_t i = 0; i < r->n_prompts; i++) {
        int32_t n = r->prompt_lens[i], room = r->max_tokens > 0 ? 1 : 0;
        if (n < 1) return ltd_fail(err, LTD_INVALID, "prompt %d is empty", i);
        if (n + room > s->o.context_length)
            return ltd_fail(err, LTD_TOO_LARGE,
                            "prompt of %d tokens: the context holds %d, one of them for the answer", n,
                            s->o.context_length);
        if (n + 1 > s->o.n_slots)
            return ltd_fail(err, LTD_TOO_LARGE,
                            "prompt of %d tokens can never fit: with one more for the answer it needs %d "
                            "slots, the token pool has %d",
                            n, n + 1, s->o.n_slots);
    }
    return LTD_OK;
}

ltd_status sched__group_create(const sched *s, const sched_request *r, group **out, ltd_err *err)
{
    ltd_status st = check_request(s, r, err);
    if (st != LTD_OK) return st;
    group *g = ltd_calloc(1, sizeof *g);
    g->timer = -1;
    g->n = r->n;
    g->n_seqs = g->n_waiting = r->n_prompts * r->n;
    g->n_logprobs = r->n_logprobs;
    g->n_prompt_logprobs = r->n_prompt_logprobs;
    g->ignore_eos = r->ignore_eos;
    g->skip_special = r->skip_special;
    g->include_stop = r->include_stop;
    g->deadline_us = r->deadline_us;
    g->n_stops = r->n_stops;
    for (int32_t i = 0; i < r->n_stops; i++) {
        g->stops[i] = ltd_alloc(r->stop_lens[i]);
        memcpy(g->stops[i], r->stops[i], r->stop_lens[i]);
        g->stop_lens[i] = r->stop_lens[i];
        if (r->stop_lens[i] > g->longest_stop) g->longest_stop = r->stop_lens[i];
    }
    g->n_stop_ids = r->n_stop_ids;
    memcpy(g->stop_ids, r->stop_ids, sizeof *r->stop_ids * (size_t)r->n_stop_ids);
    memcpy(g->salt, r->salt, sizeof g->salt);
    memcpy(g->label, r->label, sizeof g->label);
    g->label[sizeof g->label - 1] = 0;
    g->seqs = ltd_calloc((size_t)g->n_seqs, sizeof *g->seqs);
    for (int32_t i = 0; i < g->n_seqs; i++) init_seq(s, r, g, &g->seqs[i], i);
    *out = g;
    return LTD_OK;
}

void sched__group_destroy(group *g)
{
    if (!g) return;
    for (int32_t i = 0; i < g->n_seqs; i++) {
        sched__output_deinit(&g->seqs[i]);
        ltd_free(g->seqs[i].tokens);
    }
    for (int32_t i = 0; i < g->n_stops; i++) ltd_free(g->stops[i]);
    ltd_free(g->seqs);
    ltd_free(g);
}

/* ---------------------------------------------------------------- the queue and the index by id */

group *sched__group_find(const sched *s, uint64_t id)
{
    group *g = s->buckets[id % GROUP_BUCKETS];
    while (g && g->id != id) g = g->hash_next;
    return g;
}

void sched__group_enqueue(sched *s, group *g)
{
    g->submitted_us = s->now_us;
    g->expires_us = s->o.queue_timeout_us ? s->now_us + s->o.queue_timeout_us : 0;
    sched__timer_set(s, g);
    g->hash_next = s->buckets[g->id % GROUP_BUCKETS];
    s->buckets[g->id % GROUP_BUCKETS] = g;
    g->prev = s->queue_tail;
    *(s->queue_tail ? &s->queue_tail->next : &s->queue_head) = g;
    s->queue_tail = g;
    g->queued = true;
    s->counts.requests++;
}

static void leave_queue(sched *s, group *g)
{
    if (!g->queued) return;
    *(g->prev ? &g->prev->next : &s->queue_head) = g->next;
    *(g->next ? &g->next->prev : &s->queue_tail) = g->prev;
    g->prev = g->next = NULL;
    g->queued = false;
    pthread_mutex_lock(&s->box.lock);
    s->box.n_waiting--;
    pthread_mutex_unlock(&s->box.lock);
}

void sched__group_reap(sched *s, group *g)
{
    if (g->n_waiting == 0) leave_queue(s, g);
    if (g->n_released < g->n_seqs) return;
    group **at = &s->buckets[g->id % GROUP_BUCKETS];
    while (*at != g) at = &(*at)->hash_next;
    *at = g->hash_next;
    s->progress++; /* its memory may come back as another group: s->blocked must not mean that one */
    sched__group_destroy(g);
}

/* ---------------------------------------------------------------- ending and releasing */

int32_t sched__seq_future(const sched *s, const seq *q)
{
    int32_t most = q->max_out ? q->n_prompt + q->max_out - 1 : q->n_target;
    return min32(most, s->o.n_slots) - q->n_slots;
}

static void leave_running(sched *s, seq *q)
{
    *(q->prev ? &q->prev->next : &s->running) = q->next;
    *(q->next ? &q->next->prev : &s->running_last) = q->prev;
    q->prev = q->next = NULL;
    s->n_running--;
    s->progress++;
}

/* The slots of an ended sequence.  With m = positions whose KV is computed and whose token is part of the sequence:
 *     [0, path)  the tree's, stay      [path, m)  go to the tree, its duplicates back to the pool      [m, n_slots)  back to the pool */
static void give_up_slots(sched *s, seq *q)
{
    int32_t *row = pool_req_row(s->table, q->req_row), keep = 0;
    if (s->tree && !q->poisoned) {
        radix_key key = {.tokens = q->tokens,
                         .n_tokens = min32(q->n_computed, q->n_tokens),
                         .n_prompt = q->n_prompt,
                         .salt = {q->g->salt[0], q->g->salt[1]}};
        int32_t n_dup = 0;
        keep = key.n_tokens;
        if (keep > q->path.n_tokens) {
            radix_insert(s->tree, &key, s->now_us, &q->path, row, s->scratch, &n_dup);
            pool_slots_give(s->slots, s->scratch, n_dup); /* no step in flight names this row */
        } else
            keep = q->path.n_tokens;
    } else if (s->tree)
        keep = q->path.n_tokens;
    pool_slots_give(s->slots, row + keep, q->n_slots - keep);
    if (s->tree) radix_unlock(s->tree, &q->path);
    q->n_slots = 0;
}

void sched__seq_release(sched *s, seq *q)
{
    LTD_CHECK(q->in_flight == 0 && q->finish != SCHED_RUNNING,
              "release of a sequence with %d steps in flight", q->in_flight);
    if (q->req_row < 0) return;
    give_up_slots(s, q);
    pool_req_row_give(s->table, q->req_row);
    q->req_row = -1;
    leave_running(s, q);
    q->g->n_released++;
}

void sched__seq_end(sched *s, seq *q, sched_finish why)
{
    if (q->finish != SCHED_RUNNING) return;
    q->finish = why;
    q->g->n_ended++;
    s->counts.finished[why]++;
    if (q->req_row >= 0) s->reserved -= sched__seq_future(s, q);
    sched__output_end(s, q);
    if (q->g->n_ended == q->g->n_seqs) sched__timer_set(s, q->g);
}

/* Ends every sequence of the group that has not ended.  Waiting ones are released at once; g may be gone afterwards. */
void sched__group_cancel(sched *s, group *g, sched_finish why)
{
    int32_t first_waiting = g->n_seqs - g->n_waiting;
    for (int32_t i = 0; i < g->n_seqs; i++) {
        seq *q = &g->seqs[i];
        if (q->finish != SCHED_RUNNING) continue;
        sched__seq_end(s, q, why);
        if (i >= first_waiting) {
            g->n_waiting--;
            g->n_released++;
        } else if (q->in_flight == 0)
            sched__seq_release(s, q);
    }
    sched__group_reap(s, g);
}

void sched__cancel_all(sched *s, sched_finish why)
{
    for (int32_t b = 0; b < GROUP_BUCKETS; b++)
        for (group *g = s->buckets[b], *next; g; g = next) {
            next = g->hash_next;
            sched__group_cancel(s, g, why);
        }
}

void sched__expire(sched *s)
{
    while (s->n_timers && s->timers[0]->due_us <= s->now_us) {
        group *g = s->timers[0];
        log_info("sched", "id=%s group=%llu expired=%s waited_ms=%lld", g->label, (unsigned long long)g->id,
                 g->deadline_us && g->deadline_us <= s->now_us ? "deadline" : "queue",
                 (long long)(s->now_us - g->submitted_us) / 1000);
        sched__group_cancel(s, g, SCHED_ABORT); /* all its sequences have ended: no timer any more */
    }
}
