/* server.h - the daemon's HTTP face: the OpenAI protocol over one libuv loop and libmicrohttpd.
 * Serves /live at once and everything else as soon as the model is loaded; ends by signal or when the engine
 * is lost.  Knows nothing of tensors, slots or the tree. Threads: srv_run owns the calling thread (the loop);
 * it loads the model on a thread of its own; requests are parsed on libuv's pool. */
#ifndef LTD_SERVER_H
#define LTD_SERVER_H

#include "config/config.h"
#include "scheduler/scheduler.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What serving needs; borrowed, and valid until srv_run has returned.  The sched is created but not started.
 */
typedef struct srv_parts {
    const model_info *info;
    const tok *tok;
    sched *sched;
} srv_parts;

/* Loads the model and creates the rest, with fn and fn_user as the sched's callback.  Runs once, on a thread
 * of its own. */
typedef ltd_status srv_load_fn(void *user, sched_event_fn *fn, void *fn_user, srv_parts *out, ltd_err *err);

typedef enum srv_end {
    SRV_END_OK,     /* a signal; everything was drained or cancelled; the sched is stopped */
    SRV_END_FAILED, /* it could not listen or load: err says why */
    SRV_END_FAULT,  /* the engine was lost: threads may hang, so the process should end without tidying up */
    SRV_END_ABRUPT, /* a signal while loading, or a second one: likewise */
} srv_end;

/* Serves until a signal or a fault. */
srv_end srv_run(const ltd_options *o, srv_load_fn *load, void *load_user, ltd_err *err);

#ifdef __cplusplus
}
#endif
#endif
