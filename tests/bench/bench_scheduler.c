/* bench_scheduler - what the host pays per step: commands, results, text, events, plan, launch; on a fake model whose own time is taken off.
 *   decode  so many sequences, each with a token a step
 *   churn   the same with answers of 16 tokens behind prompts of 64: a sixteenth of the sequences ends and begins at every step
 * bare, with 1e6 tokens in the tree, with 10,000 requests in the queue; one step in flight and two.  A line is the median of several rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "scheduler/scheduler.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/fake_model.h"

enum { CONTEXT = 4096, ROUNDS = 15, STEPS = 200, N_TREE = 1000000, N_QUEUE = 10000 };

typedef struct bench {
    model *m;
    sched *s;
    int64_t live, events, bytes;
    int32_t ids[CONTEXT];
    uint64_t salt;
} bench;

static void on_event(void *user, const sched_event *ev)
{
    bench *b = user;
    b->events++;
    b->bytes += (int64_t)ev->text_len;
    if (ev->group_done) b->live--;
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void submit(bench *b, int32_t n_prompt, int32_t max_tokens)
{
    ltd_err err;
    uint64_t id;
    const int32_t *p = b->ids;
    for (int i = 0; i < 4; i++) b->ids[i] = (int32_t)(b->salt >> (8 * i) & 255);
    b->salt++;
    sched_request r = {.prompts = &p,
                       .prompt_lens = &n_prompt,
                       .n_prompts = 1,
                       .n = 1,
                       .max_tokens = max_tokens,
                       .top_p = 1,
                       .n_logprobs = -1,
                       .n_prompt_logprobs = -1,
                       .ignore_eos = true};
    ltd_status st = sched_submit(b->s, &r, &id, &err);
    LTD_CHECK(st == LTD_OK, "%s", err.text);
    b->live++;
}

static void turn(bench *b, int64_t *now)
{
    int64_t wake;
    *now += 1000;
    sched_step(b->s, *now, &wake);
}

/* Host time of a step: turns until STEPS steps are done, without the fake's part. */
static double round_us(bench *b, int64_t *now, int32_t n_running, int32_t n_prompt, int32_t max_tokens,
                       int32_t waiting)
{
    int64_t first = fake_model_stats(b->m).steps;
    double t = 0;
    while (fake_model_stats(b->m).steps < first + STEPS) {
        while (b->live < n_running + waiting)
            submit(b, n_prompt, max_tokens); /* the server's time, not the engine's */
        int64_t spent = fake_model_stats(b->m).spent_ns;
        double t0 = now_us();
        turn(b, now);
        t += now_us() - t0 - (double)(fake_model_stats(b->m).spent_ns - spent) / 1e3;
    }
    return t / (double)(fake_model_stats(b->m).steps - first);
}

static int cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tok *load_tokenizer(void)
{
    char dir[] = "/tmp/ltd-bench-XXXXXX", path[64];
    ltd_err err;
    tok *t;
    LTD_CHECK(mkdtemp(dir), "no temporary folder");
    support_write_byte_tokenizer(dir, NULL);
    LTD_CHECK(tok_load(dir, 320, &t, &err) == LTD_OK, "%s", err.text);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
    return t;
}

static void run(const tok *t, int32_t n_running, bool churn, bool overlap, int32_t n_tree, int32_t n_queue)
{
    bench b = {.salt = 1};
    ltd_err err;
    int64_t now = 0;
    double us[ROUNDS];
    sched_options o = {.context_length = CONTEXT,
                       .max_running = n_running,
                       .max_queued = N_QUEUE + 1000,
                       .chunk_rows = 8192,
                       .radix_cache = true,
                       .reuse_generated = true,
                       .overlap = overlap};
    model_limits l;
    fake_model_config(&(fake_config){.context_length = CONTEXT, .no_checks = true, .n_slots = 2500000});
    LTD_CHECK(model_open(NULL, &b.m, &err) == LTD_OK, "%s", err.text);
    sched_model_limits(&o, &l);
    LTD_CHECK(model_start(b.m, &l, &o.n_slots, &err) == LTD_OK, "%s", err.text);
    LTD_CHECK(sched_create(&o, b.m, t, on_event, &b, &b.s, &err) == LTD_OK, "%s", err.text);
    for (int32_t i = 0; i < CONTEXT; i++) b.ids[i] = i % 251;
    sched_stats st = {0};
    while (st.slots_cached < n_tree) { /* prompts of 2000 tokens that share four at most */
        submit(&b, 2000, 1);
        while (b.live) turn(&b, &now);
        sched_get_stats(b.s, &st);
    }
    int32_t n_prompt = 64, max_tokens = churn ? 16 : CONTEXT - 64;
    for (int r = -1; r < ROUNDS; r++) {
        double x = round_us(&b, &now, n_running, n_prompt, max_tokens, n_queue);
        if (r >= 0) us[r] = x;
    }
    qsort(us, ROUNDS, sizeof *us, cmp);
    sched_get_stats(b.s, &st);
    printf("%-7s running %4d  in flight %d  tree %8d  queue %6d   %7.2f us/step (best %.2f)  %6.3f "
           "us/sequence\n",
           churn ? "churn" : "decode", st.running, overlap ? 2 : 1, n_tree ? st.slots_cached : 0, n_queue,
           us[ROUNDS / 2], us[0], us[ROUNDS / 2] / n_running);
    sched_stop(b.s);
    sched_destroy(b.s);
    model_close(b.m);
}

int main(void)
{
    static const int32_t sizes[] = {1, 16, 64, 256};
    tok *t = load_tokenizer();
    for (int churn = 0; churn < 2; churn++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            run(t, sizes[i], churn, true, 0, 0);
            if (sizes[i] != 256) continue;
            run(t, sizes[i], churn, false, 0, 0);
            run(t, sizes[i], churn, true, N_TREE, 0);
            run(t, sizes[i], churn, true, 0, N_QUEUE);
            run(t, sizes[i], churn, true, N_TREE, N_QUEUE);
        }
    tok_destroy(t);
    return 0;
}
