/* model_runner.h - runs chosen rows through a real model and gives back their logits: the device of the golden and same-bits tests. */
#ifndef LTD_TESTS_MODEL_RUNNER_H
#define LTD_TESTS_MODEL_RUNNER_H

#include "model/model_private.h"

typedef struct runner {
    model *m;
    const model_info *info;
    model_limits limits;
    int32_t n_slots;
    model_plan *plan;
    float *logits; /* [limits.max_samples][vocab] of the last step, in the order of its rows */
    model_result result;
} runner;

/* Options of a CPU model as the tests want it: the caller changes what it tests. */
ltd_options runner_options(const char *dir);
void runner_open(runner *r, const ltd_options *o, int32_t max_rows, int32_t n_req_rows); /* fails the test on error */
void runner_close(runner *r);

/* Rows pos0 .. pos0 + n of a sequence; slots[p] is the slot of position p, for all positions below pos0 + n. */
typedef struct runner_rows {
    int32_t req_row;
    const int32_t *ids, *slots;
    int32_t pos0, n;
    bool absorbed;
} runner_rows;

/* One step with all these rows (absorbed ones must come first); every row's logits land in r->logits. map_from: positions from which the
 * request table is (re)written, usually 0. */
void runner_step(runner *r, const runner_rows *rows, int32_t n, int32_t map_from);

#endif
