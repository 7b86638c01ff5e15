/* weights.c - the tensors of a checkpoint onto a device.
 * One walk over the model names every tensor with the shape that config.json gives it.  It runs twice: dry,
 * to collect all that is missing or misshapen (so that a person sees the whole of it in one line) and to
 * learn sizes; then for real.  So what is checked is what is loaded. */
#include "model/model_private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_FEW = 4, NAME_BYTES = 256, VECTOR_ALIGN = 64 /* floats: 256 bytes */ };

/* Faults of one kind: how many, and the first few in words. */
typedef struct faults {
    int64_t n;
    ltd_buf first;
} faults;

typedef struct loader {
    const model_config *c;
    const st_files *f;
    kern_backend *backend;
    bool dry;
    model_weights *w;
    bool *used; /* [st_count] */
    faults missing, shape, dtype;
    float *vectors;          /* host image of w->vectors */
    size_t n_vectors;        /* floats so far */
    kern_weight_part *parts; /* the matrix in the making: parts beyond n_parts are room */
    int32_t n_parts, cap_parts;
    ltd_status st; /* of the backend; sticks */
    ltd_err *err;
} loader;

static void note_fault(faults *s, const char *fmt, ...) LTD_PRINTF(2, 3);
static void note_fault(faults *s, const char *fmt, ...)
{
    if (s->n++ >= FIRST_FEW) return;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ltd_buf_fmt(&s->first, "%s%s", s->first.len ? ", " : "", text);
}

/* ---------------------------------------------------------------- one tensor */

static void shape_text(char out[128], int32_t rank, const int64_t *shape)
{
    size_t n = 0;
    out[n++] = '[';
    for (int32_t i = 0; i < rank && n < 100; i++)
        n += (size_t)snprintf(out + n, 128 - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    snprintf(out + n, 128 - n, "]");
}

static kern_dtype device_dtype(st_dtype t)
{
    return t == ST_BF16 ? KERN_BF16 : t == ST_F16 ? KERN_F16 : KERN_F32;
}

/* The tensor by that name, of exactly that shape; NULL after noting what is wrong with it. */
static const st_tensor *need(loader *l, const char *name, int32_t rank, const int64_t *shape)
{
    const st_tensor *t = st_find(l->f, name);
    if (!t) {
        note_fault(&l->missing, "%s", name);
        return NULL;
    }
    l->used[t - st_at(l->f, 0)] = true;
    int64_t elements = 1;
    bool fits = t->rank == rank;
    for (int32_t i = 0; i < rank; i++) elements *= shape[i];
    for (int32_t i = 0; i < rank && fits; i++) fits = t->shape[i] == shape[i];
    if (!fits) {
        char is[128], expected[128];
        shape_text(is, t->rank, t->shape);
        shape_text(expected, rank, shape);
        note_fault(&l->shape, "%s is %s in %s but %s by config.json", name, is, t->file, expected);
    }
    if (t->dtype == ST_OTHER) note_fault(&l->dtype, "%s is %s in %s", name, t->dtype_name, t->file);
    if (!fits || t->dtype == ST_OTHER) return NULL;
    if (l->dry) l->w->n_parameters += elements;
    return t;
}

static float f16_to_f32(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    float v = exponent == 31 ? (fraction ? NAN : INFINITY)
              : exponent     ? ldexpf((float)(fraction | 1024), exponent - 25)
                             : ldexpf((float)fraction, -24);
    return h >> 15 ? -v : v;
}

/* A norm or a bias: f32 on the device whatever it is in the file. */
static void take_vector(loader *l, const char *prefix, const char *suffix, int32_t n, float **out)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    const st_tensor *t = need(l, name, 1, (int64_t[]){n});
    size_t at = l->n_vectors;
    l->n_vectors += ((size_t)n + VECTOR_ALIGN - 1) / VECTOR_ALIGN * VECTOR_ALIGN;
    if (l->dry || !t) return;
    *out = l->w->vectors + at;
    for (int32_t i = 0; i < n; i++) {
        const char *src = (const char *)t->data + (size_t)i * kern_dtype_bytes(device_dtype(t->dtype));
        uint16_t half;
        float value;
        memcpy(&half, src, sizeof half);
        if (t->dtype == ST_F32)
            memcpy(&value, src, sizeof value);
        else
            value = t->dtype == ST_BF16 ? kern_bf16_to_f32(half) : f16_to_f32(half);
        l->vectors[at + (size_t)i] = value;
    }
}

/* ---------------------------------------------------------------- matrices, part by part */

static void push_part(loader *l, const void *data, kern_dtype dtype, int32_t n)
{
    if (l->n_parts == l->cap_parts) {
        l->cap_parts = l->cap_parts ? l->cap_parts * 2 : 64;
        l->parts = ltd_realloc(l->parts, (size_t)l->cap_parts * sizeof *l->parts);
    }
    l->parts[l->n_parts++] = (kern_weight_part){.data = data, .dtype = dtype, .n = n};
}

/* Adds [n][k] as the next part of the weight in the making. */
static void take_part(loader *l, const char *prefix, const char *suffix, int32_t n, int32_t k)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    const st_tensor *t = need(l, name, 2, (int64_t[]){n, k});
    if (t && !l->dry) push_part(l, t->data, device_dtype(t->dtype), n);
}

/* Adds `count` matrices of one part each, from a tensor [count][n][k]. */
static void take_stack(loader *l, const char *prefix, const char *suffix, int32_t count, int32_t n, int32_t k)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    const st_tensor *t = need(l, name, 3, (int64_t[]){count, n, k});
    if (!t || l->dry) return;
    size_t one = t->bytes / (size_t)count;
    for (int32_t i = 0; i < count; i++)
        push_part(l, (const char *)t->data + (size_t)i * one, device_dtype(t->dtype), n);
}

/* Makes the weight of the parts taken since the last call. */
static void make_weight(loader *l, const char *prefix, const char *what, int32_t count, int32_t k,
                        kern_weight **out)
{
    int32_t n_parts = l->n_parts;
    l->n_parts = 0;
    if (l->dry || l->st != LTD_OK) return;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", prefix, what);
    kern_weight_desc d = {
        .name = name, .count = count, .n_parts = n_parts / count, .parts = l->parts, .k = k};
    LTD_CHECK(n_parts > 0 && n_parts % count == 0, "%s: %d parts of %d matrices", name, n_parts, count);
    l->st = l->backend->ops->weight_create(l->backend, &d, out, l->err);
    if (l->st == LTD_OK) l->w->bytes += l->backend->ops->weight_bytes(*out);
}

/* ---------------------------------------------------------------- the walk */

static void take_attention(loader *l, const char *p, layer_weights *w)
{
    const model_config *c = l->c;
    int32_t d_q = c->n_heads * (c->d_nope + c->d_rope), q_lora = c->q_lora_rank;
    take_part(l, p, q_lora ? "self_attn.q_a_proj.weight" : "self_attn.q_proj.weight", q_lora ? q_lora : d_q,
              c->hidden_size);
    take_part(l, p, "self_attn.kv_a_proj_with_mqa.weight", c->kv_lora_rank + c->d_rope, c->hidden_size);
    make_weight(l, p, "self_attn.qkv_a", 1, c->hidden_size, &w->qkv_a);
    if (q_lora) {
        take_vector(l, p, "self_attn.q_a_layernorm.weight", q_lora, &w->q_a_norm);
        take_part(l, p, "self_attn.q_b_proj.weight", d_q, q_lora);
        make_weight(l, p, "self_attn.q_b", 1, q_lora, &w->q_b);
    }
    take_vector(l, p, "self_attn.kv_a_layernorm.weight", c->kv_lora_rank, &w->kv_a_norm);
    take_part(l, p, "self_attn.kv_b_proj.weight", c->n_heads * (c->d_nope + c->d_v), c->kv_lora_rank);
    make_weight(l, p, "self_attn.kv_b", 1, c->kv_lora_rank, &w->kv_b);
    take_part(l, p, "self_attn.o_proj.weight", c->hidden_size, c->n_heads * c->d_v);
    make_weight(l, p, "self_attn.o", 1, c->n_heads * c->d_v, &w->o);
}

/* p: "model.layers.L.mlp." or "model.layers.L.mlp.shared_experts." */
static void take_mlp(loader *l, const char *p, int32_t inter, layer_weights *w)
{
    int32_t hidden = l->c->hidden_size;
    w->inter = inter;
    take_part(l, p, "gate_proj.weight", inter, hidden);
    take_part(l, p, "up_proj.weight", inter, hidden);
    make_weight(l, p, "gate_up", 1, hidden, &w->gate_up);
    take_part(l, p, "down_proj.weight", hidden, inter);
    make_weight(l, p, "down", 1, inter, &w->down);
}

/* The experts are one tensor each, or, as transformers 5 may save them, stacked. */
static void take_experts(loader *l, const char *p, layer_weights *w)
{
    int32_t hidden = l->c->hidden_size, inter = l->c->moe_intermediate_size, n = l->c->n_experts;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%sexperts.gate_up_proj", p);
    bool stacked = st_find(l->f, name) != NULL;
    for (int32_t pass = 0; pass < 2; pass++) {
        if (stacked && pass == 0) take_stack(l, p, "experts.gate_up_proj", n, 2 * inter, hidden);
        if (stacked && pass == 1) take_stack(l, p, "experts.down_proj", n, hidden, inter);
        for (int32_t e = 0; e < n && !stacked; e++) {
            char q[NAME_BYTES];
            snprintf(q, sizeof q, "%.128sexperts.%d.", p, e);
            if (pass == 0) {
                take_part(l, q, "gate_proj.weight", inter, hidden);
                take_part(l, q, "up_proj.weight", inter, hidden);
            } else {
                take_part(l, q, "down_proj.weight", hidden, inter);
            }
        }
        if (pass == 0)
            make_weight(l, p, "experts.gate_up", n, hidden, &w->experts_gate_up);
        else
            make_weight(l, p, "experts.down", n, inter, &w->experts_down);
    }
}

static void take_moe(loader *l, const char *p, layer_weights *w)
{
    const model_config *c = l->c;
    take_part(l, p, "gate.weight", c->n_experts, c->hidden_size);
    make_weight(l, p, "gate", 1, c->hidden_size, &w->router);
    if (c->route == KERN_ROUTE_NOAUX_TC)
        take_vector(l, p, "gate.e_score_correction_bias", c->n_experts, &w->router_bias);
    take_experts(l, p, w);
    if (!c->n_shared) return;
    char shared[NAME_BYTES];
    snprintf(shared, sizeof shared, "%.128sshared_experts.", p);
    take_mlp(l, shared, c->n_shared * c->moe_intermediate_size, w);
}

static void take_layer(loader *l, int32_t layer, layer_weights *w)
{
    char p[64], mlp[80];
    snprintf(p, sizeof p, "model.layers.%d.", layer);
    snprintf(mlp, sizeof mlp, "%smlp.", p);
    take_vector(l, p, "input_layernorm.weight", l->c->hidden_size, &w->input_norm);
    take_attention(l, p, w);
    take_vector(l, p, "post_attention_layernorm.weight", l->c->hidden_size, &w->post_norm);
    w->moe = model_layer_is_moe(l->c, layer);
    if (w->moe)
        take_moe(l, mlp, w);
    else
        take_mlp(l, mlp, l->c->intermediate_size, w);
}

static void walk(loader *l, bool dry)
{
    const model_config *c = l->c;
    model_weights *w = l->w;
    l->dry = dry;
    l->n_vectors = 0;
    take_part(l, "", "model.embed_tokens.weight", c->vocab_size, c->hidden_size);
    make_weight(l, "", "embed_tokens", 1, c->hidden_size, &w->embed);
    for (int32_t i = 0; i < c->n_layers && l->st == LTD_OK; i++) take_layer(l, i, &w->layers[i]);
    take_vector(l, "", "model.norm.weight", c->hidden_size, &w->final_norm);
    if (c->tied) {
        w->lm_head = w->embed;
        return;
    }
    take_part(l, "", "lm_head.weight", c->vocab_size, c->hidden_size);
    make_weight(l, "", "lm_head", 1, c->hidden_size, &w->lm_head);
}

/* ---------------------------------------------------------------- what does not fit */

/* Nothing is lost with these: layers past the last (a prediction layer), tables that the forward pass
 * computes. */
static bool harmless(const loader *l, const char *name)
{
    static const char layers[] = "model.layers.", inv_freq[] = "rotary_emb.inv_freq";
    size_t n = strlen(name);
    long long layer;
    if (strncmp(name, layers, sizeof layers - 1) == 0 &&
        sscanf(name + sizeof layers - 1, "%9lld.", &layer) == 1 && layer >= l->c->n_layers)
        return true;
    return n >= sizeof inv_freq - 1 && strcmp(name + n - (sizeof inv_freq - 1), inv_freq) == 0;
}

static void warn_unexpected(loader *l)
{
    faults extra = {0};
    for (int32_t i = 0; i < st_count(l->f); i++) {
        const char *name = st_at(l->f, i)->name;
        if (l->used[i] || harmless(l, name)) continue;
        if (l->c->tied && strcmp(name, "lm_head.weight") == 0)
            log_info("model", "%s: lm_head.weight is not used, since config.json ties it to the embeddings",
                     st_path(l->f));
        else
            note_fault(&extra, "%.200s", name);
    }
    if (extra.n)
        log_warn("model", "%s: %lld unexpected tensors are not used: %s%s", st_path(l->f), (long long)extra.n,
                 extra.first.data, extra.n > FIRST_FEW ? ", ..." : "");
    ltd_buf_deinit(&extra.first);
}

static void add_faults(ltd_buf *line, const faults *s, const char *what)
{
    if (s->n)
        ltd_buf_fmt(line, "%s%lld %s: %s%s", line->len ? "; " : "", (long long)s->n, what, s->first.data,
                    s->n > FIRST_FEW ? ", ..." : "");
}

static ltd_status report_faults(loader *l)
{
    if (!l->missing.n && !l->shape.n && !l->dtype.n) return LTD_OK;
    ltd_buf line = {0};
    add_faults(&line, &l->missing, "tensors missing");
    add_faults(&line, &l->shape, "of the wrong shape");
    add_faults(&line, &l->dtype, "of a dtype that is not served (BF16, F16 and F32 are)");
    ltd_status st = l->missing.n ? LTD_NOT_FOUND : l->shape.n ? LTD_CORRUPT : LTD_UNSUPPORTED;
    ltd_fail(l->err, st, "%s: the tensors do not fit config.json: %s", st_path(l->f), line.data);
    ltd_buf_deinit(&line);
    return st;
}

/* ---------------------------------------------------------------- the public part */

void model_config_settle(model_config *c, const st_files *f)
{
    if (c->q_lora_stated) return;
    const st_tensor *q_a = st_find(f, "model.layers.0.self_attn.q_a_proj.weight");
    if (q_a && q_a->rank == 2 && q_a->shape[0] > 0 && q_a->shape[0] <= 65536)
        c->q_lora_rank = (int32_t)q_a->shape[0];
    else if (!q_a && st_find(f, "model.layers.0.self_attn.q_proj.weight"))
        c->q_lora_rank = 0;
}

static ltd_status load(loader *l, const kern_ctx *ctx)
{
    const kern_ops *ops = l->backend->ops;
    model_weights *w = l->w;
    walk(l, true);
    ltd_status st = report_faults(l);
    if (st != LTD_OK) return st;
    warn_unexpected(l);

    size_t vector_bytes = l->n_vectors * sizeof(float);
    void *device = NULL;
    st = ops->alloc(l->backend, vector_bytes, &device);
    if (st != LTD_OK)
        return ltd_fail(l->err, st, "%s: no device memory for the norms, %zu bytes", st_path(l->f),
                        vector_bytes);
    w->vectors = device;
    w->bytes = vector_bytes;
    l->vectors = ltd_calloc(l->n_vectors, sizeof(float));
    walk(l, false);
    if (l->st != LTD_OK) return l->st;
    st = ops->upload(ctx, w->vectors, l->vectors, vector_bytes);
    if (st == LTD_OK) st = ops->sync(ctx);
    return st == LTD_OK ? st
                        : ltd_fail(l->err, st, "%s: the device did not take the norms: %s", st_path(l->f),
                                   ltd_status_text(st));
}

ltd_status model_weights_load(const model_config *c, const st_files *f, kern_backend *b, const kern_ctx *ctx,
                              model_weights **out, ltd_err *err)
{
    int64_t start_us = ltd_now_us();
    model_weights *w = ltd_calloc(1, sizeof *w);
    w->backend = b;
    w->n_layers = c->n_layers;
    w->layers = ltd_calloc((size_t)c->n_layers, sizeof *w->layers);
    loader l = {.c = c, .f = f, .backend = b, .w = w, .err = err};
    l.used = ltd_calloc((size_t)st_count(f) + 1, sizeof *l.used);
    ltd_status st = load(&l, ctx);
    ltd_buf_deinit(&l.missing.first);
    ltd_buf_deinit(&l.shape.first);
    ltd_buf_deinit(&l.dtype.first);
    ltd_free(l.vectors);
    ltd_free(l.parts);
    ltd_free(l.used);
    if (st != LTD_OK) {
        model_weights_destroy(w);
        return st;
    }
    log_info("model", "weights=loaded parameters=%lld device_bytes=%zu ms=%lld", (long long)w->n_parameters,
             w->bytes, (long long)(ltd_now_us() - start_us) / 1000);
    *out = w;
    return LTD_OK;
}

void model_weights_destroy(model_weights *w)
{
    if (!w) return;
    const kern_ops *ops = w->backend->ops;
    for (int32_t i = 0; i < w->n_layers; i++) {
        layer_weights *y = &w->layers[i];
        kern_weight *all[] = {y->qkv_a,       y->q_b,  y->kv_b,   y->o,
                              y->gate_up,     y->down, y->router, y->experts_gate_up,
                              y->experts_down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (all[k]) ops->weight_destroy(w->backend, all[k]);
    }
    if (w->lm_head && w->lm_head != w->embed) ops->weight_destroy(w->backend, w->lm_head);
    if (w->embed) ops->weight_destroy(w->backend, w->embed);
    if (w->vectors) ops->free(w->backend, w->vectors);
    ltd_free(w->layers);
    ltd_free(w);
}
