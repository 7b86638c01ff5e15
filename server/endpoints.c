/* endpoints.c - the table of paths, and the small answers. */
#include <string.h>

#include "server/server_private.h"

static ltd_buf *answer_json(srv_req *req)
{
    req->ans.status = 200;
    req->state = SRV_ANSWER;
    return &req->ans.body;
}

/* ---------------------------------------------------------------- state */

static void live(srv_req *req) { ltd_buf_str(answer_json(req), "{\"status\":\"ok\"}"); }

static void ready(srv_req *req)
{
    srv_error e;
    srv__check_fault(req->s);
    if (srv__check_ready(req->s, &e) == LTD_OK)
        ltd_buf_str(answer_json(req), "{\"status\":\"ok\"}");
    else
        srv__req_error(req, &e);
}

static void version(srv_req *req)
{
    ltd_buf *out = answer_json(req);
    ltd_buf_str(out, "{\"version\":");
    ltd_buf_json_str(out, ltd_version, strlen(ltd_version));
    ltd_buf_str(out, ",\"build\":");
    ltd_buf_json_str(out, ltd_build_id, strlen(ltd_build_id));
    ltd_buf_str(out, "}");
}

/* ---------------------------------------------------------------- models */

static void card(const srv *s, const char *name, ltd_buf *out)
{
    const char *root = s->o->model ? s->o->model : name;
    ltd_buf_str(out, "{\"id\":");
    ltd_buf_json_str(out, name, strlen(name));
    ltd_buf_fmt(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"latentd\",\"root\":",
                (long long)s->created);
    ltd_buf_json_str(out, root, strlen(root));
    ltd_buf_fmt(out, ",\"max_model_len\":%d}", s->c.info->context_length);
}

static void models(srv_req *req)
{
    const srv *s = req->s;
    ltd_buf *out = answer_json(req);
    ltd_buf_str(out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < s->o->n_served_names; i++) {
        if (i) ltd_buf_str(out, ",");
        card(s, s->o->served_names[i], out);
    }
    ltd_buf_str(out, "]}");
}

static void one_model(srv_req *req)
{
    const srv *s = req->s;
    srv_error e;
    for (int i = 0; i < s->o->n_served_names; i++) {
        if (strcmp(s->o->served_names[i], req->tail)) continue;
        card(s, s->o->served_names[i], answer_json(req));
        return;
    }
    srv__error(&e, 404, "model", "model_not_found", "The model '%.*s' does not exist; this server has '%s'",
               (int)srv__utf8_cut(req->tail, strlen(req->tail), 200), req->tail, s->o->served_names[0]);
    srv__req_error(req, &e);
}

/* ---------------------------------------------------------------- tokenising */

static void tokenized(srv_job *job)
{
    srv_req *req = job->req;
    if (job->st != LTD_OK) {
        srv__req_error(req, &job->error);
        return;
    }
    *answer_json(req) = job->out;
    job->out = (ltd_buf){0};
    srv__req_wake(req);
}

static void run_tokenize(srv_job *job)
{
    job->st = srv__tokenize(&job->s->c, job->body.data ? job->body.data : "", job->body.len, &job->out,
                            &job->error);
}
static void run_detokenize(srv_job *job)
{
    job->st = srv__detokenize(&job->s->c, job->body.data ? job->body.data : "", job->body.len, &job->out,
                              &job->error);
}
static void tokenize(srv_req *req) { srv__job_start(req, run_tokenize, tokenized, 0); }
static void detokenize(srv_req *req) { srv__job_start(req, run_detokenize, tokenized, 0); }

static void chat(srv_req *req)
{
    srv_error e;
    srv__error(&e, 404, NULL, "unsupported_endpoint",
               "/v1/chat/completions is not served yet; use /v1/completions");
    srv__req_error(req, &e);
}

/* ---------------------------------------------------------------- the table */

#define GET "GET, HEAD"
#define ANY "GET, HEAD, POST"
const srv_route srv__routes[] = {
    {"/v1/completions", false, "POST", true, false, srv__completions},
    {"/v1/chat/completions", false, "POST", false, false, chat},
    {"/v1/models", false, GET, true, false, models},
    {"/v1/models/", true, GET, true, false, one_model},
    {"/tokenize", false, "POST", true, false, tokenize},
    {"/v1/tokenize", false, "POST", true, false, tokenize},
    {"/detokenize", false, "POST", true, false, detokenize},
    {"/v1/detokenize", false, "POST", true, false, detokenize},
    {"/live", false, GET, false, false, live},
    {"/health", false, GET, false, false, ready},
    {"/ready", false, GET, false, false, ready},
    {"/version", false, GET, false, false, version},
    {"/debug/check", false, ANY, true, true, srv__debug_check},
    {"/debug/dump", false, ANY, true, true, srv__debug_dump},
    {"/debug/flush", false, ANY, true, true, srv__debug_flush},
    {"/debug/sleep", false, ANY, true, true, srv__debug_sleep},
    {"/debug/fail_take", false, ANY, true, true, srv__debug_fail_take},
    {"/debug/stats", false, ANY, false, true, srv__debug_stats},
    {0},
};
