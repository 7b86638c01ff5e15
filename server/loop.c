/* loop.c - the loop, and the daemon's life from start to end.
 * libmicrohttpd gives one epoll descriptor, which the loop polls like any other.  Callbacks never call
 * MHD_run: they resume what has news and set need_run, and one MHD_run before (prepare) and one after (check)
 * the loop's poll deliver everything of a turn at once. The end: quiesce (no new connections), drain (the
 * engine takes no more), wait for what runs, cancel what is left when --shutdown-timeout is over, resume
 * everything that is suspended, stop libmicrohttpd, join the engine, close the handles. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "server/server_private.h"

enum { CONNECTIONS_TO_REFUSE = 64, CUT_OFF_MS = 1000, FAULT_MS = 1000 };

static void finish(srv *s);

/* ---------------------------------------------------------------- small things */

const char *srv__phase_name(const srv *s)
{
    static const char *const names[] = {"loading", "ready", "draining", "stopping", "faulted"};
    return names[s->phase];
}

ltd_status srv__check_ready(const srv *s, srv_error *e)
{
    switch (s->phase) {
    case SRV_READY:
        return LTD_OK;
    case SRV_LOADING:
        srv__error(e, 503, NULL, "loading", "The model is still loading");
        break;
    case SRV_FAULTED:
        srv__error(e, 503, NULL, "engine_failed", "The engine has failed; the server is about to end");
        break;
    default:
        srv__error(e, 503, NULL, "shutting_down", "The server is shutting down");
    }
    e->retry_after_s = 1;
    return LTD_AGAIN;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

uint64_t srv__random(srv *s) { return mix(s->id_seed[0] ^ mix(s->id_seed[1] + ++s->id_next)); }

void srv__new_id(srv *s, char out[SRV_ID_CHARS + 1])
{
    uint64_t a = srv__random(s), b = srv__random(s);
    snprintf(out, SRV_ID_CHARS + 1, "%016llx%016llx", (unsigned long long)a, (unsigned long long)b);
}

static void draw(void *to, size_t n)
{
    LTD_CHECK(getrandom(to, n, 0) == (ssize_t)n, "no random numbers: %s", strerror(errno));
}

/* Build and checkpoint in one short word. */
static void make_fingerprint(srv *s)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (const char *p = ltd_build_id; *p; p++) h = (h ^ (unsigned char)*p) * 0x100000001b3ull;
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%08x%08x", (unsigned)mix(h),
             (unsigned)mix(s->c.info->fingerprint));
}

/* ---------------------------------------------------------------- the turn */

static void on_mhd_timer(uv_timer_t *t)
{
    srv *s = t->data;
    s->need_run = true;
}

static void turn(srv *s)
{
    if (!s->mhd || !s->need_run) return;
    /* A handler that wakes another request during the run makes a second one due; more than a few would
     * starve the poll. */
    for (int i = 0; s->need_run && i < 4; i++) {
        s->need_run = false;
        MHD_run(s->mhd);
        s->n_runs++;
    }
    unsigned long long ms;
    if (s->need_run)
        uv_timer_start(&s->mhd_timer, on_mhd_timer, 0, 0);
    else if (MHD_get_timeout(s->mhd, &ms) == MHD_YES)
        uv_timer_start(&s->mhd_timer, on_mhd_timer, ms, 0);
    else
        uv_timer_stop(&s->mhd_timer);
    if ((s->phase == SRV_DRAINING || s->phase == SRV_STOPPING) && s->n_active == 0) finish(s);
}

static void on_prepare(uv_prepare_t *h) { turn(h->data); }
static void on_check(uv_check_t *h) { turn(h->data); }

static void on_mhd_poll(uv_poll_t *p, int status, int events)
{
    srv *s = p->data;
    (void)events;
    if (status < 0) log_error("server", "event=poll_failed error=%s", uv_strerror(status));
    s->need_run = true;
}

/* ---------------------------------------------------------------- the engine's side */

static void on_event(void *user, const sched_event *ev)
{
    srv *s = user;
    if (srv__queue_push(s->queue, ev)) uv_async_send(&s->wake);
}

static void on_message(void *user, const srv_msg *m) { srv__completions_event(user, m); }

static void fault(srv *s)
{
    srv_error e;
    s->phase = SRV_FAULTED;
    log_error("server", "event=engine_failed active=%d", s->n_active);
    srv__error(&e, 500, NULL, "engine_failed", "The engine has failed");
    for (srv_req *req = s->reqs; req; req = req->next) {
        if (!req->gen) continue;
        srv__gen_fail(req->gen, &e);
        if (req->state == SRV_ENGINE)
            srv__req_error(req, &req->gen->error);
        else
            srv__req_wake(req);
    }
}

static void on_fault_over(uv_timer_t *t)
{
    srv *s = t->data;
    s->end = SRV_END_FAULT;
    uv_stop(&s->loop);
}

/* The engine's last words and its being lost are two things: whoever says "ready" asks again. */
void srv__check_fault(srv *s)
{
    sched_stats st;
    if (!s->sched || s->phase == SRV_FAULTED || s->closing) return;
    sched_get_stats(s->sched, &st);
    if (!st.faulted) return;
    fault(s);
    uv_timer_start(&s->stop_timer, on_fault_over, FAULT_MS, 0);
}

static void on_tick(uv_timer_t *t)
{
    srv *s = t->data;
    srv__check_fault(s);
    srv__http_tick(s);
}

/* ---------------------------------------------------------------- loading */

static void run_loader(void *arg)
{
    srv *s = arg;
    srv_parts parts = {0};
    ltd_err err = {0};
    ltd_status st = s->load(s->load_user, on_event, s, &parts, &err);
    uv_mutex_lock(&s->load_lock);
    s->load_done = true;
    s->load_status = st;
    s->parts = parts;
    s->load_err = err;
    uv_mutex_unlock(&s->load_lock);
    uv_async_send(&s->wake);
}

static int64_t max_body(const ltd_options *o, int64_t context)
{
    if (o->max_body_bytes) return o->max_body_bytes;
    return 48 * context > 4 << 20 ? 48 * context : 4 << 20;
}

static void loaded(srv *s)
{
    uv_mutex_lock(&s->load_lock);
    bool done = s->load_done;
    uv_mutex_unlock(&s->load_lock);
    if (!done || s->loader_joined) return;
    uv_thread_join(&s->loader);
    s->loader_joined = true;
    ltd_status st = s->load_status;
    if (st == LTD_OK) {
        s->sched = s->parts.sched;
        st = sched_start(s->sched);
        if (st != LTD_OK)
            ltd_fail(&s->load_err, st, "cannot start the engine's thread: %s", ltd_status_text(st));
    }
    if (st != LTD_OK) {
        if (s->err) *s->err = s->load_err;
        s->end = SRV_END_FAILED;
        finish(s);
        return;
    }
    s->c.info = s->parts.info;
    s->c.tok = s->parts.tok;
    s->c.max_body_bytes = max_body(s->o, s->c.info->context_length);
    make_fingerprint(s);
    s->phase = SRV_READY;
    log_info("server", "event=ready model=%s context=%d", s->o->served_names[0], s->c.info->context_length);
}

static void on_wake(uv_async_t *a)
{
    srv *s = a->data;
    if (!s->sched && !s->closing) loaded(s);
    if (s->sched) s->n_messages += srv__queue_drain(s->queue, on_message, s);
    if (s->look_for_fault)
        srv__check_fault(s); /* at once: nobody may be told "ready" by an engine that is lost */
    s->look_for_fault = false;
}

/* ---------------------------------------------------------------- the end */

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h)) uv_close(h, NULL);
}

static void leave_now(int number)
{
    (void)number;
    _exit(0);
}

/* Everything that is still there goes.  Nothing of libmicrohttpd may be suspended when it stops. */
static void finish(srv *s)
{
    if (s->closing) return;
    s->closing = true;
    if (s->phase == SRV_LOADING || s->phase == SRV_READY) s->phase = SRV_STOPPING;
    for (srv_req *req = s->reqs; req; req = req->next) srv__req_leave(req);
    struct MHD_Daemon *mhd = s->mhd;
    s->mhd = NULL; /* no turn from here */
    MHD_run(mhd);
    for (srv_req *req = s->reqs; req; req = req->next) srv__req_wake(req);
    MHD_run(mhd);
    LTD_CHECK(s->n_suspended == 0, "%d requests suspended at the end", s->n_suspended);
    uv_poll_stop(&s->mhd_poll);
    MHD_stop_daemon(mhd);
    uv_signal_stop(&s->sigterm);
    uv_signal_stop(&s->sigint);
    signal(SIGTERM, leave_now); /* libuv puts the default back; joining the engine may take a step */
    signal(SIGINT, leave_now);
    if (s->sched) sched_stop(s->sched);
    uv_walk(&s->loop, close_handle, NULL);
}

static void on_cut_off(uv_timer_t *t) { finish(t->data); }

/* --shutdown-timeout is over: the engine ends what runs, and a moment is left for the last frames. */
static void on_drained_too_long(uv_timer_t *t)
{
    srv *s = t->data;
    s->phase = SRV_STOPPING;
    log_warn("server", "event=shutdown_timeout cancelled=%d", s->n_active);
    for (srv_req *req = s->reqs; req; req = req->next)
        if (req->gen && req->gen->active) sched_cancel(s->sched, req->gen->group, SCHED_CANCEL_SHUTDOWN);
    uv_timer_start(&s->stop_timer, on_cut_off, CUT_OFF_MS, 0);
}

static void begin_drain(srv *s)
{
    MHD_run(s->mhd); /* whoever has connected is accepted, and answered instead of reset */
    s->phase = SRV_DRAINING;
    MHD_socket fd = MHD_quiesce_daemon(s->mhd);
    if (fd != MHD_INVALID_SOCKET) close(fd);
    sched_drain(s->sched);
    uv_timer_start(&s->stop_timer, on_drained_too_long, (uint64_t)s->o->shutdown_timeout_s * 1000, 0);
    s->need_run = true;
}

static void on_signal(uv_signal_t *h, int number)
{
    srv *s = h->data;
    s->n_signals++;
    log_info("server", "event=signal number=%d phase=%s active=%d", number, srv__phase_name(s), s->n_active);
    if (s->phase == SRV_READY && !s->closing) {
        begin_drain(s);
        return;
    }
    if (s->phase == SRV_FAULTED) return; /* it ends by itself, and with its own exit code */
    s->end = SRV_END_ABRUPT;
    uv_stop(&s->loop);
}

/* ---------------------------------------------------------------- the start */

static void mhd_log(void *cls, const char *fmt, va_list ap)
{
    char line[512];
    (void)cls;
    if (!log_enabled(LOG_DEBUG)) return;
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\r\n")] = 0;
    log_debug("http", "%s", line);
}

static ltd_status start_mhd(srv *s, int fd, ltd_err *err)
{
    s->mhd = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
                              srv__http_handle, s, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, s,
                              MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd, MHD_OPTION_NOTIFY_COMPLETED,
                              srv__http_completed, s, MHD_OPTION_NOTIFY_CONNECTION, srv__http_notify_conn, s,
                              MHD_OPTION_URI_LOG_CALLBACK, srv__http_uri, s, MHD_OPTION_CONNECTION_LIMIT,
                              (unsigned)(s->o->max_connections + CONNECTIONS_TO_REFUSE),
                              MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->o->write_timeout_s, MHD_OPTION_END);
    if (!s->mhd) return ltd_fail(err, LTD_IO, "cannot start the HTTP server: %s", strerror(errno));
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    LTD_CHECK(info && info->epoll_fd >= 0, "libmicrohttpd has no epoll descriptor");
    int rc = uv_poll_init(&s->loop, &s->mhd_poll, info->epoll_fd);
    LTD_CHECK(rc == 0, "uv_poll_init: %s", uv_strerror(rc));
    s->mhd_poll.data = s;
    uv_poll_start(&s->mhd_poll, UV_READABLE, on_mhd_poll);
    return LTD_OK;
}

static void start_handles(srv *s)
{
    uv_loop_init(&s->loop);
    uv_async_init(&s->loop, &s->wake, on_wake);
    uv_timer_init(&s->loop, &s->mhd_timer);
    uv_timer_init(&s->loop, &s->tick);
    uv_timer_init(&s->loop, &s->stop_timer);
    uv_prepare_init(&s->loop, &s->prepare);
    uv_check_init(&s->loop, &s->check);
    uv_signal_init(&s->loop, &s->sigterm);
    uv_signal_init(&s->loop, &s->sigint);
    s->wake.data = s->mhd_timer.data = s->tick.data = s->stop_timer.data = s;
    s->prepare.data = s->check.data = s->sigterm.data = s->sigint.data = s;
    uv_prepare_start(&s->prepare, on_prepare);
    uv_check_start(&s->check, on_check);
    uv_signal_start(&s->sigterm, on_signal, SIGTERM);
    uv_signal_start(&s->sigint, on_signal, SIGINT);
    sigset_t set; /* main may hold them back until somebody listens */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    uv_timer_start(&s->tick, on_tick, SRV_TICK_MS, SRV_TICK_MS);
}

static void close_handles(srv *s)
{
    uv_walk(&s->loop, close_handle, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    int rc = uv_loop_close(&s->loop);
    LTD_CHECK(rc == 0, "the loop still has handles: %s", uv_strerror(rc));
}

static srv *srv_create(const ltd_options *o, srv_load_fn *load, void *load_user, ltd_err *err)
{
    srv *s = ltd_calloc(1, sizeof *s);
    s->o = o;
    s->err = err;
    s->load = load;
    s->load_user = load_user;
    s->c.o = o;
    s->c.max_body_bytes = max_body(o, 0);
    s->large_tail = &s->large_head;
    s->created = ltd_unix_s();
    draw(s->c.salt_key, sizeof s->c.salt_key);
    draw(s->id_seed, sizeof s->id_seed);
    s->queue = srv__queue_create();
    LTD_CHECK(uv_mutex_init(&s->load_lock) == 0, "mutex");
    start_handles(s);
    return s;
}

static void srv_destroy(srv *s)
{
    close_handles(s);
    srv__queue_destroy(s->queue);
    srv__groups_deinit(&s->groups);
    uv_mutex_destroy(&s->load_lock);
    ltd_free(s);
}

srv_end srv_run(const ltd_options *o, srv_load_fn *load, void *load_user, ltd_err *err)
{
    char address[1100];
    int fd;
    signal(SIGPIPE, SIG_IGN);
    srv__raise_nofile(o->max_connections + 512);
    srv *s = srv_create(o, load, load_user, err);
    ltd_status st = srv__listen(o, &fd, address, sizeof address, err);
    if (st == LTD_OK && (st = start_mhd(s, fd, err)) != LTD_OK) close(fd);
    if (st != LTD_OK) {
        srv_destroy(s);
        return SRV_END_FAILED;
    }
    log_info("server", "event=listening %s", address);
    int rc = uv_thread_create(&s->loader, run_loader, s);
    LTD_CHECK(rc == 0, "uv_thread_create: %s", uv_strerror(rc));
    s->need_run = true;
    uv_run(&s->loop, UV_RUN_DEFAULT);
    srv_end end = s->end;
    /* Threads may be anywhere and hold what they want: the process ends as it is. */
    if (end == SRV_END_FAULT || end == SRV_END_ABRUPT) return end;
    srv_destroy(s);
    return end;
}
