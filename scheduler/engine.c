/* engine.c - the engine: one turn (sched_step), its thread, and the mailbox through which other threads speak to it.
 * With two steps in flight the host applies the result of step n-1 and plans step n+1 while the device runs step n. */
#include <string.h>

#include "scheduler/scheduler_private.h"

void sched_options_from(const ltd_options *o, const model_info *mi, sched_options *out)
{
    int32_t chunk = o->chunked_prefill_size              ? (int32_t)o->chunked_prefill_size
                    : strncmp(mi->device, "cpu", 3) == 0 ? 128
                                                         : 8192;
    *out = (sched_options){.context_length = mi->context_length,
                           .max_running = (int32_t)o->max_running_requests,
                           .max_queued = (int32_t)o->max_queued_requests,
                           .chunk_rows = chunk,
                           .radix_cache = !o->disable_radix_cache,
                           .reuse_generated = o->reuse_generated,
                           .overlap = !o->disable_overlap,
                           .absorb_extend = (int32_t)o->absorb_extend,
                           .queue_timeout_us = o->queue_timeout_s * 1000000};
}

void sched_model_limits(const sched_options *o, model_limits *out)
{
    int32_t rows = o->chunk_rows + o->max_running;
    /* edits of one step: a prefix hit of a whole context, its rows, and the rewrites of the step before */
    *out = (model_limits){.n_req_rows = o->max_running,
                          .max_rows = rows,
                          .max_samples = rows,
                          .max_edit_slots = 2 * o->context_length + 4 * rows};
}

ltd_status sched_create(const sched_options *o, model *m, const tok *t, sched_event_fn *fn, void *user,
                        sched **out, ltd_err *err)
{
    LTD_CHECK(o->n_slots > 1 && o->max_running > 0 && o->chunk_rows > 0 && o->context_length > 0,
              "n_slots=%d max_running=%d chunk_rows=%d context=%d", o->n_slots, o->max_running, o->chunk_rows,
              o->context_length);
    sched *s = ltd_calloc(1, sizeof *s);
    s->o = *o;
    s->m = m;
    s->mi = model_get_info(m);
    s->t = t;
    s->fn = fn;
    s->user = user;
    sched_model_limits(o, &s->limits);
    pthread_mutex_init(&s->box.lock, NULL);
    pthread_cond_init(&s->box.answered, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->box.arrived, &attr);
    pthread_condattr_destroy(&attr);
    s->box.tail = &s->box.head;
    s->box.next_id = 1;
    s->plan = model_plan_create(&s->limits);
    s->scratch = ltd_alloc(sizeof *s->scratch * 2 * (size_t)o->context_length);
    s->shares = ltd_alloc(sizeof *s->shares * (size_t)o->max_running);
    s->dups = ltd_alloc(sizeof *s->dups * (size_t)o->n_slots);
    for (int i = 0; i < MODEL_STEPS_IN_FLIGHT; i++)
        s->steps[i].entries = ltd_calloc((size_t)o->max_running, sizeof(step_entry));
    ltd_status st = pool_slots_create(o->n_slots, &s->slots);
    if (st == LTD_OK) st = pool_req_table_create(o->max_running, o->context_length, &s->table);
    if (st == LTD_OK && o->radix_cache)
        st = radix_create(&(radix_options){.n_slots = o->n_slots, .keep_borders = !o->reuse_generated},
                          &s->tree);
    if (st != LTD_OK) {
        sched_destroy(s);
        return ltd_fail(err, st, "scheduler: no memory for %d slots and %d sequences of %d tokens",
                        o->n_slots, o->max_running, o->context_length);
    }
    *out = s;
    return LTD_OK;
}

void sched_destroy(sched *s)
{
    if (!s) return;
    LTD_CHECK(!s->box.running, "sched_destroy before sched_stop");
    for (command *c = s->box.head, *next; c; c = next) {
        next = c->next;
        if (c->kind == CMD_SUBMIT) sched__group_destroy(c->g);
        ltd_free(c);
    }
    for (int32_t b = 0; b < GROUP_BUCKETS; b++)
        for (group *g = s->buckets[b], *next; g; g = next) {
            next = g->hash_next;
            sched__group_destroy(g);
        }
    for (int i = 0; i < MODEL_STEPS_IN_FLIGHT; i++) ltd_free(s->steps[i].entries);
    ltd_free(s->shares);
    ltd_free(s->timers);
    ltd_free(s->dups);
    ltd_free(s->scratch);
    ltd_free(s->plan);
    radix_destroy(s->tree);
    pool_req_table_destroy(s->table);
    pool_slots_destroy(s->slots);
    pthread_cond_destroy(&s->box.arrived);
    pthread_cond_destroy(&s->box.answered);
    pthread_mutex_destroy(&s->box.lock);
    ltd_free(s);
}

/* ---------------------------------------------------------------- requests */

static void send(sched *s, command *c) /* under lock */
{
    c->next = NULL;
    *s->box.tail = c;
    s->box.tail = &c->next;
    pthread_cond_signal(&s->box.arrived);
}

ltd_status sched_submit(sched *s, const sched_request *r, uint64_t *id, ltd_err *err)
{
    group *g;
    ltd_status st = sched__group_create(s, r, &g, err);
    if (st != LTD_OK) return st;
    command *c = ltd_calloc(1, sizeof *c);
    c->kind = CMD_SUBMIT;
    c->g = g;
    pthread_mutex_lock(&s->box.lock);
    if (s->box.faulted)
        st = ltd_fail(err, LTD_DEVICE, "the engine has failed; the server is ending");
    else if (s->box.draining || s->box.stop)
        st = ltd_fail(err, LTD_STOPPING, "the server is shutting down and takes no new requests");
    else if (s->box.n_waiting >= s->o.max_queued)
        st = ltd_fail(err, LTD_FULL, "the queue is full: %d requests are waiting (--max-queued-requests)",
                      s->box.n_waiting);
    else {
        s->box.n_waiting++;
        *id = g->id = s->box.next_id++;
        send(s, c);
    }
    pthread_mutex_unlock(&s->box.lock);
    if (st == LTD_OK) return LTD_OK;
    sched__group_destroy(g);
    ltd_free(c);
    return st;
}

void sched_cancel(sched *s, uint64_t id, sched_cancel_reason why)
{
    command *c = ltd_calloc(1, sizeof *c);
    c->kind = CMD_CANCEL;
    c->id = id;
    c->why = why;
    pthread_mutex_lock(&s->box.lock);
    bool late = s->box.ended; /* everything has been cancelled */
    if (!late) send(s, c);
    pthread_mutex_unlock(&s->box.lock);
    if (late) ltd_free(c);
}

/* ---------------------------------------------------------------- checks and debugging */

static void publish(sched *s)
{
    sched_stats st = s->counts;
    st.running = s->n_running;
    st.slots_total = pool_slots_total(s->slots);
    st.slots_free = pool_slots_free(s->slots);
    st.double_gives = pool_slots_double_gives(s->slots);
    if (s->tree) {
        radix_stats rs = radix_get_stats(s->tree);
        st.slots_cached = rs.n_tokens;
        st.slots_locked = rs.n_locked;
    }
    st.last_step_us = ltd_now_us();
    st.idle = !s->running && !s->queue_head && s->launched == s->applied;
    pthread_mutex_lock(&s->box.lock);
    st.waiting = s->box.n_waiting;
    st.faulted = s->box.faulted;
    s->box.stats = st;
    pthread_mutex_unlock(&s->box.lock);
}

void sched_get_stats(sched *s, sched_stats *out)
{
    pthread_mutex_lock(&s->box.lock);
    *out = s->box.stats;
    out->waiting = s->box.n_waiting;
    out->faulted = s->box.faulted;
    out->idle = out->idle && !s->box.head;
    pthread_mutex_unlock(&s->box.lock);
}

/* free + private + waiting duplicates + tree == total, each slot once; and every part's own invariants. */
ltd_status sched__check(sched *s, ltd_err *err)
{
    ltd_status st;
    if ((st = pool_slots_check(s->slots, err)) != LTD_OK) return st;
    if (s->tree && (st = radix_check(s->tree, err)) != LTD_OK) return st;
    uint8_t *held = ltd_calloc((size_t)s->o.n_slots + 1, 1);
    int64_t future = 0;
    if (s->tree) radix_mark_slots(s->tree, held);
    for (const seq *q = s->running; q; q = q->next) {
        const int32_t *row = pool_req_row(s->table, q->req_row);
        for (int32_t i = q->path.n_tokens; i < q->n_slots; i++) held[row[i]]++;
        if (q->finish == SCHED_RUNNING) future += sched__seq_future(s, q);
    }
    for (int32_t i = 0; i < s->n_dups; i++) held[s->dups[(s->dup_head + i) % s->o.n_slots].slot]++;
    st = pool_slots_check_owners(s->slots, held, err);
    ltd_free(held);
    if (st == LTD_OK && future != s->reserved)
        st = ltd_fail(err, LTD_CORRUPT, "reserved slots: counted %lld, the running sequences may take %lld",
                      (long long)s->reserved, (long long)future);
    if (st == LTD_OK && !s->running && s->tree && radix_get_stats(s->tree).n_locked)
        st = ltd_fail(err, LTD_CORRUPT, "nothing runs, but %d tokens of the tree are locked",
                      radix_get_stats(s->tree).n_locked);
    return st;
}

static void give_evicted(void *user, const int32_t *slots, int32_t n) { pool_slots_give(user, slots, n); }

static ltd_status debug(sched *s, const command *c)
{
    ltd_err err;
    ltd_status st;
    switch (c->op) {
    case SCHED_DEBUG_CHECK:
        if ((st = sched__check(s, &err)) != LTD_OK) ltd_buf_str(c->text, err.text);
        return st;
    case SCHED_DEBUG_DUMP:
        if (s->tree) radix_dump(s->tree, c->arg > 0 && c->arg < 100000 ? (int32_t)c->arg : 1000, c->text);
        return LTD_OK;
    case SCHED_DEBUG_FLUSH:
        if (s->tree) radix_evict(s->tree, s->o.n_slots, give_evicted, s->slots);
        return LTD_OK;
    case SCHED_DEBUG_SLEEP:
        s->sleep_until_us = s->now_us + c->arg * 1000;
        return LTD_OK;
    case SCHED_DEBUG_FAIL_TAKE:
        pool_slots_fail_take(s->slots, (int32_t)c->arg, false);
        return LTD_OK;
    }
    return LTD_INVALID;
}

ltd_status sched_debug(sched *s, sched_debug_op op, int64_t arg, ltd_buf *out)
{
    command c = {.kind = CMD_DEBUG, .op = op, .arg = arg, .text = out};
    pthread_mutex_lock(&s->box.lock);
    bool alone = !s->box.running;
    if (!alone && s->box.ended)
        c.result = LTD_STOPPING;
    else if (!alone) {
        send(s, &c);
        while (!c.done) pthread_cond_wait(&s->box.answered, &s->box.lock);
    }
    pthread_mutex_unlock(&s->box.lock);
    if (!alone) return c.result;
    c.result = debug(s, &c); /* no engine thread: the caller is the engine */
    publish(s);
    return c.result;
}

/* ---------------------------------------------------------------- one turn */

void sched__guard(sched *s, bool on)
{
    if (s->guarded == on) return;
    s->guarded = on;
    ltd_alloc_guard(on);
}

void sched__post(sched *s, const sched_event *ev)
{
    bool guarded = s->guarded;
    sched__guard(s, false); /* the server's messages are its own affair */
    s->fn(s->user, ev);
    sched__guard(s, guarded);
}

static void obey(sched *s, command *c)
{
    group *g;
    switch (c->kind) {
    case CMD_SUBMIT:
        sched__group_enqueue(s, c->g);
        if (s->lost) sched__group_cancel(s, c->g, SCHED_ERROR);
        break;
    case CMD_CANCEL:
        if ((g = sched__group_find(s, c->id)) == NULL) break;
        log_debug("sched", "id=%s group=%llu cancelled reason=%d ended=%d of=%d", g->label,
                  (unsigned long long)g->id, (int)c->why, g->n_ended, g->n_seqs);
        sched__group_cancel(s, g, SCHED_ABORT);
        break;
    case CMD_DEBUG:
        c->result = debug(s, c);
        publish(s);
        pthread_mutex_lock(&s->box.lock);
        c->done = true;
        pthread_cond_broadcast(&s->box.answered);
        pthread_mutex_unlock(&s->box.lock);
        return;
    }
    ltd_free(c);
}

static bool take_commands(sched *s)
{
    pthread_mutex_lock(&s->box.lock);
    command *c = s->box.head;
    s->box.head = NULL;
    s->box.tail = &s->box.head;
    bool any = c != NULL;
    if (any) s->box.stats.idle = false; /* until it is known what came of them */
    pthread_mutex_unlock(&s->box.lock);
    for (command *next; c; c = next) {
        next = c->next;
        obey(s, c);
    }
    return any;
}

/* The model is lost: everybody learns it, nothing is launched any more. */
static void fault(sched *s)
{
    s->lost = true;
    pthread_mutex_lock(&s->box.lock);
    s->box.faulted = true;
    pthread_mutex_unlock(&s->box.lock);
    log_error("sched", "engine fault: running=%d; every request ends with an error", s->n_running);
    while (s->applied < s->launched) { /* their results mean nothing; the sequences are free of them */
        step *st = &s->steps[++s->applied % MODEL_STEPS_IN_FLIGHT];
        for (int32_t i = 0; i < st->n_entries; i++) st->entries[i].q->in_flight--;
    }
    for (seq *q = s->running, *next; q; q = next) { /* those that had ended and waited for a step */
        next = q->next;
        group *g = q->g;
        q->poisoned = true;
        if (q->finish == SCHED_RUNNING) continue;
        sched__seq_release(s, q);
        sched__group_reap(s, g);
    }
    sched__cancel_all(s, SCHED_ERROR);
    sched__dups_give(s);
}

/* Waits for the oldest step in flight.  Its result is applied by the next turn, which has the time of then. */
static void await(sched *s)
{
    ltd_status st = model_wait(s->m, &s->due);
    if (st != LTD_OK) s->due.status = LTD_DEVICE;
    s->has_due = true;
}

/* Applies the oldest result if it is there. */
static bool apply_one(sched *s)
{
    if (s->lost || s->applied == s->launched) return false;
    if (!s->has_due && !model_done(s->m)) return false;
    if (!s->has_due) await(s);
    s->has_due = false;
    if (s->due.status != LTD_OK) {
        fault(s);
        return true;
    }
    sched__guard(s, true);
    sched__apply(s, &s->due);
    sched__guard(s, false);
    return true;
}

static void after_step(sched *s)
{
    ltd_err err;
    publish(s);
    if (s->o.check_every_step && sched__check(s, &err) != LTD_OK)
        LTD_CHECK(false, "step=%lld: %s", (long long)s->launched, err.text);
}

static bool launch_next(sched *s)
{
    sched__admit(s);
    sched__guard(s, true);
    ltd_status st = LTD_AGAIN;
    if (sched__plan(s)) {
        st = model_launch(s->m, s->plan);
        LTD_CHECK(st == LTD_OK || st == LTD_DEVICE, "step=%lld: launch: %s", (long long)s->plan->step,
                  ltd_status_name(st));
        if (st == LTD_OK) sched__launched(s);
    }
    sched__guard(s, false);
    if (st == LTD_DEVICE) fault(s);
    return st != LTD_AGAIN;
}

ltd_status sched_step(sched *s, int64_t now_us, int64_t *wake_us)
{
    s->now_us = now_us;
    *wake_us = 0;
    bool did = take_commands(s);
    if (s->lost) {
        if (did) publish(s);
        return LTD_DEVICE;
    }
    sched__expire(s);
    while (apply_one(s)) did = true;
    bool asleep = s->sleep_until_us > now_us;
    if (!s->lost && !asleep && s->launched - s->applied < (s->o.overlap ? MODEL_STEPS_IN_FLIGHT : 1) &&
        launch_next(s))
        did = true;
    if (!s->lost && !did && !asleep && s->launched > s->applied) {
        await(s);
        did = true;
    }
    after_step(s);
    if (s->lost) return LTD_DEVICE;
    if (did) return LTD_OK;
    *wake_us = s->n_timers ? s->timers[0]->due_us : 0;
    /* only sleep or a refused take leaves work behind */
    int64_t soon = asleep ? s->sleep_until_us : s->running || s->queue_head ? now_us + 1000 : 0;
    if (soon && (!*wake_us || soon < *wake_us)) *wake_us = soon;
    return LTD_AGAIN;
}

/* ---------------------------------------------------------------- the thread */

/* Sleeps until a command comes or wake_us (0 = never); true once it is time to stop. */
static bool engine_wait(sched *s, int64_t wake_us)
{
    pthread_mutex_lock(&s->box.lock);
    struct timespec until = {.tv_sec = wake_us / 1000000, .tv_nsec = wake_us % 1000000 * 1000};
    while (!s->box.head && !s->box.stop) {
        if (!wake_us)
            pthread_cond_wait(&s->box.arrived, &s->box.lock);
        else if (pthread_cond_timedwait(&s->box.arrived, &s->box.lock, &until) != 0)
            break;
    }
    bool stop = s->box.stop;
    pthread_mutex_unlock(&s->box.lock);
    return stop;
}

static bool told_to_stop(sched *s)
{
    pthread_mutex_lock(&s->box.lock);
    bool stop = s->box.stop;
    pthread_mutex_unlock(&s->box.lock);
    return stop;
}

/* Ends what is left; afterwards no command is taken any more. */
static void wind_up(sched *s)
{
    for (bool ended = false; !ended;) {
        take_commands(s);
        sched__cancel_all(s, SCHED_ABORT);
        while (!s->lost && s->applied < s->launched) {
            if (!s->has_due) await(s);
            apply_one(s);
        }
        publish(s);
        pthread_mutex_lock(&s->box.lock);
        ended = s->box.ended = !s->box.head;
        pthread_mutex_unlock(&s->box.lock);
    }
}

static void *engine_main(void *arg)
{
    sched *s = arg;
    int64_t wake_us;
    for (bool stop = false; !stop;) {
        ltd_status st = sched_step(s, ltd_now_us(), &wake_us);
        stop = st == LTD_OK ? told_to_stop(s) : engine_wait(s, wake_us);
    }
    wind_up(s);
    return NULL;
}

ltd_status sched_start(sched *s)
{
    publish(s);
    s->box.running = true;
    if (pthread_create(&s->thread, NULL, engine_main, s) == 0) return LTD_OK;
    s->box.running = false;
    return LTD_NO_MEMORY;
}

void sched_drain(sched *s)
{
    pthread_mutex_lock(&s->box.lock);
    s->box.draining = true;
    pthread_mutex_unlock(&s->box.lock);
}

void sched_stop(sched *s)
{
    pthread_mutex_lock(&s->box.lock);
    bool running = s->box.running;
    s->box.stop = true;
    pthread_cond_signal(&s->box.arrived);
    pthread_mutex_unlock(&s->box.lock);
    if (!running) { /* never started, or stopped before: the caller is the engine */
        wind_up(s);
        return;
    }
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&s->box.lock);
    s->box.running = false;
    pthread_mutex_unlock(&s->box.lock);
}
