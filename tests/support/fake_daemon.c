/* fake_daemon.c - the fake model's settings for latentd-fake, from the environment (it has no options of its
 * own): FAKE_RULE=hash|chain (default chain)   FAKE_CONTEXT, FAKE_SLOTS, FAKE_STEP_US, FAKE_ROW_US,
 * FAKE_FAIL_STEP FAKE_OPEN_MS: opening the model takes so long. Linked with --wrap=model_open, so that main.c
 * stays the daemon's own. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fake_model.h"

ltd_status __real_model_open(const ltd_options *o, model **out, ltd_err *err);
ltd_status __wrap_model_open(const ltd_options *o, model **out, ltd_err *err);

static double number(const char *name, double otherwise)
{
    const char *v = getenv(name);
    return v ? atof(v) : otherwise;
}

ltd_status __wrap_model_open(const ltd_options *o, model **out, ltd_err *err)
{
    const char *rule = getenv("FAKE_RULE");
    double step_us = number("FAKE_STEP_US", 0), row_us = number("FAKE_ROW_US", 0);
    fake_config c = {
        .context_length =
            (int32_t)number("FAKE_CONTEXT", o->context_length ? (double)o->context_length : 4096),
        .n_slots = (int32_t)number("FAKE_SLOTS", 0),
        .rule = rule && !strcmp(rule, "hash") ? FAKE_HASH : FAKE_CHAIN,
        .timing = step_us > 0 || row_us > 0 ? FAKE_THREAD : FAKE_EAGER,
        .step_us = (int32_t)step_us,
        .row_us = row_us,
        .no_checks = number("FAKE_NO_CHECKS", 0) > 0,
        .fail_step = (int64_t)number("FAKE_FAIL_STEP", 0),
    };
    fake_model_config(&c);
    usleep((useconds_t)(1000 * number("FAKE_OPEN_MS", 0)));
    return __real_model_open(o, out, err);
}
