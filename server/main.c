/* main.c - wiring: options, log, model, tokenizer, scheduler, server.  Nothing else lives here. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "model/model.h"
#include "model/tokenizer.h"
#include "scheduler/scheduler.h"
#include "server/server.h"

enum { PERPLEXITY_WINDOW = 512 };

typedef struct parts {
    ltd_options o;
    model *m;
    tok *t;
    sched *s;
} parts;

static ltd_status open_model(parts *p, ltd_err *err)
{
    ltd_status st = model_open(&p->o, &p->m, err);
    if (st != LTD_OK) return st;
    return tok_load(p->o.model, model_get_info(p->m)->vocab_size, &p->t, err);
}

/* Runs on the server's loading thread. */
static ltd_status load(void *user, sched_event_fn *fn, void *fn_user, srv_parts *out, ltd_err *err)
{
    parts *p = user;
    sched_options so;
    model_limits limits;
    ltd_status st = open_model(p, err);
    if (st != LTD_OK) return st;
    sched_options_from(&p->o, model_get_info(p->m), &so);
    sched_model_limits(&so, &limits);
    limits.max_slots = p->o.max_total_tokens;
    if ((st = model_start(p->m, &limits, &so.n_slots, err)) != LTD_OK) return st;
    if ((st = sched_create(&so, p->m, p->t, fn, fn_user, &p->s, err)) != LTD_OK) return st;
    *out = (srv_parts){.info = model_get_info(p->m), .tok = p->t, .sched = p->s};
    return LTD_OK;
}

static void unload(parts *p)
{
    sched_destroy(p->s);
    model_close(p->m);
    tok_destroy(p->t);
    p->s = NULL;
    p->m = NULL;
    p->t = NULL;
}

static ltd_status perplexity(parts *p, ltd_err *err)
{
    sched_options so;
    model_limits limits;
    model_ppl ppl;
    char *text;
    size_t n;
    ltd_status st = ltd_read_file(p->o.perplexity_file, 0, &text, &n, err);
    if (st != LTD_OK) return st;
    if ((st = open_model(p, err)) != LTD_OK) goto done;
    const model_info *mi = model_get_info(p->m);
    sched_options_from(&p->o, mi, &so);
    sched_model_limits(&so, &limits);
    if ((st = model_start(p->m, &limits, &so.n_slots, err)) != LTD_OK) goto done;
    int32_t window = mi->context_length - 1 < PERPLEXITY_WINDOW ? mi->context_length - 1 : PERPLEXITY_WINDOW;
    if ((st = model_perplexity(p->m, p->t, text, n, window, &ppl, err)) != LTD_OK) goto done;
    printf("{\"window\":%d,\"tokens\":%lld,\"nll\":%.10g,\"perplexity\":%.10g}\n", window,
           (long long)ppl.n_tokens, ppl.nll, ppl.perplexity);
done:
    ltd_free(text);
    return st;
}

static int fail(const ltd_err *err)
{
    log_stop();
    fprintf(stderr, "latentd: %s\n", err->text);
    return 1;
}

static int serve(parts *p)
{
    ltd_err err = {0};
    srv_end end = srv_run(&p->o, load, p, &err);
    if (end == SRV_END_FAULT || end == SRV_END_ABRUPT) {
        log_stop();
        _exit(end == SRV_END_FAULT ? 1 : 0);
    }
    unload(p);
    if (end == SRV_END_FAILED) return fail(&err);
    log_info("server", "event=end");
    log_stop();
    return 0;
}

static void log_begin(const parts *p)
{
    ltd_buf changed = {0};
    log_start(&(log_config){.level = p->o.log_level, .json = p->o.log_json, .fd = 2});
    opt_dump_text(&p->o, true, &changed);
    log_info("server", "event=start version=%s build=%s pid=%d %s", ltd_version, ltd_build_id, (int)getpid(),
             changed.data ? changed.data : "");
    ltd_buf_deinit(&changed);
}

/* As PID 1 a signal without a handler is lost: it waits until srv_run has one. */
static void hold_signals(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(how, &set, NULL);
}

int main(int argc, char **argv, char **envp)
{
    hold_signals(SIG_BLOCK);
    parts p = {0};
    ltd_err err = {0};
    opt_action action;
    int code = 0;
    if (opt_load(argc, argv, envp, &p.o, &action, &err) != LTD_OK) {
        fprintf(stderr, "latentd: %s\n", err.text);
        return 1;
    }
    bool serves = action == OPT_SERVE && !p.o.check_config && !p.o.perplexity_file;
    if (!serves) hold_signals(SIG_UNBLOCK);
    if (action == OPT_SERVE && p.o.check_config) {
        printf("configuration is good\n");
    } else if (action == OPT_SERVE && p.o.perplexity_file) {
        log_start(&(log_config){.level = p.o.log_level, .json = p.o.log_json, .fd = 2});
        if (perplexity(&p, &err) != LTD_OK) code = fail(&err);
        unload(&p);
        log_stop();
    } else if (serves) {
        log_begin(&p);
        code = serve(&p);
    }
    opt_deinit(&p.o);
    return code;
}
