/* ranks.h - the thread(s) that run steps.  Private to model/.
 * An inbox of MODEL_STEPS_IN_FLIGHT plans and as many results, in order.  launch/wait: the engine's thread only. */
#ifndef LTD_MODEL_RANKS_H
#define LTD_MODEL_RANKS_H

#include "model/forward.h"

typedef struct ranks ranks;

/* f is borrowed until ranks_destroy and used by the rank's thread alone from now on. */
ltd_status ranks_create(fwd *f, ranks **out, ltd_err *err);
void ranks_destroy(ranks *r); /* finishes what was launched, joins; NULL is fine */
ltd_status ranks_launch(ranks *r, const model_plan *p);
ltd_status ranks_wait(ranks *r, model_result *out);
bool ranks_done(ranks *r);

#endif
