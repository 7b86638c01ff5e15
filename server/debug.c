/* debug.c - /debug: looking inside and provoking faults, for tests and for whoever debugs a running daemon
 * (--debug-endpoints). The engine answers between two of its steps; a thread of the pool waits for it, never
 * the loop. */
#include <stdlib.h>
#include <string.h>

#include "server/server_private.h"

static void answered(srv_job *job)
{
    srv_req *req = job->req;
    if (job->st != LTD_OK) {
        srv_error e;
        srv__error(&e, 500, NULL, "check_failed", "%s: %.900s", ltd_status_text(job->st),
                   job->out.data ? job->out.data : "");
        srv__req_error(req, &e);
        return;
    }
    req->ans.status = 200;
    req->ans.content_type = "text/plain; charset=utf-8";
    req->ans.body = job->out;
    if (!req->ans.body.len) ltd_buf_str(&req->ans.body, "ok\n");
    job->out = (ltd_buf){0};
    req->state = SRV_ANSWER;
    srv__req_wake(req);
}

static void run_check(srv_job *job)
{
    job->st = sched_debug(job->s->sched, SCHED_DEBUG_CHECK, job->arg, &job->out);
}
static void run_dump(srv_job *job)
{
    job->st = sched_debug(job->s->sched, SCHED_DEBUG_DUMP, job->arg, &job->out);
}
static void run_flush(srv_job *job)
{
    job->st = sched_debug(job->s->sched, SCHED_DEBUG_FLUSH, job->arg, &job->out);
}
static void run_sleep(srv_job *job)
{
    job->st = sched_debug(job->s->sched, SCHED_DEBUG_SLEEP, job->arg, &job->out);
}
static void run_fail_take(srv_job *job)
{
    job->st = sched_debug(job->s->sched, SCHED_DEBUG_FAIL_TAKE, job->arg, &job->out);
}

static int64_t argument(const srv_req *req, const char *name, int64_t lo, int64_t hi)
{
    const char *v = MHD_lookup_connection_value(req->mhd, MHD_GET_ARGUMENT_KIND, name);
    int64_t n = v ? strtoll(v, NULL, 10) : lo;
    return n < lo ? lo : n > hi ? hi : n;
}

void srv__debug_check(srv_req *req) { srv__job_start(req, run_check, answered, 0); }
void srv__debug_dump(srv_req *req) { srv__job_start(req, run_dump, answered, 0); }
void srv__debug_flush(srv_req *req) { srv__job_start(req, run_flush, answered, 0); }
void srv__debug_sleep(srv_req *req)
{
    srv__job_start(req, run_sleep, answered, argument(req, "ms", 0, 60000));
}
void srv__debug_fail_take(srv_req *req)
{
    srv__job_start(req, run_fail_take, answered, argument(req, "n", 1, 1000000000));
}

void srv__debug_stats(srv_req *req)
{
    const srv *s = req->s;
    ltd_buf *out = &req->ans.body;
    sched_stats st = {0};
    if (s->sched) sched_get_stats(s->sched, &st);
    ltd_buf_fmt(out,
                "{\"phase\":\"%s\",\"running\":%d,\"waiting\":%d,\"slots_total\":%d,\"slots_free\":%d,"
                "\"slots_cached\":%d,\"slots_locked\":%d,",
                srv__phase_name(s), st.running, st.waiting, st.slots_total, st.slots_free, st.slots_cached,
                st.slots_locked);
    ltd_buf_fmt(out,
                "\"steps\":%lld,\"absorbed_rows\":%lld,\"prompt_rows\":%lld,\"prompt_tokens\":%lld,\"cached_"
                "tokens\":%lld,\"generated_tokens\":%lld,",
                (long long)st.steps, (long long)st.absorbed_rows, (long long)st.prompt_rows,
                (long long)st.prompt_tokens, (long long)st.cached_tokens, (long long)st.generated_tokens);
    ltd_buf_fmt(
        out, "\"groups\":%lld,\"finished\":{\"stop\":%lld,\"length\":%lld,\"abort\":%lld,\"error\":%lld},",
        (long long)st.requests, (long long)st.finished[SCHED_STOP], (long long)st.finished[SCHED_LENGTH],
        (long long)st.finished[SCHED_ABORT], (long long)st.finished[SCHED_ERROR]);
    ltd_buf_fmt(out, "\"wasted_rows\":%lld,\"double_gives\":%lld,\"faulted\":%s,\"idle\":%s,",
                (long long)st.wasted_rows, (long long)st.double_gives, st.faulted ? "true" : "false",
                st.idle ? "true" : "false");
    ltd_buf_fmt(out, "\"connections\":%d,\"active\":%d,\"suspended\":%d,\"jobs\":%d,\"body_bytes\":%zu,",
                s->n_conns, s->n_active, s->n_suspended, s->n_jobs, s->body_bytes);
    ltd_buf_fmt(out,
                "\"requests\":%lld,\"left\":%lld,\"slow_readers\":%lld,\"messages\":%lld,\"runs\":%lld,\"log_"
                "dropped\":%lld}",
                (long long)s->n_requests, (long long)s->n_left, (long long)s->n_slow_readers,
                (long long)s->n_messages, (long long)s->n_runs, (long long)log_dropped());
    req->ans.status = 200;
    req->state = SRV_ANSWER;
}
