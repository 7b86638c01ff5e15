/* model.c - a checkpoint's life: opened (files, device, weights), started (pool, buffers, thread), closed. */
#include <stdio.h>
#include <string.h>

#include "model/ranks.h"

struct model {
    model_config config;
    model_info info;
    st_files *files; /* mapped only while weights load */
    kern_backend *backend;
    kern_ctx *ctx;
    model_weights *weights;
    pool_kind kind;
    kern_dtype act, cache;
    double mem_fraction;
    int32_t context_block;
    void *cos_sin;
    fwd fwd;
    ranks *ranks; /* NULL until started */
};

static const char *dtype_name(kern_dtype t) { return t == KERN_BF16 ? "bfloat16" : "float32"; }

static kern_dtype pick_dtype(opt_dtype o, kern_dtype automatic)
{
    return o == OPT_DTYPE_F32 ? KERN_F32 : o == OPT_DTYPE_BF16 ? KERN_BF16 : automatic;
}

static ltd_status open_device(const ltd_options *o, model *m, ltd_err *err)
{
    const char *name = o->device == OPT_DEVICE_CPU ? "cpu" : "cuda";
    if (o->device == OPT_DEVICE_AUTO) {
        ltd_err reason;
        if (!kern_backend_can("cuda", &reason)) {
            log_info("model", "device=cpu chosen by auto: %s", reason.text);
            name = "cpu";
        }
    }
    kern_backend_options bo = {.n_threads = (int32_t)o->cpu_threads};
    ltd_status st = kern_backend_open(name, &bo, &m->backend, err);
    if (st != LTD_OK) return st;
    return m->backend->ops->ctx_create(m->backend, 0, 0, 0, &m->ctx, err);
}

static ltd_status fill_info(const ltd_options *o, model *m, ltd_err *err)
{
    const model_config *c = &m->config;
    model_info *i = &m->info;
    if (o->context_length > c->max_position)
        return ltd_fail(
            err, LTD_INVALID,
            "--context-length %lld is over the checkpoint's max_position_embeddings %d; give at most that",
            (long long)o->context_length, c->max_position);
    snprintf(i->architecture, sizeof i->architecture, "%s", c->architecture);
    snprintf(i->device, sizeof i->device, "%s", m->backend->description);
    kern_dtype automatic = strcmp(m->backend->ops->name, "cuda") == 0 ? KERN_BF16 : KERN_F32;
    m->act = pick_dtype(o->dtype, automatic);
    m->cache = pick_dtype(o->kv_cache_dtype, m->act);
    m->kind = o->disable_mla ? POOL_MHA : POOL_MLA;
    m->context_block = (int32_t)o->context_block;
    m->mem_fraction = o->mem_fraction;
    snprintf(i->dtype, sizeof i->dtype, "%s", dtype_name(m->act));
    snprintf(i->cache_dtype, sizeof i->cache_dtype, "%s", dtype_name(m->cache));
    snprintf(i->cache_kind, sizeof i->cache_kind, "%s", m->kind == POOL_MLA ? "mla" : "mha");
    i->vocab_size = c->vocab_size;
    i->context_length = o->context_length ? (int32_t)o->context_length : c->max_position;
    i->n_layers = c->n_layers;
    i->n_heads = c->n_heads;
    i->hidden_size = c->hidden_size;
    memcpy(i->eos, c->eos, sizeof i->eos);
    i->n_eos = c->n_eos;
    i->bos = c->bos;
    i->default_temperature = c->temperature;
    i->default_top_p = c->top_p;
    i->default_min_p = c->min_p;
    i->default_top_k = c->top_k_default;
    return LTD_OK;
}

static ltd_status load_rope(model *m, ltd_err *err)
{
    size_t bytes = (size_t)m->info.context_length * (size_t)m->config.d_rope * sizeof(float);
    float *table = ltd_alloc(bytes);
    model_rope_table(&m->config, m->info.context_length, table);
    ltd_status st = m->backend->ops->alloc(m->backend, bytes, &m->cos_sin);
    if (st == LTD_OK) st = m->backend->ops->upload(m->ctx, m->cos_sin, table, bytes);
    if (st == LTD_OK) st = m->backend->ops->sync(m->ctx);
    ltd_free(table);
    return st == LTD_OK
               ? LTD_OK
               : ltd_fail(err, st, "rotary table: no %.1f MiB of device memory; lower --context-length",
                          (double)bytes / (1 << 20));
}

ltd_status model_open(const ltd_options *o, model **out, ltd_err *err)
{
    int64_t t0 = ltd_now_us();
    model *m = ltd_calloc(1, sizeof *m);
    ltd_status st = model_config_read(o->model, &m->config, err);
    if (st == LTD_OK) st = open_device(o, m, err);
    if (st == LTD_OK) st = fill_info(o, m, err);
    if (st == LTD_OK) st = st_open(o->model, &m->files, err);
    if (st == LTD_OK) {
        model_config_settle(&m->config, m->files);
        m->info.fingerprint = st_fingerprint(m->files);
        st = model_weights_load(&m->config, m->files, m->backend, m->ctx, &m->weights, err);
    }
    if (st == LTD_OK) st = load_rope(m, err);
    st_close(m->files);
    m->files = NULL;
    if (st != LTD_OK) {
        model_close(m);
        return st;
    }
    m->info.n_parameters = m->weights->n_parameters;
    m->info.weight_bytes = m->weights->bytes;
    log_info("model",
             "loaded dir=%s architecture=%s layers=%d parameters=%lld weights_mib=%.1f device=\"%s\" "
             "dtype=%s cache=%s/%s ms=%lld",
             o->model, m->info.architecture, m->info.n_layers, (long long)m->info.n_parameters,
             (double)m->info.weight_bytes / (1 << 20), m->info.device, m->info.dtype, m->info.cache_kind,
             m->info.cache_dtype, (long long)(ltd_now_us() - t0) / 1000);
    *out = m;
    return LTD_OK;
}

const model_info *model_get_info(const model *m) { return &m->info; }

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }

static void init_fwd(model *m, const model_limits *l)
{
    const model_config *c = &m->config;
    int64_t d_q = c->q_lora_rank ? c->q_lora_rank : (int64_t)c->n_heads * (c->d_nope + c->d_rope);
    m->fwd = (fwd){.c = c,
                   .w = m->weights,
                   .ctx = m->ctx,
                   .backend = m->backend,
                   .cos_sin = m->cos_sin,
                   .act = m->act,
                   .mha = m->kind == POOL_MHA,
                   .context = m->info.context_length,
                   .context_block = m->context_block,
                   .limits = *l,
                   .cap_absorbed = min32(l->max_rows, l->n_req_rows),
                   .cap_logits = min32(min32(l->max_rows, l->max_samples), 256),
                   .qkv_stride = d_q + c->kv_lora_rank + c->d_rope};
}

static pool_tokens_desc pool_desc(const model *m, int32_t n_slots)
{
    const model_config *c = &m->config;
    return (pool_tokens_desc){.kind = m->kind,
                              .dtype = m->cache,
                              .n_layers = c->n_layers,
                              .n_slots = n_slots,
                              .n_heads = c->n_heads,
                              .d_c = c->kv_lora_rank,
                              .d_rope = c->d_rope,
                              .d_nope = c->d_nope,
                              .d_v = c->d_v};
}

/* A CPU shares its memory with everything else on the machine: without --max-total-tokens the pool stays modest there. */
static int64_t max_slots(const model *m, const model_limits *l)
{
    if (l->max_slots || strcmp(m->backend->ops->name, "cuda") == 0) return l->max_slots;
    int64_t four = 4 * (int64_t)m->info.context_length;
    return four > 65536 ? four : 65536;
}

static ltd_status size_pool(model *m, const model_limits *l, int32_t *n_slots, ltd_err *err)
{
    pool_tokens_desc d = pool_desc(m, 0);
    pool_sizing s = {.memory_total = m->backend->memory_total,
                     .fraction = m->mem_fraction,
                     .weights = m->weights->bytes,
                     .workspaces = fwd_buffers_bytes(&m->fwd),
                     .other = (size_t)m->info.context_length * (size_t)m->config.d_rope * 4 +
                              (size_t)l->n_req_rows * (size_t)m->info.context_length * 4,
                     .slot_bytes = pool_tokens_slot_bytes(&d),
                     .max_slots = max_slots(m, l),
                     .useful_slots = (int64_t)l->n_req_rows * m->info.context_length};
    ltd_status st = pool_size_slots(&s, 2, n_slots, err);
    if (st != LTD_OK) return st;
    if (*n_slots < l->max_slots)
        log_warn("mempool", "max_total_tokens=%lld slots=%d: no more fit, or could be used",
                 (long long)l->max_slots, *n_slots);
    ltd_buf table = {0};
    pool_sizing_print(&s, *n_slots, &table);
    for (char *line = table.data, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        log_info("mempool", "%s", line);
    }
    ltd_buf_deinit(&table);
    return LTD_OK;
}

ltd_status model_start(model *m, const model_limits *l, int32_t *n_slots, ltd_err *err)
{
    LTD_CHECK(!m->ranks, "model_start called twice");
    ltd_status st;
    init_fwd(m, l);
    if ((st = size_pool(m, l, n_slots, err)) != LTD_OK) return st;
    pool_tokens_desc d = pool_desc(m, *n_slots);
    if ((st = pool_tokens_create(m->backend, &d, &m->fwd.pool, err)) != LTD_OK) return st;
    if ((st = pool_req_mirror_create(m->ctx, l->n_req_rows, m->info.context_length, &m->fwd.mirror, err)) !=
        LTD_OK)
        return st;
    if ((st = fwd_buffers_create(&m->fwd, err)) != LTD_OK) return st;
    return ranks_create(&m->fwd, &m->ranks, err);
}

void model_close(model *m)
{
    if (!m) return;
    ranks_destroy(m->ranks);
    if (m->fwd.ctx) fwd_buffers_destroy(&m->fwd);
    pool_req_mirror_destroy(m->fwd.mirror);
    pool_tokens_destroy(m->fwd.pool);
    if (m->cos_sin) m->backend->ops->free(m->backend, m->cos_sin);
    model_weights_destroy(m->weights);
    if (m->ctx) m->backend->ops->ctx_destroy(m->ctx);
    kern_backend_close(m->backend);
    ltd_free(m);
}

ltd_status model_launch(model *m, const model_plan *p) { return ranks_launch(m->ranks, p); }
ltd_status model_wait(model *m, model_result *r) { return ranks_wait(m->ranks, r); }
bool model_done(const model *m) { return ranks_done(m->ranks); }

void model__capture(model *m, float *logits) { m->fwd.capture = logits; }
const model_limits *model__limits(const model *m) { return &m->fwd.limits; }
int32_t model__n_slots(const model *m) { return pool_tokens_get_desc(m->fwd.pool)->n_slots; }
