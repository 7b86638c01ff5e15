/* jobs.c - work on libuv's pool: parsing, tokenising, waiting for the engine's debug answers.
 * A job owns what it works on, so that the request (and its client) may leave at any time.  Jobs over
 * SRV_LARGE_JOB_BYTES take at most half of the threads and wait their turn in a list here; what waits is
 * bounded by the bodies that may be in memory at once. */
#include "server/server_private.h"

static void pool_run(uv_work_t *w)
{
    srv_job *job = w->data;
    job->run(job);
}

static void job_free(srv_job *job)
{
    srv *s = job->s;
    s->body_bytes -= job->held;
    s->n_jobs--;
    srv__call_destroy(job->call);
    ltd_buf_deinit(&job->body);
    ltd_buf_deinit(&job->out);
    ltd_free(job);
}

static void start(srv_job *job);

static void start_waiting(srv *s)
{
    while (s->large_head && s->large_running < SRV_MAX_LARGE_JOBS) {
        srv_job *job = s->large_head;
        s->large_head = job->next;
        if (!s->large_head) s->large_tail = &s->large_head;
        start(job);
    }
}

static void pool_done(uv_work_t *w, int status)
{
    srv_job *job = w->data;
    srv *s = job->s;
    if (job->large) s->large_running--;
    if (job->req) {
        job->req->job = NULL;
        if (status == 0) job->done(job);
    }
    job_free(job);
    start_waiting(s);
}

static void start(srv_job *job)
{
    job->started = true;
    if (job->large) job->s->large_running++;
    int rc = uv_queue_work(&job->s->loop, &job->work, pool_run, pool_done);
    LTD_CHECK(rc == 0, "uv_queue_work: %s", uv_strerror(rc));
}

void srv__job_start(srv_req *req, void (*run)(srv_job *), void (*done)(srv_job *), int64_t arg)
{
    srv *s = req->s;
    srv_job *job = ltd_calloc(1, sizeof *job);
    job->s = s;
    job->req = req;
    job->run = run;
    job->done = done;
    job->arg = arg;
    job->work.data = job;
    job->body = req->body;
    job->held = req->body_held;
    req->body = (ltd_buf){0};
    req->body_held = 0;
    req->job = job;
    req->state = SRV_POOL;
    s->n_jobs++;
    job->large = job->body.len > SRV_LARGE_JOB_BYTES;
    if (job->large && s->large_running >= SRV_MAX_LARGE_JOBS) {
        *s->large_tail = job;
        s->large_tail = &job->next;
        return;
    }
    start(job);
}

void srv__job_leave(srv_job *job)
{
    srv *s = job->s;
    job->req = NULL;
    if (job->started) {
        uv_cancel((uv_req_t *)&job->work); /* refused if it runs already: pool_done comes either way */
        return;
    }
    for (srv_job **at = &s->large_head; *at; at = &(*at)->next) {
        if (*at != job) continue;
        *at = job->next;
        if (s->large_tail == &job->next) s->large_tail = at;
        break;
    }
    job_free(job);
}
