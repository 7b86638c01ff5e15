/* http.c - libmicrohttpd's callbacks: connections, requests, limits.
 * The rules behind it were measured (server-contracts.md): an answer cannot be queued in mid-body, so early
 * refusals drop the body first unless its declared length is over the limit; a suspended connection is not
 * watched by libmicrohttpd, so each has a uv_poll of its own for its whole life; syntax that libmicrohttpd
 * lets through (two Content-Lengths, no Host) is refused here. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "server/server_private.h"

enum {
    USER_TIMEOUT_MS = 30000,
    LEFT_MS = 400,
    BODY_BYTES_PER_MS = 1,      /* a body that comes slower than 1 KB/s after --header-timeout is cut off */
    BUFFERED_ANSWER = 64 << 10, /* answers up to here are made whole and have a Content-Length */
    OUT_KEPT = 256 << 10,
};

/* ---------------------------------------------------------------- connections */

static void conn_free(uv_handle_t *h) { ltd_free(h->data); }

/* libmicrohttpd (0.9.75, edge-triggered) does not see an end that came together with data: what it still has
 * to do for a client that left gets a moment, then the tick closes the connection. */
static void linger(srv_conn *conn) { conn->deadline_ms = (int64_t)uv_now(&conn->s->loop) + LEFT_MS; }

static void on_conn_poll(uv_poll_t *p, int status, int events)
{
    srv_conn *conn = p->data;
    if (status >= 0 && !(events & UV_DISCONNECT)) return;
    uv_poll_stop(p); /* level-triggered: once is enough */
    conn->left = true;
    linger(conn);
    if (conn->req) srv__req_leave(conn->req);
}

static bool is_local(const struct sockaddr *a)
{
    if (!a) return false;
    if (a->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    if (a->sa_family != AF_INET6) return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

/* What MHD_get_connection_info points to is overwritten by the next call (1.0). */
static int fd_of(struct MHD_Connection *c)
{
    return MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

static void conn_started(srv *s, struct MHD_Connection *c, void **ctx)
{
    srv_conn *conn = ltd_calloc(1, sizeof *conn);
    int on = 1, buffer = SRV_SNDBUF_BYTES, ms = USER_TIMEOUT_MS;
    conn->s = s;
    conn->fd = fd_of(c);
    conn->local = is_local(MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr);
    conn->over_limit = s->n_conns >= s->o->max_connections;
    conn->deadline_ms =
        s->o->header_timeout_s ? (int64_t)uv_now(&s->loop) + s->o->header_timeout_s * 1000 : 0;
    conn->poll.data = conn;
    setsockopt(conn->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(conn->fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    setsockopt(conn->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    conn->polling = uv_poll_init(&s->loop, &conn->poll, conn->fd) == 0;
    if (conn->polling) uv_poll_start(&conn->poll, UV_DISCONNECT, on_conn_poll);
    conn->next = s->conns;
    if (s->conns) s->conns->prev = conn;
    s->conns = conn;
    s->n_conns++;
    *ctx = conn;
}

static void conn_closed(srv *s, srv_conn *conn)
{
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        s->conns = conn->next;
    if (conn->next) conn->next->prev = conn->prev;
    s->n_conns--;
    if (!conn->polling) {
        ltd_free(conn);
        return;
    }
    uv_poll_stop(&conn->poll);
    uv_close((uv_handle_t *)&conn->poll, conn_free);
}

void srv__http_notify_conn(void *cls, struct MHD_Connection *c, void **ctx,
                           enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        conn_started(cls, c, ctx);
    else if (*ctx)
        conn_closed(cls, *ctx);
}

static srv_conn *conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info->socket_context;
}

/* The request line is there: its head may take --header-timeout from now. */
void *srv__http_uri(void *cls, const char *uri, struct MHD_Connection *c)
{
    srv *s = cls;
    srv_conn *conn = conn_of(c);
    (void)uri;
    if (conn && s->o->header_timeout_s && !conn->left)
        conn->deadline_ms = (int64_t)uv_now(&s->loop) + s->o->header_timeout_s * 1000;
    return NULL;
}

/* ---------------------------------------------------------------- suspending and waking */

static void suspend(srv_req *req)
{
    LTD_CHECK(!req->suspended, "id=%s suspended twice", req->own_id);
    req->suspended = true;
    req->s->n_suspended++;
    MHD_suspend_connection(req->mhd);
}

void srv__req_wake(srv_req *req)
{
    if (!req->suspended) return;
    req->suspended = false;
    req->s->n_suspended--;
    req->s->need_run = true;
    MHD_resume_connection(req->mhd);
}

/* Only a request that waits or streams is given up here; any other's end libmicrohttpd sees itself (and its
 * own shutdown of the reading side after an early answer looks just like a client that left). */
void srv__req_leave(srv_req *req)
{
    bool streams = req->state == SRV_SENDING && req->gen;
    if (req->gone ||
        (req->state != SRV_POOL && req->state != SRV_ENGINE && req->state != SRV_GENERATED && !streams))
        return;
    req->gone = true;
    req->s->n_left++;
    if (req->job) srv__job_leave(req->job);
    req->job = NULL;
    srv__completions_leave(req, SCHED_CANCEL_CLIENT);
    srv__req_wake(req);
}

void srv__req_error(srv_req *req, const srv_error *e)
{
    srv__answer_error(&req->ans, e);
    req->state = SRV_ANSWER;
    srv__req_wake(req);
}

/* ---------------------------------------------------------------- queueing answers */

static enum MHD_Result queue(srv_req *req, int status, struct MHD_Response *r, const char *type, bool close)
{
    char retry[16];
    const srv_answer *a = &req->ans;
    if (!r) return MHD_NO;
    req->status = status;
    req->state = SRV_SENDING;
    if (req->s->phase >= SRV_DRAINING) close = true;
    MHD_add_response_header(r, "Content-Type", type ? type : "application/json");
    MHD_add_response_header(r, "X-Request-Id", req->label);
    if (a->allow) MHD_add_response_header(r, "Allow", a->allow);
    if (close) MHD_add_response_header(r, "Connection", "close");
    if (a->retry_after_s) {
        snprintf(retry, sizeof retry, "%d", a->retry_after_s);
        MHD_add_response_header(r, "Retry-After", retry);
    }
    enum MHD_Result ok = MHD_queue_response(req->mhd, (unsigned)status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result queue_answer(srv_req *req)
{
    srv_answer *a = &req->ans;
    size_t n = a->body.len;
    char *data = a->body.data; /* libmicrohttpd's from here */
    a->body = (ltd_buf){0};
    return queue(req, a->status, MHD_create_response_from_buffer_with_free_callback(n, data, ltd_free),
                 a->content_type, a->close);
}

static bool fill(srv_gen *g, size_t want)
{
    return g->call->stream ? srv__sse_fill(g, &g->out, want) : srv__respond_fill(g, &g->out, want);
}

/* The content reader.  Nothing to say means suspended: a bare 0 would spin. */
static ssize_t gen_read(void *cls, uint64_t pos, char *buf, size_t max)
{
    srv_req *req = cls;
    srv_gen *g = req->gen;
    bool done = false;
    (void)pos;
    if (req->gone) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (g->out_at == g->out.len) {
        if (g->out.cap > OUT_KEPT) ltd_buf_deinit(&g->out);
        ltd_buf_clear(&g->out);
        g->out_at = 0;
        done = fill(g, max);
    }
    size_t n = g->out.len - g->out_at;
    if (n > max) n = max;
    if (n) {
        memcpy(buf, g->out.data + g->out_at, n);
        g->out_at += n;
        req->last_sent_ms = (int64_t)uv_now(&req->s->loop);
        return (ssize_t)n;
    }
    if (done) return MHD_CONTENT_READER_END_OF_STREAM;
    suspend(req);
    return 0;
}

static enum MHD_Result queue_gen(srv_req *req)
{
    srv_gen *g = req->gen;
    if (!g->call->stream && fill(g, BUFFERED_ANSWER)) {
        req->ans.status = 200;
        req->ans.body = g->out;
        g->out = (ltd_buf){0};
        return queue_answer(req);
    }
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, gen_read, req, NULL);
    if (r && g->call->stream) MHD_add_response_header(r, "Cache-Control", "no-cache");
    return queue(req, 200, r, g->call->stream ? "text/event-stream" : NULL, false);
}

/* ---------------------------------------------------------------- a request's head */

typedef struct head {
    int n_length, n_coding, n_host;
    const char *type, *id;
    int64_t length; /* -1: none declared */
    bool bad_length;
} head;

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    head *h = cls;
    (void)kind;
    if (!value) value = "";
    if (!strcasecmp(key, "Content-Length")) {
        h->n_length++;
        h->length = 0;
        for (const char *p = value; *p; p++) {
            if (*p < '0' || *p > '9') h->bad_length = true;
            if (h->length < INT64_MAX / 10 - 9) h->length = 10 * h->length + (*p - '0');
        }
    } else if (!strcasecmp(key, "Transfer-Encoding")) {
        h->n_coding++;
    } else if (!strcasecmp(key, "Host")) {
        h->n_host++;
    } else if (!strcasecmp(key, "Content-Type")) {
        h->type = value;
    } else if (!strcasecmp(key, "X-Request-Id")) {
        h->id = value;
    }
    return MHD_YES;
}

static bool is_json(const char *type)
{
    static const char json[] = "application/json";
    size_t n = sizeof json - 1;
    if (strncasecmp(type, json, n)) return false;
    type += n;
    while (*type == ' ' || *type == '\t') type++;
    return !*type || *type == ';';
}

/* A client's id is taken as it is, if it can stand in a header and a log line. */
static void take_label(srv_req *req, const char *id)
{
    size_t n = id ? strlen(id) : 0;
    bool ok = n >= 1 && n <= SRV_MAX_LABEL;
    for (size_t i = 0; ok && i < n; i++) ok = id[i] > 0x20 && id[i] < 0x7F;
    snprintf(req->label, sizeof req->label, "%s", ok ? id : req->own_id);
}

static const srv_route *find_route(srv_req *req, const char *url)
{
    for (const srv_route *r = srv__routes; r->path; r++) {
        size_t n = strlen(r->path);
        bool hidden = r->debug && (req->s->o->debug_endpoints == OPT_DEBUG_NO ||
                                   (req->s->o->debug_endpoints == OPT_DEBUG_LOCAL && !req->conn->local));
        if (hidden || strncmp(url, r->path, n)) continue;
        if (!r->prefix && !url[n]) return r;
        if (!r->prefix || !url[n]) continue;
        req->tail = ltd_strdup(url + n);
        return r;
    }
    return NULL;
}

static bool allowed(const srv_route *r, const char *method)
{
    size_t n = strlen(method);
    for (const char *at = r->allow; at; at = strchr(at, ' ')) {
        while (*at == ' ') at++;
        if (!strncmp(at, method, n) && (at[n] == ',' || !at[n])) return true;
    }
    return false;
}

static void refuse(srv_req *req, int status, const char *param, const char *code, const char *message)
{
    srv_error e;
    srv__error(&e, status, param, code, "%s", message);
    srv__answer_error(&req->ans, &e);
    req->drop_body = true;
}

/* Errors that the head alone decides; the body is dropped before they are answered, so that the connection
 * lives on. */
static void route(srv_req *req, const char *url, const char *method, const head *h)
{
    srv_error e;
    const srv_route *r = find_route(req, url);
    if (!r) {
        srv__error(&e, 404, NULL, "unknown_url", "There is nothing at %s", req->path);
        srv__answer_error(&req->ans, &e);
        req->drop_body = true;
        return;
    }
    if (!allowed(r, method)) {
        srv__error(&e, 405, NULL, "method_not_allowed", "%s takes %s, not %s", r->path, r->allow,
                   req->method);
        srv__answer_error(&req->ans, &e);
        req->ans.allow = r->allow;
        req->drop_body = true;
        return;
    }
    if (!strcmp(method, "POST") && h->type && !r->debug && !is_json(h->type)) {
        refuse(req, 415, NULL, "unsupported_media_type", "The content type must be application/json");
        return;
    }
    if (r->needs_model && srv__check_ready(req->s, &e) != LTD_OK) {
        srv__answer_error(&req->ans, &e);
        req->drop_body = true;
        return;
    }
    req->route = r;
}

static enum MHD_Result answer_now(srv_req *req, int status, const char *code, const char *message)
{
    refuse(req, status, NULL, code, message);
    req->ans.close = true;
    if (status == 503) req->ans.retry_after_s = 1;
    return queue_answer(req);
}

static enum MHD_Result begin(srv_req *req, const char *url, const char *method, const char *version)
{
    srv *s = req->s;
    head h = {.length = -1};
    MHD_get_connection_values(req->mhd, MHD_HEADER_KIND, see_header, &h);
    take_label(req, h.id);
    if (s->o->header_timeout_s && !req->conn->left)
        req->conn->deadline_ms = (int64_t)uv_now(&s->loop) + s->o->header_timeout_s * 1000;
    MHD_set_connection_option(req->mhd, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)s->o->write_timeout_s);
    if (req->conn->over_limit)
        return answer_now(req, 503, "overloaded", "The server is full: too many connections");
    if (h.n_length > 1 || h.bad_length)
        return answer_now(req, 400, NULL, "The Content-Length header is malformed or repeated");
    if (h.n_length && h.n_coding)
        return answer_now(req, 400, NULL, "Content-Length and Transfer-Encoding exclude each other");
    if (h.n_host > 1 || (!h.n_host && !strcmp(version, "HTTP/1.1")))
        return answer_now(req, 400, NULL, "Exactly one Host header is needed");
    if (h.length > s->c.max_body_bytes)
        return answer_now(req, 413, "body_too_large", "The body is over the limit (--max-body-bytes)");
    route(req, url, method, &h);
    if (h.length > 0 && !req->drop_body &&
        s->body_bytes + (size_t)h.length <= SRV_BODIES_AT_ONCE * (size_t)s->c.max_body_bytes)
        ltd_buf_reserve(&req->body, (size_t)h.length < (64 << 10) ? (size_t)h.length : 64 << 10);
    return MHD_YES;
}

/* ---------------------------------------------------------------- its body */

static void release_body(srv_req *req)
{
    req->s->body_bytes -= req->body_held;
    req->body_held = 0;
    ltd_buf_deinit(&req->body);
}

static void extend_deadline(srv_req *req, int64_t bytes)
{
    int64_t *at = &req->conn->deadline_ms,
            most = (int64_t)uv_now(&req->s->loop) + req->s->o->header_timeout_s * 1000;
    if (!*at || req->conn->left) return;
    *at += bytes / BODY_BYTES_PER_MS;
    if (*at > most) *at = most;
}

static enum MHD_Result take_body(srv_req *req, const char *data, size_t n)
{
    static const char raw[] =
        "HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nContent-Length: "
        "113\r\nConnection: close\r\n\r\n"
        "{\"error\":{\"message\":\"The body is too "
        "large\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"body_too_large\"}}";
    srv *s = req->s;
    size_t max = (size_t)s->c.max_body_bytes;
    req->body_seen += n;
    extend_deadline(req, (int64_t)n);
    if (req->body_seen > 2 * max) {
        if (send(req->conn->fd, raw, sizeof raw - 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            log_debug("server", "id=%s event=raw_413_lost", req->label);
        req->status = 413;
        return MHD_NO;
    }
    if (req->drop_body) return MHD_YES;
    if (req->body_seen > max) {
        refuse(req, 413, NULL, "body_too_large", "The body is over the limit (--max-body-bytes)");
        release_body(req);
    } else if (s->body_bytes + n > SRV_BODIES_AT_ONCE * max) {
        refuse(req, 503, NULL, "overloaded", "The server is full: too many bodies at once");
        req->ans.retry_after_s = 1;
        release_body(req);
    } else {
        ltd_buf_add(&req->body, data, n);
        req->body_held += n;
        s->body_bytes += n;
    }
    return MHD_YES;
}

/* ---------------------------------------------------------------- the handler */

static srv_req *req_create(srv *s, struct MHD_Connection *c, const char *url, const char *method)
{
    srv_req *req = ltd_calloc(1, sizeof *req);
    req->s = s;
    req->conn = conn_of(c);
    req->mhd = c;
    req->t0_us = ltd_now_us();
    srv__new_id(s, req->own_id);
    snprintf(req->method, sizeof req->method, "%.7s", method);
    snprintf(req->path, sizeof req->path, "%.*s", (int)srv__utf8_cut(url, strlen(url), sizeof req->path - 1),
             url);
    req->conn->req = req;
    req->next = s->reqs;
    if (s->reqs) s->reqs->prev = req;
    s->reqs = req;
    s->n_requests++;
    return req;
}

static void dispatch(srv_req *req)
{
    req->counted = true;
    req->s->n_active++;
    if (!req->conn->left) req->conn->deadline_ms = 0;
    if (req->route && !req->drop_body)
        req->route->fn(req);
    else
        req->state = SRV_ANSWER;
}

enum MHD_Result srv__http_handle(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                                 const char *version, const char *data, size_t *n, void **con_cls)
{
    srv_req *req = *con_cls;
    if (((srv *)cls)->closing) return MHD_NO; /* nothing may be suspended any more */
    if (!req) {
        req = *con_cls = req_create(cls, c, url, method);
        return begin(req, url, method, version);
    }
    if (*n) {
        enum MHD_Result ok = take_body(req, data, *n);
        *n = 0;
        return ok;
    }
    if (req->state == SRV_BODY) dispatch(req);
    if (req->gone || (req->conn->left && req->state == SRV_POOL)) return MHD_NO;
    switch (req->state) {
    case SRV_ANSWER:
        return queue_answer(req);
    case SRV_GENERATED:
        return queue_gen(req);
    case SRV_POOL:
    case SRV_ENGINE:
        suspend(req);
        return MHD_YES;
    case SRV_BODY:
    case SRV_SENDING:
        break;
    }
    return MHD_YES;
}

static void access_log(const srv_req *req, enum MHD_RequestTerminationCode code)
{
    const srv_gen *g = req->gen;
    log_level level = req->s->o->log_requests ? LOG_INFO : LOG_DEBUG;
    char more[160] = "";
    if (!log_enabled(level)) return;
    if (g) {
        int64_t completion = 0;
        for (int32_t i = 0; i < g->n_choices; i++) completion += g->choices[i].completion_tokens;
        snprintf(more, sizeof more,
                 " group=%llu stream=%d choices=%d prompt_tokens=%lld completion_tokens=%lld queued_ms=%.1f "
                 "ttft_ms=%.1f finish=%s",
                 (unsigned long long)g->group, g->call->stream, g->n_choices,
                 (long long)g->call->prompt_tokens, (long long)completion, (double)g->queued_us / 1e3,
                 (double)g->first_token_us / 1e3,
                 g->failed ? "error" : (srv__gen_done(g) ? srv__gen_finish_name(&g->choices[0]) : "none"));
    }
    /* A path is the client's text: only what cannot break the line. */
    char path[sizeof req->path];
    snprintf(path, sizeof path, "%s", req->path);
    for (char *p = path; *p; p++)
        if ((unsigned char)*p <= 0x20 || *p == 0x7F || *p == '"') *p = '?';
    log_write(level, "server", "id=%s event=request method=%s path=%s status=%d end=%s ms=%.1f%s", req->label,
              req->method, path, req->status,
              req->gone                                     ? "client_left"
              : code == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "ok"
                                                            : "cut",
              (double)(ltd_now_us() - req->t0_us) / 1e3, more);
}

void srv__http_completed(void *cls, struct MHD_Connection *c, void **con_cls,
                         enum MHD_RequestTerminationCode code)
{
    srv *s = cls;
    srv_req *req = *con_cls;
    if (!req) return;
    *con_cls = NULL;
    access_log(req, code);
    if (req->suspended) s->n_suspended--;
    if (req->job) srv__job_leave(req->job);
    srv__completions_leave(req, SCHED_CANCEL_CLIENT);
    if (req->counted) s->n_active--;
    if (req->prev)
        req->prev->next = req->next;
    else
        s->reqs = req->next;
    if (req->next) req->next->prev = req->prev;
    req->conn->req = NULL;
    /* The next request's head: idle time, then the header's own. */
    int64_t wait_s =
        s->o->idle_timeout_s && s->o->header_timeout_s ? s->o->idle_timeout_s + s->o->header_timeout_s : 0;
    req->conn->deadline_ms = wait_s ? (int64_t)uv_now(&s->loop) + wait_s * 1000 : 0;
    if (req->conn->left) linger(req->conn);
    if (code == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)s->o->idle_timeout_s);
    release_body(req);
    ltd_buf_deinit(&req->ans.body);
    srv__gen_destroy(req->gen);
    ltd_free(req->tail);
    ltd_free(req);
}

/* ---------------------------------------------------------------- four times a second */

static void ping(srv_req *req, int64_t now)
{
    srv_gen *g = req->gen;
    int64_t every_ms = req->s->o->sse_ping_interval_s * 1000;
    if (!g || !g->call->stream || !every_ms || !req->suspended || now - req->last_sent_ms < every_ms) return;
    if (req->state != SRV_ENGINE && req->state != SRV_SENDING) return;
    if (req->state == SRV_ENGINE)
        req->state = SRV_GENERATED; /* the head goes out with the first frame or the first ping */
    g->ping_due = true;
    req->last_sent_ms = now;
    srv__req_wake(req);
}

void srv__http_tick(srv *s)
{
    int64_t now = (int64_t)uv_now(&s->loop);
    for (srv_req *req = s->reqs; req; req = req->next) ping(req, now);
    for (srv_conn *conn = s->conns; conn; conn = conn->next) {
        if (!conn->deadline_ms || now < conn->deadline_ms) continue;
        conn->deadline_ms = 0;
        log_debug("server", "event=head_timeout fd=%d", conn->fd);
        shutdown(conn->fd, SHUT_RDWR); /* libmicrohttpd then reads the end and closes it */
    }
}
