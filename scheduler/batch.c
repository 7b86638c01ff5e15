/* batch.c - admission, the plan of a step, and what its result means.
 * An admitted sequence has a row of the table and room; it begins (writes its row, takes what the tree has) with its first share of a step.
 * Admission (without retraction) is exact: a sequence enters only if all that it may ever need fits beside all that the running ones may ever need, counted
 * against free + evictable slots with its match already locked.  So a running sequence always finds its next slot, and one that has the pool to
 * itself always fits. */
#include <string.h>

#include "scheduler/scheduler_private.h"

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }

static radix_key key_of(const seq *q, int32_t n_tokens)
{
    return (radix_key){.tokens = q->tokens,
                       .n_tokens = n_tokens,
                       .n_prompt = q->n_prompt,
                       .salt = {q->g->salt[0], q->g->salt[1]}};
}

/* ---------------------------------------------------------------- slots */

static void evicted(void *user, const int32_t *slots, int32_t n)
{
    pool_slots_give(((sched *)user)->slots, slots, n);
}

static int32_t evictable(const sched *s)
{
    if (!s->tree) return 0;
    radix_stats st = radix_get_stats(s->tree);
    return st.n_tokens - st.n_locked;
}

/* Eviction goes in lots: slots given back one at a time would be dealt to all decoding sequences in turn and leave no contiguous run. */
enum { EVICT_LOT = 1024 };

static bool take_slots(sched *s, seq *q, int32_t n, int32_t *out)
{
    int32_t after = q->n_slots ? pool_req_row(s->table, q->req_row)[q->n_slots - 1] : 0;
    int32_t lack = n - pool_slots_free(s->slots);
    if (lack > 0 && s->tree) {
        int32_t lot = min32(EVICT_LOT, s->o.n_slots / 16);
        radix_evict(s->tree, lack > lot ? lack : lot, evicted, s);
    }
    return pool_slots_take(s->slots, n, after, out) == LTD_OK;
}

static void set_row(sched *s, const seq *q, int32_t pos, const int32_t *slots, int32_t n)
{
    pool_req_set(s->table, q->req_row, pos, slots, n);
    s->edit_slots += n;
}

/* Gives positions q->n_slots .. + n a slot each. */
static bool extend(sched *s, seq *q, int32_t n)
{
    if (!take_slots(s, q, n, s->scratch)) return false;
    set_row(s, q, q->n_slots, s->scratch, n);
    q->n_slots += n;
    s->reserved -= n;
    return true;
}

void sched__dups_give(sched *s)
{
    while (s->n_dups && s->dups[s->dup_head].after <= s->applied) {
        pool_slots_give(s->slots, &s->dups[s->dup_head].slot, 1);
        s->dup_head = (s->dup_head + 1) % s->o.n_slots;
        s->n_dups--;
        s->progress++;
    }
}

/* ---------------------------------------------------------------- the plan */

static step *step_of(sched *s, int64_t number) { return &s->steps[number % MODEL_STEPS_IN_FLIGHT]; }

static step_entry *enter(sched *s, seq *q)
{
    step *st = step_of(s, s->plan->step);
    step_entry *e = &st->entries[st->n_entries++];
    *e = (step_entry){.q = q, .first_sample = s->plan->n_samples};
    return e;
}

static void add_row(sched *s, const seq *q, int32_t pos)
{
    model_plan *p = s->plan;
    int32_t row = p->n_rows++;
    plan_tokens(p)[row] = pos < q->n_tokens ? q->tokens[pos] : MODEL_TOKEN_LAST;
    plan_pos(p)[row] = pos;
    plan_slots(p)[row] = pool_req_row(s->table, q->req_row)[pos];
    plan_req(p)[row] = q->req_row;
}

/* The token that follows the plan's last row is drawn. */
static void add_draw(sched *s, seq *q, step_entry *e)
{
    model_plan *p = s->plan;
    plan_sample *sample = &plan_samples(p)[p->n_samples++];
    *sample = (plan_sample){.row = p->n_rows - 1, .req_row = q->req_row, .params = q->params};
    sample->params.position = q->n_prompt + q->n_drawn;
    q->n_drawn++;
    e->draws = true;
    e->n_samples++;
}

static void add_score(sched *s, const seq *q, step_entry *e, int32_t pos)
{
    model_plan *p = s->plan;
    plan_sample *sample = &plan_samples(p)[p->n_samples++];
    *sample = (plan_sample){.row = p->n_rows - 1, .req_row = -1, .params = q->params};
    sample->params.target = q->tokens[pos];
    sample->params.position = pos;
    sample->params.n_logprobs = q->g->n_prompt_logprobs;
    if (e->n_samples++ == 0) e->score_pos = pos;
}

static bool in_prefill(const seq *q) { return q->n_computed < q->n_target; }

/* Generated rows: every sequence past its prompt whose next token is on the device or here, and who may draw one more. */
static void plan_decodes(sched *s)
{
    for (seq *q = s->running; q; q = q->next) {
        if (q->finish != SCHED_RUNNING || in_prefill(q) || q->n_drawn >= q->max_out) continue;
        if (!extend(s, q, 1)) continue; /* a refused take (tests): the next step tries again */
        step_entry *e = enter(s, q);
        add_row(s, q, q->n_computed);
        q->n_computed++;
        e->n_rows = 1;
        add_draw(s, q, e);
        s->counts.absorbed_rows++;
    }
}

/* n prompt rows of q. */
static void plan_prompt(sched *s, seq *q, int32_t n)
{
    if (n < 1 || !extend(s, q, n)) return;
    model_plan *p = s->plan;
    step_entry *e = enter(s, q);
    if (!q->absorb)
        plan_segments(p)[p->n_segments++] =
            (plan_segment){.req_row = q->req_row, .first_row = p->n_rows, .n_rows = n, .pos0 = q->n_computed};
    for (int32_t i = 0; i < n; i++) {
        int32_t pos = q->n_computed++;
        add_row(s, q, pos);
        if (q->scores && pos + 1 < q->n_prompt) add_score(s, q, e, pos + 1);
    }
    e->n_rows = n;
    s->counts.prompt_rows += n;
    if (q->n_computed == q->n_prompt && q->max_out > 0) add_draw(s, q, e);
}

/* ---------------------------------------------------------------- admission */

static void match(sched *s, seq *q)
{
    if (!s->tree || q->scores || q->n_target < 2) return;
    radix_key key = key_of(q, q->n_prompt);
    radix_path before = q->path;
    q->path = radix_lock(s->tree, &key, q->n_prompt - 1, s->now_us, s->scratch);
    radix_unlock(s->tree, &before);
    q->n_slots = q->n_computed = q->path.n_tokens;
}

static void leave_waiting(sched *s, seq *q)
{
    group *g = q->g;
    g->n_waiting--;
    sched__timer_set(s, g);
    sched__group_reap(s, g); /* leaves the queue with its last */
}

/* LTD_FULL: not now. */
static ltd_status admit(sched *s, seq *q)
{
    if (pool_req_row_take(s->table, &q->req_row) != LTD_OK) return LTD_FULL;
    match(s, q);
    int64_t need = sched__seq_future(s, q);
    if (need > (int64_t)pool_slots_free(s->slots) + evictable(s) - s->reserved) {
        if (s->tree) radix_unlock(s->tree, &q->path);
        pool_req_row_give(s->table, q->req_row);
        q->req_row = -1;
        q->n_slots = q->n_computed = 0;
        return LTD_FULL;
    }
    s->reserved += need;
    q->admitted_us = s->now_us;
    q->prev = s->running_last;
    *(q->prev ? &q->prev->next : &s->running) = q;
    s->running_last = q;
    s->n_running++;
    sched__output_init(s, q);
    leave_waiting(s, q);
    return LTD_OK;
}

/* Ends a sequence that never got a row. */
static void end_waiting(sched *s, seq *q, sched_finish why)
{
    sched__seq_end(s, q, why);
    q->g->n_released++;
    leave_waiting(s, q);
}

/* Room was looked for in vain: again when something has been released, given back or become common.  If nothing runs, nothing ever will be:
 * slots have gone out of use. */
static bool blocked(sched *s, seq *q)
{
    if (!s->running && s->launched == s->applied) {
        log_error("sched", "id=%s group=%llu prompt=%d: no room though nothing runs, slots=%d", q->g->label,
                  (unsigned long long)q->g->id, q->n_prompt, s->o.n_slots);
        end_waiting(s, q, SCHED_ERROR);
        return false;
    }
    s->blocked = q;
    s->blocked_at = s->progress;
    return true;
}

void sched__admit(sched *s)
{
    for (seq *q; s->n_running < s->o.max_running && (q = sched__policy_next(s));) {
        if (q == s->blocked && s->blocked_at == s->progress) return;
        if (q->max_out == 0 && (!q->scores || q->n_target == 0))
            end_waiting(s, q, SCHED_LENGTH); /* nothing to draw, no scores asked for */
        else if (admit(s, q) != LTD_OK && blocked(s, q))
            return;
    }
}

/* ---------------------------------------------------------------- a step */

/* A choice's siblings have the same prompt: they wait until the first one has put it into the tree. */
static bool waits_for_sibling(const sched *s, const seq *q)
{
    if (q->choice == 0 || q->begun || !s->tree) return false;
    const seq *first = q - q->choice;
    return first->finish == SCHED_RUNNING && in_prefill(first);
}

/* The first row of q is due: what the tree has by now is taken from it.  False: the plan has no room for so many edits. */
static bool begin(sched *s, seq *q)
{
    int32_t before = q->n_slots;
    if (s->edit_slots + q->n_prompt + 2 * s->limits.max_rows > s->plan->cap_edit_slots) return false;
    match(s, q);
    s->reserved -= q->n_slots - before;
    if (q->n_slots) set_row(s, q, 0, s->scratch, q->n_slots);
    q->begun = true;
    q->n_cached = q->n_slots;
    q->absorb = q->n_target - q->n_computed <= s->o.absorb_extend;
    s->counts.prompt_tokens += q->n_prompt;
    s->counts.cached_tokens += q->n_cached;
    return true;
}

/* By what is left of it, then by admission. */
static void sort_shares(prompt_share *a, int32_t n)
{
    for (int32_t gap = n / 2; gap > 0; gap /= 2)
        for (int32_t i = gap; i < n; i++) {
            prompt_share x = a[i];
            int32_t k = i;
            for (; k >= gap &&
                   (a[k - gap].want > x.want || (a[k - gap].want == x.want && a[k - gap].order > x.order));
                 k -= gap)
                a[k] = a[k - gap];
            a[k] = x;
        }
}

/* Who gets how many of the step's prompt rows: half of them are the oldest prompt's, so that every one ends; the others' shortest come first, so that a
 * short one does not wait for a long one; what they leave is the oldest's again.  Returns how many have a share. */
static int32_t deal_shares(sched *s)
{
    int32_t n = 0, left = s->o.chunk_rows;
    int64_t all = 0;
    prompt_share *a = s->shares;
    for (seq *q = s->running; q; q = q->next) {
        if (q->finish != SCHED_RUNNING || !in_prefill(q) || waits_for_sibling(s, q)) continue;
        a[n] = (prompt_share){.q = q, .want = q->n_target - q->n_computed, .order = n};
        all += a[n++].want;
    }
    if (!n) return 0;
    int32_t half = left - left / 2;
    if (all > left) sort_shares(a + 1, n - 1);
    a[0].rows = min32(a[0].want, all > left ? half : left);
    left -= a[0].rows;
    for (int32_t i = 1; i < n; i++) left -= a[i].rows = min32(a[i].want, left);
    a[0].rows += min32(a[0].want - a[0].rows, left);
    while (n > 1 && !a[n - 1].rows) n--;
    for (int32_t i = 0; i < n; i++) {
        seq *q = a[i].q;
        if (!q->begun && !begin(s, q)) a[i].rows = 0;
        a[i].rows = min32(a[i].rows,
                          q->n_target - q->n_computed); /* it may have found more than when it was admitted */
    }
    return n;
}

/* Nothing is launched: the edits wait.  Those of rows given back since they were noted are gone, and no longer take room in the next plan. */
static void recount_edits(sched *s)
{
    const pool_req_edit *edits;
    const int32_t *slots;
    if (s->edit_slots) pool_req_edits(s->table, &edits, &slots, &s->edit_slots);
}

static void take_edits(sched *s)
{
    const pool_req_edit *edits;
    const int32_t *slots;
    model_plan *p = s->plan;
    p->n_edits = pool_req_edits(s->table, &edits, &slots, &p->n_edit_slots);
    LTD_CHECK(p->n_edits <= p->cap_edits && p->n_edit_slots <= p->cap_edit_slots,
              "step=%lld edits=%d slots=%d: over the plan's %d and %d", (long long)p->step, p->n_edits,
              p->n_edit_slots, p->cap_edits, p->cap_edit_slots);
    memcpy(plan_edits(p), edits, sizeof *edits * (size_t)p->n_edits);
    memcpy(plan_edit_slots(p), slots, sizeof *slots * (size_t)p->n_edit_slots);
    pool_req_edits_clear(s->table);
    s->edit_slots = 0;
}

/* Generated rows, then prompt rows; of these the ones that go down the absorbed path first, since absorbed rows stand before all segments. */
bool sched__plan(sched *s)
{
    model_plan *p = s->plan;
    model_plan_clear(p);
    p->step = s->launched + 1;
    step_of(s, p->step)->number = p->step;
    step_of(s, p->step)->n_entries = 0;
    plan_decodes(s);
    int32_t n = deal_shares(s);
    for (int32_t i = 0; i < n; i++)
        if (s->shares[i].q->absorb) plan_prompt(s, s->shares[i].q, s->shares[i].rows);
    p->n_absorbed = p->n_rows;
    for (int32_t i = 0; i < n; i++)
        if (!s->shares[i].q->absorb) plan_prompt(s, s->shares[i].q, s->shares[i].rows);
    if (p->n_rows)
        take_edits(s);
    else
        recount_edits(s);
    return p->n_rows > 0;
}

/* What a chunk has computed is found by others from the next step on.  With n = positions computed:
 *     [0, path)  the tree's already      [path, n)  the tree's from now on; where it had them, the row takes the tree's slots and the duplicates wait for
 *                                                   the last launched step, which still writes them */
static void insert_prompt(sched *s, seq *q)
{
    radix_key key = key_of(q, min32(q->n_computed, q->n_prompt));
    int32_t from = q->path.n_tokens, n_dup = 0, *tail = s->scratch, *dup = s->scratch + s->o.context_length;
    if (key.n_tokens <= from) return;
    memcpy(tail + from, pool_req_row(s->table, q->req_row) + from,
           sizeof *tail * (size_t)(key.n_tokens - from));
    radix_insert(s->tree, &key, s->now_us, &q->path, tail, dup, &n_dup);
    if (key.n_tokens == q->n_target) s->progress++; /* a whole prompt is there to be shared */
    if (!n_dup) return;
    set_row(s, q, from, tail + from, key.n_tokens - from);
    for (int32_t i = 0; i < n_dup; i++) {
        LTD_CHECK(s->n_dups < s->o.n_slots, "more duplicates than slots");
        s->dups[(s->dup_head + s->n_dups++) % s->o.n_slots] =
            (dup_slot){.slot = dup[i], .after = s->launched};
    }
}

void sched__launched(sched *s)
{
    step *st = step_of(s, s->plan->step);
    s->launched++;
    s->counts.steps++;
    for (int32_t i = 0; i < st->n_entries; i++) st->entries[i].q->in_flight++;
    if (!s->tree) return;
    for (int32_t i = 0; i < st->n_entries; i++)
        if (st->entries[i].q->path.n_tokens < st->entries[i].q->n_prompt) insert_prompt(s, st->entries[i].q);
}

/* ---------------------------------------------------------------- results */

/* The first of its samples that had no finite logit, scored or drawn; n_samples: none. */
static int32_t first_bad(const step_entry *e, const model_result *r)
{
    int32_t i = 0;
    while (i < e->n_samples && r->tokens[e->first_sample + i] >= 0) i++;
    return i;
}

static void apply_entry(sched *s, const step_entry *e, const model_result *r)
{
    seq *q = e->q;
    q->in_flight--;
    if (q->finish != SCHED_RUNNING) {
        s->counts.wasted_rows += e->n_rows;
        return;
    }
    int32_t n_scores = e->n_samples - (e->draws ? 1 : 0), at = e->first_sample + n_scores,
            bad = first_bad(e, r);
    if (bad < e->n_samples) {
        log_error("sched", "id=%s group=%llu seq=%d position=%d: no finite logit; the sequence ends",
                  q->g->label, (unsigned long long)q->g->id, q->index,
                  bad < n_scores ? e->score_pos + bad : q->n_tokens);
        q->poisoned = true;
        sched__seq_end(s, q, SCHED_ERROR);
        return;
    }
    if (n_scores) sched__output_scores(s, q, r, e->first_sample, n_scores, e->score_pos);
    if (!e->draws) {
        if (q->max_out == 0 && !in_prefill(q) && q->in_flight == 0) sched__seq_end(s, q, SCHED_LENGTH);
        return;
    }
    q->tokens[q->n_tokens++] = r->tokens[at];
    s->counts.generated_tokens++;
    sched__output_token(s, q, r->tokens[at], r->logprobs[at],
                        r->top_ids + (int64_t)at * KERN_MAX_TOP_LOGPROBS,
                        r->top_logprobs + (int64_t)at * KERN_MAX_TOP_LOGPROBS);
}

void sched__apply(sched *s, const model_result *r)
{
    step *st = step_of(s, r->step);
    LTD_CHECK(r->step == s->applied + 1 && st->number == r->step, "result of step %lld, expected %lld",
              (long long)r->step, (long long)s->applied + 1);
    s->applied++;
    for (int32_t i = 0; i < st->n_entries; i++) apply_entry(s, &st->entries[i], r);
    for (int32_t i = 0; i < st->n_entries; i++) {
        seq *q = st->entries[i].q;
        group *g = q->g;
        if (q->finish == SCHED_RUNNING || q->in_flight) continue;
        sched__seq_release(s, q);
        st->entries[i].q = NULL;
        sched__group_reap(s, g);
    }
    sched__dups_give(s);
}
