/* fake_model.c - see fake_model.h.
 * A prefix's state: h(-1) = 1, h(p) = mix(h(p-1), token p, p).  kv[slot] keeps {token, pos, state, owner step}; a row reads
 * the state of position p-1 from kv[table[row][p-1]], so it is right only if the row of the table is. */
#include "tests/support/fake_model.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

typedef struct kv {
    uint64_t state;
    int32_t token, pos; /* pos -1: never written */
    int64_t step;       /* that wrote it */
    int32_t req;
} kv;

typedef struct fake_result {
    int64_t step;
    ltd_status status;
    int32_t n;
    int32_t *tokens, *top_ids;
    float *logprobs, *top_logprobs;
    int64_t ready_us; /* FAKE_THREAD */
} fake_result;

struct model {
    fake_config c;
    model_info info;
    model_limits l;
    int32_t n_slots;
    int32_t *table; /* [n_req_rows][context_length] */
    int32_t *last;  /* [n_req_rows] */
    kv *kv;         /* [n_slots + 1] */
    fake_result ring[MODEL_STEPS_IN_FLIGHT];
    int64_t waited, last_step;
    bool lost;
    uint64_t asked; /* FAKE_RANDOM: how often model_done was called */
    fake_stats stats;
    fake_plan_fn *on_plan;
    void *on_plan_user;
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, stop;
    int64_t launched, complete;
};

static fake_config config;

void fake_model_config(const fake_config *c) { config = c ? *c : (fake_config){0}; }

static fake_config filled(const fake_config *from)
{
    fake_config c = *from;
    if (!c.vocab) c.vocab = 320;
    if (!c.context_length) c.context_length = 4096;
    if (!c.n_slots) c.n_slots = 65536;
    if (!c.eos) c.eos = 257;
    return c;
}

/* ---------------------------------------------------------------- the function that it computes */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

static uint64_t next_state(uint64_t before, int32_t token, int32_t pos)
{
    return mix(before * 31 + (uint64_t)(uint32_t)token * 0x9e3779b97f4a7c15u + (uint64_t)(uint32_t)pos + 1);
}

/* CHAIN of the requirements: A..Z in order, then eos; a for ever; the bytes of the euro sign, a smiley and a stop; FF for ever; 6, 280, 9. */
static int32_t chain_next(const fake_config *c, int32_t token)
{
    static const int32_t euro[] = {'<', 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, '.'};
    if (token < 0) return -1;
    if (c->chain) return c->chain[token];
    if (token >= 'A' && token < 'Z') return token + 1;
    if (token == 'a' || token == 0xFF) return token;
    for (size_t i = 0; i + 1 < sizeof euro / sizeof *euro; i++)
        if (token == euro[i]) return euro[i + 1];
    return token == '6' ? 280 : token == 280 ? '9' : c->eos;
}

static int32_t draw(const fake_config *c, uint64_t state, int32_t last, const kern_sample_params *p)
{
    bool finite = c->rule == FAKE_CHAIN ? chain_next(c, last) >= 0
                                        : last >= 0 && (!c->nan_token || last != c->nan_token);
    if (!finite) return -1; /* also where a target is scored */
    if (p->target >= 0) return p->target;
    if (c->rule == FAKE_CHAIN) return chain_next(c, last);
    uint64_t x = mix(state);
    if (p->temperature > 0) x = mix(x ^ p->seed ^ (uint64_t)(uint32_t)p->position << 40);
    return (int32_t)(x % (uint64_t)c->vocab);
}

static float logprob_of(uint64_t state, int32_t token)
{
    return -(float)(mix(state ^ (uint64_t)(uint32_t)token << 20) % 100000) / 10000.0f;
}

int32_t fake_model_generate(const fake_config *from, const int32_t *prompt, int32_t n_prompt,
                            const kern_sample_params *params, bool ignore_eos, int32_t max, int32_t *out,
                            float *logprobs)
{
    fake_config c = filled(from);
    uint64_t state = 1;
    int32_t n = 0, last = -1;
    for (int32_t i = 0; i < n_prompt; i++) state = next_state(state, last = prompt[i], i);
    while (n < max) {
        kern_sample_params p = *params;
        p.position = n_prompt + n;
        int32_t token = draw(&c, state, last, &p);
        if (token < 0) break;
        if (logprobs) logprobs[n] = logprob_of(state, token);
        out[n++] = token;
        if (token == c.eos && !ignore_eos) break;
        state = next_state(state, last = token, p.position);
    }
    return n;
}

float fake_model_score(const int32_t *prompt, int32_t pos)
{
    uint64_t state = 1;
    for (int32_t i = 0; i < pos; i++) state = next_state(state, prompt[i], i);
    return logprob_of(state, prompt[pos]);
}

/* ---------------------------------------------------------------- one step */

/* What row `row`, position pos of a sequence reads: every earlier position must hold the sequence's own past.  first_own: positions from there on
 * are of this step. */
static uint64_t read_prefix(const model *m, const model_plan *p, int32_t row, int32_t pos)
{
    int32_t req = plan_req(p)[row];
    const int32_t *slots = m->table + (int64_t)req * m->info.context_length;
    if (pos == 0) return 1;
    uint64_t state = 1;
    for (int32_t i = m->c.no_checks ? pos - 1 : 0; i < pos; i++) {
        LTD_CHECK(slots[i] >= 1 && slots[i] <= m->n_slots,
                  "fake: step=%lld row=%d req=%d position %d has slot %d", (long long)p->step, row, req, i,
                  slots[i]);
        const kv *k = &m->kv[slots[i]];
        if (m->c.no_checks) return k->state;
        LTD_CHECK(k->pos == i, "fake: step=%lld req=%d position %d: slot %d holds position %d of step %lld",
                  (long long)p->step, req, i, slots[i], k->pos, (long long)k->step);
        LTD_CHECK(k->step != p->step || k->req == req,
                  "fake: step=%lld req=%d position %d: slot %d is written in this very step, by req %d",
                  (long long)p->step, req, i, slots[i], k->req);
        state = next_state(state, k->token, i);
        LTD_CHECK(k->state == state,
                  "fake: step=%lld req=%d position %d: slot %d (token %d, step %lld) was computed on another "
                  "prefix",
                  (long long)p->step, req, i, slots[i], k->token, (long long)k->step);
    }
    return state;
}

static void run_row(model *m, const model_plan *p, int32_t row)
{
    int32_t req = plan_req(p)[row], pos = plan_pos(p)[row], slot = plan_slots(p)[row],
            token = plan_tokens(p)[row];
    if (token == MODEL_TOKEN_LAST) {
        token = m->last[req];
        m->stats.last_tokens++;
    }
    LTD_CHECK(pos < m->info.context_length, "fake: step=%lld row=%d position %d of %d", (long long)p->step,
              row, pos, m->info.context_length);
    LTD_CHECK(m->table[(int64_t)req * m->info.context_length + pos] == slot,
              "fake: step=%lld req=%d position %d: the row says slot %d, the table %d", (long long)p->step,
              req, pos, slot, m->table[(int64_t)req * m->info.context_length + pos]);
    /* rows of one segment follow one another: the first verifies the whole prefix, the others read their neighbour */
    const kv *k = &m->kv[slot];
    LTD_CHECK(m->c.no_checks || k->step <= m->waited || k->req == req,
              "fake: step=%lld req=%d position %d: slot %d is still written by step %lld, req %d",
              (long long)p->step, req, pos, slot, (long long)k->step, k->req);
    bool follows = row > 0 && plan_req(p)[row - 1] == req && plan_pos(p)[row - 1] == pos - 1;
    uint64_t before = follows ? m->kv[plan_slots(p)[row - 1]].state : read_prefix(m, p, row, pos);
    m->kv[slot] = (kv){
        .state = next_state(before, token, pos), .token = token, .pos = pos, .step = p->step, .req = req};
}

static void run_sample(model *m, const model_plan *p, int32_t i, fake_result *r)
{
    const plan_sample *s = &plan_samples(p)[i];
    const kv *k = &m->kv[plan_slots(p)[s->row]];
    LTD_CHECK(s->params.position == k->pos + 1, "fake: step=%lld sample=%d: position %d after a row at %d",
              (long long)p->step, i, s->params.position, k->pos);
    int32_t token = draw(&m->c, k->state, k->token, &s->params);
    r->tokens[i] = token;
    if (s->req_row >= 0) {
        LTD_CHECK(s->req_row == plan_req(p)[s->row], "fake: step=%lld sample=%d: of row %d's req %d, for %d",
                  (long long)p->step, i, s->row, plan_req(p)[s->row], s->req_row);
        m->last[s->req_row] = token;
    }
    r->logprobs[i] = logprob_of(k->state, token);
    for (int32_t t = 0; t < s->params.n_logprobs; t++) {
        r->top_ids[(int64_t)i * KERN_MAX_TOP_LOGPROBS + t] = (token + t + m->c.vocab) % m->c.vocab;
        r->top_logprobs[(int64_t)i * KERN_MAX_TOP_LOGPROBS + t] = logprob_of(k->state, token) - (float)t;
    }
}

static void run_step(model *m, const model_plan *p, fake_result *r)
{
    const pool_req_edit *e = plan_edits(p);
    for (int32_t i = 0; i < p->n_edits; i++) {
        LTD_CHECK(e[i].n <= m->info.context_length - e[i].pos,
                  "fake: step=%lld edit=%d: row %d, %d slots at %d", (long long)p->step, i, e[i].row, e[i].n,
                  e[i].pos);
        memcpy(m->table + (int64_t)e[i].row * m->info.context_length + e[i].pos,
               plan_edit_slots(p) + e[i].first, sizeof(int32_t) * (size_t)e[i].n);
    }
    for (int32_t i = 0; i < p->n_rows; i++) run_row(m, p, i);
    for (int32_t i = 0; i < p->n_samples; i++) run_sample(m, p, i, r);
}

/* ---------------------------------------------------------------- model.h */

ltd_status model_open(const ltd_options *o, model **out, ltd_err *err)
{
    (void)o;
    (void)err;
    model *m = ltd_calloc(1, sizeof *m);
    m->c = filled(&config);
    m->info = (model_info){.architecture = "FakeForCausalLM",
                           .device = "cpu fake",
                           .dtype = "float32",
                           .cache_dtype = "float32",
                           .cache_kind = "mla",
                           .vocab_size = m->c.vocab,
                           .context_length = m->c.context_length,
                           .n_layers = 1,
                           .n_heads = 1,
                           .hidden_size = 1,
                           .bos = 256,
                           .default_temperature = 1,
                           .default_top_p = 1,
                           .fingerprint = 42};
    if (m->c.eos >= 0) m->info.eos[m->info.n_eos++] = m->c.eos;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    *out = m;
    return LTD_OK;
}

const model_info *model_get_info(const model *m) { return &m->info; }

static int64_t real_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_us(int64_t us)
{
    struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    if (us > 0) nanosleep(&t, NULL);
}

static void *deliver(void *arg)
{
    model *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (m->complete == m->launched && !m->stop) pthread_cond_wait(&m->changed, &m->lock);
        if (m->complete == m->launched) break;
        int64_t ready = m->ring[m->complete % MODEL_STEPS_IN_FLIGHT].ready_us;
        pthread_mutex_unlock(&m->lock);
        sleep_us(ready - real_ns() / 1000);
        pthread_mutex_lock(&m->lock);
        m->complete++;
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

ltd_status model_start(model *m, const model_limits *l, int32_t *n_slots, ltd_err *err)
{
    m->l = *l;
    *n_slots = m->n_slots = l->max_slots ? (int32_t)l->max_slots : m->c.n_slots;
    m->table = ltd_calloc((size_t)l->n_req_rows * (size_t)m->info.context_length, sizeof *m->table);
    m->last = ltd_calloc((size_t)l->n_req_rows, sizeof *m->last);
    m->kv = ltd_calloc((size_t)m->n_slots + 1, sizeof *m->kv);
    for (int32_t i = 0; i <= m->n_slots; i++) m->kv[i].pos = -1;
    for (int i = 0; i < MODEL_STEPS_IN_FLIGHT; i++) {
        size_t n = (size_t)l->max_samples;
        m->ring[i].tokens = ltd_calloc(n, sizeof(int32_t));
        m->ring[i].logprobs = ltd_calloc(n, sizeof(float));
        m->ring[i].top_ids = ltd_calloc(n * KERN_MAX_TOP_LOGPROBS, sizeof(int32_t));
        m->ring[i].top_logprobs = ltd_calloc(n * KERN_MAX_TOP_LOGPROBS, sizeof(float));
    }
    if (m->c.timing != FAKE_THREAD) return LTD_OK;
    m->has_thread = pthread_create(&m->thread, NULL, deliver, m) == 0;
    return m->has_thread ? LTD_OK : ltd_fail(err, LTD_NO_MEMORY, "fake model: no thread");
}

void model_close(model *m)
{
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (m->has_thread) pthread_join(m->thread, NULL);
    for (int i = 0; i < MODEL_STEPS_IN_FLIGHT; i++) {
        ltd_free(m->ring[i].tokens);
        ltd_free(m->ring[i].logprobs);
        ltd_free(m->ring[i].top_ids);
        ltd_free(m->ring[i].top_logprobs);
    }
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    ltd_free(m->kv);
    ltd_free(m->last);
    ltd_free(m->table);
    ltd_free(m);
}

static void count(model *m, const model_plan *p)
{
    int32_t in_flight = (int32_t)(m->launched + 1 - m->waited);
    if (in_flight > m->stats.max_in_flight) m->stats.max_in_flight = in_flight;
    m->stats.steps++;
    m->stats.rows += p->n_rows;
    m->stats.absorbed += p->n_absorbed;
    m->stats.segments += p->n_segments;
    m->stats.samples += p->n_samples;
    m->stats.edits += p->n_edits;
    m->stats.edit_slots += p->n_edit_slots;
}

ltd_status model_launch(model *m, const model_plan *p)
{
    ltd_err err;
    int64_t t0 = real_ns();
    if (m->launched - m->waited >= MODEL_STEPS_IN_FLIGHT)
        return LTD_FULL; /* launched moves on this thread only */
    LTD_CHECK(p->n_rows > 0 && p->step == ++m->last_step, "fake: step=%lld of %d rows after %lld",
              (long long)p->step, p->n_rows, (long long)m->last_step - 1);
    if (!m->c.no_checks)
        LTD_CHECK(model_plan_check(p, &m->l, m->n_slots, m->info.vocab_size, &err) == LTD_OK, "fake: %s",
                  err.text);
    if (m->on_plan) m->on_plan(m->on_plan_user, p);
    count(m, p);
    fake_result *r = &m->ring[m->launched % MODEL_STEPS_IN_FLIGHT];
    if (!m->c.no_checks)
        memset(r->tokens, 0x7f,
               sizeof(int32_t) * (size_t)m->l.max_samples); /* who still reads the older result notices */
    r->step = p->step;
    r->n = p->n_samples;
    if (p->step == m->c.fail_step) m->lost = true;
    r->status = m->lost ? LTD_DEVICE : LTD_OK;
    if (!m->lost) run_step(m, p, r);
    const fake_result *before = &m->ring[(m->launched + 1) % MODEL_STEPS_IN_FLIGHT];
    int64_t now = real_ns() / 1000;
    r->ready_us =
        (before->ready_us > now ? before->ready_us : now) + m->c.step_us + (int64_t)(m->c.row_us * p->n_rows);
    pthread_mutex_lock(&m->lock);
    m->launched++;
    if (m->c.timing == FAKE_EAGER) m->complete = m->launched;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    m->stats.spent_ns += real_ns() - t0;
    return LTD_OK;
}

ltd_status model_wait(model *m, model_result *out)
{
    if (m->waited == m->launched) return LTD_NOT_FOUND;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    int64_t t0 = real_ns();
    pthread_mutex_lock(&m->lock);
    if ((m->c.timing == FAKE_LAZY || m->c.timing == FAKE_RANDOM) && m->complete == m->waited) m->complete++;
    while (m->complete <= m->waited)
        LTD_CHECK(pthread_cond_timedwait(&m->changed, &m->lock, &until) == 0,
                  "fake: step %lld was waited for and never completed", (long long)m->waited + 1);
    pthread_mutex_unlock(&m->lock);
    const fake_result *r = &m->ring[m->waited++ % MODEL_STEPS_IN_FLIGHT];
    *out = (model_result){.step = r->step, .status = r->status};
    if (r->status == LTD_OK) {
        out->n_samples = r->n;
        out->tokens = r->tokens;
        out->logprobs = r->logprobs;
        out->top_ids = r->top_ids;
        out->top_logprobs = r->top_logprobs;
        out->device_us = m->c.step_us;
    }
    m->stats.spent_ns += real_ns() - t0;
    return LTD_OK;
}

bool model_done(const model *m)
{
    model *mine = (model *)m;
    pthread_mutex_lock(&mine->lock);
    if (m->c.timing == FAKE_RANDOM && m->complete < m->launched && mix(++mine->asked) & 1) mine->complete++;
    bool done = m->complete > m->waited;
    pthread_mutex_unlock(&mine->lock);
    return done;
}

ltd_status model_perplexity(model *m, const struct tok *t, const char *text, size_t n, int32_t window,
                            model_ppl *out, ltd_err *err)
{
    (void)m, (void)t, (void)text, (void)n, (void)window, (void)out;
    return ltd_fail(err, LTD_UNSUPPORTED, "the fake model has no perplexity");
}

/* ---------------------------------------------------------------- for tests */

void fake_model_complete(model *m, int32_t n)
{
    pthread_mutex_lock(&m->lock);
    m->complete += n;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

fake_stats fake_model_stats(const model *m) { return m->stats; }

void fake_model_on_plan(model *m, fake_plan_fn *fn, void *user)
{
    m->on_plan = fn;
    m->on_plan_user = user;
}
