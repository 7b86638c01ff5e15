/* ranks.c - the thread that runs steps, so that the engine plans step n+1 while step n runs.
 * Steps go through a ring of inbox slots in order:  waited <= ran <= launched <= waited + MODEL_STEPS_IN_FLIGHT.
 * A slot holds a copy of its plan and the arrays of its result, so nothing of the caller's is touched after launch. */
#include <pthread.h>
#include <string.h>

#include "model/ranks.h"

typedef struct slot {
    model_plan *plan;
    fwd_out out;
    ltd_status status;
    int64_t device_us;
} slot;

/* One slot more than may be in flight: a result stays readable until the second next launch. */
enum { RING = MODEL_STEPS_IN_FLIGHT + 1 };

struct ranks {
    fwd *f;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int64_t launched, ran, waited; /* counts of steps; under lock */
    bool stop;
    bool lost; /* the device failed: steps after it are not run */
    slot ring[RING];
};

static void run_one(ranks *r, slot *s)
{
    int64_t t0 = ltd_now_us();
    s->status = r->lost ? LTD_DEVICE : fwd_run(r->f, s->plan, &s->out);
    s->device_us = ltd_now_us() - t0;
    if (s->status == LTD_OK || r->lost) return;
    log_error("model", "step=%lld rows=%d status=%s: the forward pass failed; no further step will run",
              (long long)s->plan->step, s->plan->n_rows, ltd_status_name(s->status));
    s->status = LTD_DEVICE;
    r->lost = true;
}

static void *rank_main(void *arg)
{
    ranks *r = arg;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        while (r->ran == r->launched && !r->stop) pthread_cond_wait(&r->work, &r->lock);
        if (r->ran == r->launched) break;
        slot *s = &r->ring[r->ran % RING];
        pthread_mutex_unlock(&r->lock);
        run_one(r, s);
        pthread_mutex_lock(&r->lock);
        r->ran++;
        pthread_cond_signal(&r->done);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

ltd_status ranks_create(fwd *f, ranks **out, ltd_err *err)
{
    ranks *r = ltd_calloc(1, sizeof *r);
    size_t n = (size_t)f->limits.max_samples;
    r->f = f;
    for (int i = 0; i < RING; i++) {
        slot *s = &r->ring[i];
        s->plan = model_plan_create(&f->limits);
        s->out.tokens = ltd_calloc(n, 4);
        s->out.logprobs = ltd_calloc(n, 4);
        s->out.top_ids = ltd_calloc(n * KERN_MAX_TOP_LOGPROBS, 4);
        s->out.top_logprobs = ltd_calloc(n * KERN_MAX_TOP_LOGPROBS, 4);
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->done, NULL);
    if (pthread_create(&r->thread, NULL, rank_main, r) != 0) {
        r->thread = pthread_self();
        ranks_destroy(r);
        return ltd_fail(err, LTD_NO_MEMORY,
                        "cannot start the model's thread: the limit on processes (ulimit -u) is reached");
    }
    *out = r;
    return LTD_OK;
}

void ranks_destroy(ranks *r)
{
    if (!r) return;
    if (!pthread_equal(r->thread, pthread_self())) {
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        pthread_cond_signal(&r->work);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    for (int i = 0; i < RING; i++) {
        slot *s = &r->ring[i];
        ltd_free(s->plan);
        ltd_free(s->out.tokens);
        ltd_free(s->out.logprobs);
        ltd_free(s->out.top_ids);
        ltd_free(s->out.top_logprobs);
    }
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->done);
    pthread_mutex_destroy(&r->lock);
    ltd_free(r);
}

/* Copies what is there, not what there is room for: a decode step's plan is a few kilobytes. */
static void copy_plan(model_plan *to, const model_plan *from)
{
    LTD_CHECK(to->bytes == from->bytes && to->cap_rows == from->cap_rows &&
                  to->cap_edit_slots == from->cap_edit_slots,
              "plan of other limits: %d bytes, want %d", from->bytes, to->bytes);
    size_t n = (size_t)from->n_rows;
    *to = *from;
    memcpy(plan_tokens(to), plan_tokens(from), 4 * n);
    memcpy(plan_pos(to), plan_pos(from), 4 * n);
    memcpy(plan_slots(to), plan_slots(from), 4 * n);
    memcpy(plan_req(to), plan_req(from), 4 * n);
    memcpy(plan_segments(to), plan_segments(from), sizeof(plan_segment) * (size_t)from->n_segments);
    memcpy(plan_samples(to), plan_samples(from), sizeof(plan_sample) * (size_t)from->n_samples);
    memcpy(plan_edits(to), plan_edits(from), sizeof(pool_req_edit) * (size_t)from->n_edits);
    memcpy(plan_edit_slots(to), plan_edit_slots(from), 4 * (size_t)from->n_edit_slots);
}

ltd_status ranks_launch(ranks *r, const model_plan *p)
{
    pthread_mutex_lock(&r->lock);
    bool full = r->launched - r->waited >= MODEL_STEPS_IN_FLIGHT;
    pthread_mutex_unlock(&r->lock);
    if (full) return LTD_FULL;
    copy_plan(r->ring[r->launched % RING].plan, p); /* launched moves on this thread only: the slot is ours */
    pthread_mutex_lock(&r->lock);
    r->launched++;
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    return LTD_OK;
}

ltd_status ranks_wait(ranks *r, model_result *out)
{
    pthread_mutex_lock(&r->lock);
    if (r->waited == r->launched) {
        pthread_mutex_unlock(&r->lock);
        return LTD_NOT_FOUND;
    }
    while (r->ran == r->waited) pthread_cond_wait(&r->done, &r->lock);
    const slot *s = &r->ring[r->waited % RING];
    r->waited++;
    pthread_mutex_unlock(&r->lock);
    *out = (model_result){.step = s->plan->step,
                          .status = s->status,
                          .n_samples = s->plan->n_samples,
                          .tokens = s->out.tokens,
                          .logprobs = s->out.logprobs,
                          .top_ids = s->out.top_ids,
                          .top_logprobs = s->out.top_logprobs,
                          .device_us = s->device_us};
    return LTD_OK;
}

bool ranks_done(ranks *r)
{
    pthread_mutex_lock(&r->lock);
    bool done = r->ran > r->waited;
    pthread_mutex_unlock(&r->lock);
    return done;
}
