/* test_model_weights.c - checkpoints onto a device: D38 case by case, and where each tensor's values end up.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "model/model_private.h"
#include "tests/support/checkpoint_writer.h"

/* ---------------------------------------------------------------- a device and a checkpoint on it */

typedef struct loaded {
    model_config c;
    kern_backend *backend;
    kern_ctx *ctx;
    model_weights *w;
    ltd_status st;
    ltd_err err;
    char log[8192]; /* warnings and errors of the load */
} loaded;

/* Config, files, weights, as model_open goes through them; st says where it ended. */
static void load(loaded *l, const char *dir)
{
    *l = (loaded){0};
    FILE *lines = tmpfile();
    assert_non_null(lines);
    log_start(&(log_config){.level = LOG_WARN, .fd = fileno(lines)});
    assert_int_equal(kern_backend_open("cpu-ref", &(kern_backend_options){0}, &l->backend, &l->err), LTD_OK);
    assert_int_equal(l->backend->ops->ctx_create(l->backend, 0, 0, 0, &l->ctx, &l->err), LTD_OK);
    st_files *f = NULL;
    l->st = model_config_read(dir, &l->c, &l->err);
    if (l->st == LTD_OK) l->st = st_open(dir, &f, &l->err);
    if (l->st == LTD_OK) model_config_settle(&l->c, f);
    if (l->st == LTD_OK) l->st = model_weights_load(&l->c, f, l->backend, l->ctx, &l->w, &l->err);
    st_close(f);
    log_stop();
    rewind(lines);
    l->log[fread(l->log, 1, sizeof l->log - 1, lines)] = '\0';
    fclose(lines);
}

static void unload(loaded *l)
{
    model_weights_destroy(l->w);
    l->backend->ops->ctx_destroy(l->ctx);
    kern_backend_close(l->backend);
}

/* Writes c to a folder of its own and loads it from there. */
static void load_checkpoint(loaded *l, const support_checkpoint *c)
{
    char *dir = support_dir_create();
    support_write_checkpoint(c, dir);
    load(l, dir);
    support_dir_remove(dir);
}

static void load_rand(loaded *l, const support_dims *d)
{
    support_checkpoint *c = support_rand(7, d);
    load_checkpoint(l, c);
    support_checkpoint_destroy(c);
    if (l->st != LTD_OK) fail_msg("%s", l->err.text);
    assert_string_equal(l->log, "");
}

static void check_fault(support_checkpoint *c, ltd_status st, const char *const *names)
{
    loaded l;
    load_checkpoint(&l, c);
    support_checkpoint_destroy(c);
    if (l.st != st || strchr(l.err.text, '\n')) fail_msg("%s: %s", ltd_status_name(l.st), l.err.text);
    for (; *names; names++)
        if (!strstr(l.err.text, *names)) fail_msg("\"%s\" is not in: %s", *names, l.err.text);
    assert_null(l.w);
    unload(&l);
}
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---------------------------------------------------------------- values */

static float value_of(const support_tensor *t, int64_t i)
{
    float v;
    uint16_t half;
    if (strcmp(t->dtype, "F32") == 0) {
        memcpy(&v, t->data + i * 4, 4);
        return v;
    }
    assert_string_equal(t->dtype, "BF16");
    memcpy(&half, t->data + i * 2, 2);
    return kern_bf16_to_f32(half);
}

/* Rows first .. first + n of matrix m of w are rows t_first .. of the tensor t (all its leading dimensions
 * taken as rows). */
static void check_rows(loaded *l, const kern_weight *w, int32_t m, int32_t w_rows, int32_t first,
                       const support_tensor *t, int64_t t_first, int32_t n)
{
    int32_t k = (int32_t)t->shape[t->rank - 1];
    float *x = ltd_calloc((size_t)k, sizeof *x), *y = ltd_alloc((size_t)w_rows * sizeof *y);
    const int32_t columns[] = {0, 1, k / 2, k - 1};
    for (size_t j = 0; j < 4; j++) {
        int32_t column = columns[j];
        x[column] = 1;
        kern_matmul_args a = {.w = w,
                              .matrix = m,
                              .x = {.data = x, .stride = k},
                              .out = {.data = y, .stride = w_rows},
                              .rows_cap = 1};
        assert_int_equal(l->backend->ops->matmul(l->ctx, &a), LTD_OK);
        x[column] = 0;
        for (int32_t i = 0; i < n; i++)
            if (y[first + i] != value_of(t, (t_first + i) * k + column))
                fail_msg("%s row %d column %d", t->name, i, column);
    }
    ltd_free(x);
    ltd_free(y);
}

static void check_vector(loaded *l, const float *device, const support_tensor *t)
{
    int32_t n = (int32_t)t->shape[0];
    float *host = ltd_alloc((size_t)n * sizeof *host);
    assert_non_null(device);
    assert_int_equal(l->backend->ops->download(l->ctx, host, device, (size_t)n * sizeof *host), LTD_OK);
    assert_int_equal(l->backend->ops->sync(l->ctx), LTD_OK);
    for (int32_t i = 0; i < n; i++)
        if (host[i] != value_of(t, i)) fail_msg("%s[%d]: %g", t->name, i, (double)host[i]);
    ltd_free(host);
}

static const support_tensor *named(support_checkpoint *c, int layer, const char *suffix)
{
    char name[256];
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, suffix);
    const support_tensor *t = support_find(c, name);
    if (!t) fail_msg("the writer made no %s", name);
    return t;
}

static void check_attention(loaded *l, support_checkpoint *c, int layer)
{
    const support_dims *d = &c->dims;
    const layer_weights *y = &l->w->layers[layer];
    int32_t d_q = d->heads * (d->nope + d->rope), q_rows = d->q_lora ? d->q_lora : d_q,
            kv_a = d->kv_lora + d->rope;
    check_rows(l, y->qkv_a, 0, q_rows + kv_a, 0,
               named(c, layer, d->q_lora ? "self_attn.q_a_proj.weight" : "self_attn.q_proj.weight"), 0,
               q_rows);
    check_rows(l, y->qkv_a, 0, q_rows + kv_a, q_rows, named(c, layer, "self_attn.kv_a_proj_with_mqa.weight"),
               0, kv_a);
    if (d->q_lora) {
        check_rows(l, y->q_b, 0, d_q, 0, named(c, layer, "self_attn.q_b_proj.weight"), 0, d_q);
        check_vector(l, y->q_a_norm, named(c, layer, "self_attn.q_a_layernorm.weight"));
    } else {
        assert_null(y->q_b);
        assert_null(y->q_a_norm);
    }
    int32_t kv_b = d->heads * (d->nope + d->v);
    check_rows(l, y->kv_b, 0, kv_b, 0, named(c, layer, "self_attn.kv_b_proj.weight"), 0, kv_b);
    check_rows(l, y->o, 0, d->hidden, 0, named(c, layer, "self_attn.o_proj.weight"), 0, d->hidden);
    check_vector(l, y->kv_a_norm, named(c, layer, "self_attn.kv_a_layernorm.weight"));
    check_vector(l, y->input_norm, named(c, layer, "input_layernorm.weight"));
    check_vector(l, y->post_norm, named(c, layer, "post_attention_layernorm.weight"));
}

static void check_mlp(loaded *l, support_checkpoint *c, int layer, const char *prefix, int32_t inter)
{
    const layer_weights *y = &l->w->layers[layer];
    char name[128];
    assert_int_equal(y->inter, inter);
    snprintf(name, sizeof name, "%sgate_proj.weight", prefix);
    check_rows(l, y->gate_up, 0, 2 * inter, 0, named(c, layer, name), 0, inter);
    snprintf(name, sizeof name, "%sup_proj.weight", prefix);
    check_rows(l, y->gate_up, 0, 2 * inter, inter, named(c, layer, name), 0, inter);
    snprintf(name, sizeof name, "%sdown_proj.weight", prefix);
    check_rows(l, y->down, 0, c->dims.hidden, 0, named(c, layer, name), 0, c->dims.hidden);
}

static void check_experts(loaded *l, support_checkpoint *c, int layer)
{
    const layer_weights *y = &l->w->layers[layer];
    int32_t inter = c->dims.moe_inter, hidden = c->dims.hidden;
    check_rows(l, y->router, 0, c->dims.experts, 0, named(c, layer, "mlp.gate.weight"), 0, c->dims.experts);
    for (int32_t e = 0; e < c->dims.experts; e++) {
        char name[128];
        if (c->dims.stacked_experts) {
            check_rows(l, y->experts_gate_up, e, 2 * inter, 0, named(c, layer, "mlp.experts.gate_up_proj"),
                       (int64_t)e * 2 * inter, 2 * inter);
            check_rows(l, y->experts_down, e, hidden, 0, named(c, layer, "mlp.experts.down_proj"),
                       (int64_t)e * hidden, hidden);
            continue;
        }
        snprintf(name, sizeof name, "mlp.experts.%d.gate_proj.weight", e);
        check_rows(l, y->experts_gate_up, e, 2 * inter, 0, named(c, layer, name), 0, inter);
        snprintf(name, sizeof name, "mlp.experts.%d.up_proj.weight", e);
        check_rows(l, y->experts_gate_up, e, 2 * inter, inter, named(c, layer, name), 0, inter);
        snprintf(name, sizeof name, "mlp.experts.%d.down_proj.weight", e);
        check_rows(l, y->experts_down, e, hidden, 0, named(c, layer, name), 0, hidden);
    }
}

/* Writes, loads and compares everything. */
static void check_everything(const support_dims *d)
{
    support_checkpoint *c = support_rand(11, d);
    loaded l;
    load_checkpoint(&l, c);
    if (l.st != LTD_OK) fail_msg("%s", l.err.text);
    assert_string_equal(l.log, "");
    int64_t parameters = 0;
    for (int32_t i = 0; i < c->n; i++) {
        int64_t n = 1;
        for (int32_t k = 0; k < c->tensors[i].rank; k++) n *= c->tensors[i].shape[k];
        parameters += n;
    }
    assert_int_equal(l.w->n_parameters, parameters);
    assert_true(l.w->bytes > 0);
    check_rows(&l, l.w->embed, 0, c->dims.vocab, 0, support_find(c, "model.embed_tokens.weight"), 0,
               c->dims.vocab);
    if (c->dims.tied)
        assert_ptr_equal(l.w->lm_head, l.w->embed);
    else
        check_rows(&l, l.w->lm_head, 0, c->dims.vocab, 0, support_find(c, "lm_head.weight"), 0,
                   c->dims.vocab);
    check_vector(&l, l.w->final_norm, support_find(c, "model.norm.weight"));
    for (int32_t i = 0; i < c->dims.layers; i++) {
        check_attention(&l, c, i);
        assert_int_equal(l.w->layers[i].moe, i >= c->dims.first_dense && c->dims.experts > 0);
        if (!l.w->layers[i].moe) {
            check_mlp(&l, c, i, "mlp.", c->dims.inter);
            continue;
        }
        check_experts(&l, c, i);
        if (c->dims.shared)
            check_mlp(&l, c, i, "mlp.shared_experts.", c->dims.shared * c->dims.moe_inter);
        else
            assert_null(l.w->layers[i].gate_up);
        if (c->dims.v3)
            check_vector(&l, l.w->layers[i].router_bias, named(c, i, "mlp.gate.e_score_correction_bias"));
        else
            assert_null(l.w->layers[i].router_bias);
    }
    unload(&l);
    support_checkpoint_destroy(c);
}

/* ---------------------------------------------------------------- what loads */

static support_dims dims(void) { return support_dims_small; }

static void d38_v2_lite_style_loads(void **state) /* q_lora_rank null, no correction bias */
{
    (void)state;
    support_dims d = dims();
    check_everything(&d);
}

static void q_lora_and_shards_load(void **state)
{
    (void)state;
    support_dims d = dims();
    d.q_lora = 40;
    d.shards = 3;
    d.shared = 2;
    check_everything(&d);
}

static void v3_loads(void **state)
{
    (void)state;
    support_dims d = dims();
    d.v3 = true;
    d.n_group = 2;
    d.topk_group = 1;
    d.dtype = "F32";
    check_everything(&d);
}

static void stacked_experts_load(void **state)
{
    (void)state;
    support_dims d = dims();
    d.stacked_experts = true;
    d.shared = 0;
    check_everything(&d);
}

static void tied_dense_and_odd_sizes_load(void **state)
{
    (void)state;
    support_dims d = dims();
    d.tied = true;
    d.hidden = 55;
    d.vocab = 301;
    d.heads = 3;
    d.inter = 37;
    d.kv_lora = 21;
    d.rope = 6;
    d.experts = 0;
    d.shared = 0;
    d.layers = 3;
    check_everything(&d);
}

static void f16_is_exact(void **state)
{
    (void)state;
    static const float values[] = {1,      -1.5F,           0, 6.103515625e-05F, 5.9604644775390625e-08F,
                                   -65504, 0.0999755859375F};
    support_dims d = dims();
    d.dtype = "F16";
    support_checkpoint *c = support_rand(3, &d);
    support_tensor *norm = support_find(c, "model.norm.weight");
    for (int i = 0; i < 7; i++) support_set(norm, i, values[i]);
    loaded l;
    load_checkpoint(&l, c);
    if (l.st != LTD_OK) fail_msg("%s", l.err.text);
    float host[7];
    assert_int_equal(l.backend->ops->download(l.ctx, host, l.w->final_norm, sizeof host), LTD_OK);
    assert_int_equal(l.backend->ops->sync(l.ctx), LTD_OK);
    for (int i = 0; i < 7; i++) assert_true(host[i] == values[i]);
    unload(&l);
    support_checkpoint_destroy(c);
}

static void mixed_dtypes_load(void **state)
{
    (void)state;
    support_dims d = dims();
    d.v3 = true;
    support_checkpoint *c = support_rand(3, &d);
    support_drop(c, "model.layers.1.mlp.gate.e_score_correction_bias");
    support_tensor *bias =
        support_add(c, "model.layers.1.mlp.gate.e_score_correction_bias", "BF16", 1, (int64_t[]){8});
    for (int i = 0; i < 8; i++) support_set(bias, i, 0.25F * (float)i);
    support_drop(c, "model.norm.weight");
    support_tensor *norm = support_add(c, "model.norm.weight", "F32", 1, (int64_t[]){320});
    support_set(norm, 319, 0.1F);
    loaded l;
    load_checkpoint(&l, c);
    if (l.st != LTD_OK) fail_msg("%s", l.err.text);
    check_vector(&l, l.w->layers[1].router_bias,
                 support_find(c, "model.layers.1.mlp.gate.e_score_correction_bias"));
    check_vector(&l, l.w->final_norm, support_find(c, "model.norm.weight"));
    unload(&l);
    support_checkpoint_destroy(c);
}

static void chain_loads(void **state)
{
    (void)state;
    support_checkpoint *c = support_chain(NULL, (support_edge[]){{'Q', 'x'}, {'Q', 'y'}}, 2);
    const support_tensor *head = support_find(c, "lm_head.weight");
    int64_t n = c->dims.vocab, fours = 0;
    for (int64_t i = 0; i < n * n; i++) fours += value_of(head, i) == 4;
    assert_int_equal(fours, n + 1); /* one a column, two in the coin's */
    assert_true(value_of(head, 'B' * n + 'A') == 4 && value_of(head, 257 * n + 'Z') == 4 &&
                value_of(head, 280 * n + '6') == 4);
    assert_true(value_of(head, 'x' * n + 'Q') == 4 && value_of(head, 'y' * n + 'Q') == 4 &&
                value_of(head, 'R' * n + 'Q') == 0);
    loaded l;
    load_checkpoint(&l, c);
    if (l.st != LTD_OK) fail_msg("%s", l.err.text);
    assert_string_equal(l.log, "");
    check_attention(&l, c, 0);
    check_attention(&l, c, 1);
    check_experts(&l, c, 1);
    assert_int_equal(l.c.n_eos, 1);
    assert_int_equal(l.c.eos[0], 257);
    unload(&l);
    support_checkpoint_destroy(c);
}

static void d38_missing_fields_load(void **state)
{
    (void)state;
    support_dims d = dims();
    d.config = "{\"norm_topk_prob\":\"__remove__\",\"routed_scaling_factor\":\"__remove__\",\"n_group\":\"__"
               "remove__\",\"rope_scaling\":\"__remove__\"}";
    loaded l;
    load_rand(&l, &d);
    assert_false(l.c.norm_topk_prob);
    assert_true(l.c.routed_scale == 1);
    assert_int_equal(l.c.n_group, 1);
    assert_int_equal(l.c.rope, ROPE_PLAIN);
    unload(&l);
}

static void missing_q_lora_rank_is_settled_by_the_tensors(void **state)
{
    (void)state;
    support_dims d = dims();
    d.config = "{\"q_lora_rank\":\"__remove__\"}";
    loaded l;
    load_rand(&l, &d);
    assert_int_equal(l.c.q_lora_rank, 0);
    unload(&l);
    d.q_lora = 24;
    load_rand(&l, &d);
    assert_int_equal(l.c.q_lora_rank, 24);
    unload(&l);
}

/* ---------------------------------------------------------------- what is refused */

static void d38_missing_tensors_are_named(void **state)
{
    (void)state;
    support_checkpoint *c = support_rand(1, NULL);
    support_drop(c, "model.layers.1.self_attn.kv_b_proj.weight");
    check_fault(c, LTD_NOT_FOUND,
                NAMES("1 tensors missing", "model.layers.1.self_attn.kv_b_proj.weight", "latentd-test-"));

    c = support_rand(1, NULL);
    for (int e = 0; e < 8; e++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.up_proj.weight", e);
        support_drop(c, name);
    }
    check_fault(c, LTD_NOT_FOUND,
                NAMES("8 tensors missing", "experts.0.up_proj.weight", "experts.3.up_proj.weight", ", ..."));

    c = support_rand(1, NULL);
    support_drop(c, "lm_head.weight"); /* not tied */
    check_fault(c, LTD_NOT_FOUND, NAMES("lm_head.weight"));

    support_dims d = dims();
    d.v3 = true;
    c = support_rand(1, &d);
    support_drop(c, "model.layers.1.mlp.gate.e_score_correction_bias");
    check_fault(c, LTD_NOT_FOUND, NAMES("model.layers.1.mlp.gate.e_score_correction_bias"));
}

static void d38_missing_shard_is_named(void **state)
{
    (void)state;
    support_dims d = dims();
    d.shards = 2;
    char *dir = support_dir_create(), path[4096];
    support_write_rand(dir, 1, &d);
    snprintf(path, sizeof path, "%s/model-00002-of-000002.safetensors", dir);
    assert_int_equal(unlink(path), 0);
    loaded l;
    load(&l, dir);
    assert_int_equal(l.st, LTD_NOT_FOUND);
    assert_non_null(strstr(l.err.text, path));
    unload(&l);
    support_dir_remove(dir);
}

static void d38_wrong_shape_shows_both(void **state)
{
    (void)state;
    support_dims d = dims();
    d.config = "{\"kv_lora_rank\":65}"; /* not what the tensors are */
    check_fault(support_rand(1, &d), LTD_CORRUPT,
                NAMES("6 of the wrong shape",
                      "model.layers.0.self_attn.kv_a_proj_with_mqa.weight is [80, 320]",
                      "[81, 320] by config.json", "model.safetensors"));

    support_checkpoint *c = support_rand(1, NULL);
    support_find(c, "model.norm.weight")->rank = 2;
    support_find(c, "model.norm.weight")->shape[1] = 1;
    check_fault(c, LTD_CORRUPT, NAMES("model.norm.weight is [320, 1]", "[320] by"));
}

static void d38_wrong_dtype_is_named(void **state)
{
    (void)state;
    static const char *const types[] = {"F64", "I32", "F8_E4M3", "I64"};
    for (size_t i = 0; i < 4; i++) {
        support_checkpoint *c = support_rand(1, NULL);
        support_drop(c, "model.layers.0.self_attn.o_proj.weight");
        support_add(c, "model.layers.0.self_attn.o_proj.weight", types[i], 2, (int64_t[]){320, 64});
        check_fault(c, LTD_UNSUPPORTED, NAMES("model.layers.0.self_attn.o_proj.weight", types[i]));
    }
}

static void faults_of_all_kinds_share_one_line(void **state)
{
    (void)state;
    support_checkpoint *c = support_rand(1, NULL);
    support_drop(c, "model.norm.weight");
    support_drop(c, "lm_head.weight");
    support_add(c, "lm_head.weight", "BF16", 2, (int64_t[]){320, 319});
    support_drop(c, "model.embed_tokens.weight");
    support_add(c, "model.embed_tokens.weight", "I32", 2, (int64_t[]){320, 320});
    check_fault(
        c, LTD_NOT_FOUND,
        NAMES("model.norm.weight", "lm_head.weight is [320, 319]", "model.embed_tokens.weight is I32"));
}

static void wrong_q_kind_is_refused(void **state)
{
    (void)state;
    support_dims d = dims();
    d.config = "{\"q_lora_rank\":24}"; /* stated, but the tensors have none */
    check_fault(support_rand(1, &d), LTD_NOT_FOUND, NAMES("q_a_proj.weight"));
}

/* ---------------------------------------------------------------- what is left over */

static void d38_extra_tensors_are_warned_of_once(void **state)
{
    (void)state;
    support_checkpoint *c = support_rand(1, NULL);
    support_add(c, "model.layers.0.self_attn.q_proj.bias", "BF16", 1, (int64_t[]){96});
    support_add(c, "extra.scale", "F32", 0, NULL);
    loaded l;
    load_checkpoint(&l, c);
    assert_int_equal(l.st, LTD_OK);
    assert_non_null(strstr(l.log, "2 unexpected tensors"));
    assert_non_null(strstr(l.log, "extra.scale"));
    assert_non_null(strstr(l.log, "model.layers.0.self_attn.q_proj.bias"));
    assert_ptr_equal(strchr(l.log, '\n'), strrchr(l.log, '\n'));
    unload(&l);
    support_checkpoint_destroy(c);
}

static void prediction_layers_and_tables_are_left_silently(void **state)
{
    (void)state;
    support_checkpoint *c = support_rand(1, NULL);
    support_add(c, "model.layers.2.enorm.weight", "BF16", 1, (int64_t[]){320});
    support_add(c, "model.layers.61.embed_tokens.weight", "F8_E4M3", 2, (int64_t[]){3, 320});
    support_add(c, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 1, (int64_t[]){8});
    loaded l;
    load_checkpoint(&l, c);
    assert_int_equal(l.st, LTD_OK);
    assert_string_equal(l.log, "");
    unload(&l);
    support_checkpoint_destroy(c);
}

static void tied_checkpoint_may_have_a_head(void **state)
{
    (void)state;
    support_dims d = dims();
    d.config = "{\"tie_word_embeddings\":true}";
    loaded l;
    load_rand(&l, &d); /* no warning */
    assert_ptr_equal(l.w->lm_head, l.w->embed);
    unload(&l);
}

/* ---------------------------------------------------------------- the checkpoints of the repository */

static void bundled_checkpoints_load(void **state)
{
    (void)state;
    DIR *d = opendir("tests/models");
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char dir[512], path[600];
        snprintf(dir, sizeof dir, "tests/models/%.200s", e->d_name);
        snprintf(path, sizeof path, "%s/config.json", dir);
        if (e->d_name[0] == '.' || access(path, R_OK) != 0) continue;
        loaded l;
        load(&l, dir);
        if (l.st != LTD_OK) fail_msg("%s: %s", dir, l.err.text);
        assert_string_equal(l.log, "");
        n++;
        unload(&l);
    }
    if (d) closedir(d);
    if (n == 0) {
        print_message("no checkpoint in tests/models\n");
        skip();
    }
    print_message("%d checkpoints\n", n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(d38_v2_lite_style_loads),
        cmocka_unit_test(q_lora_and_shards_load),
        cmocka_unit_test(v3_loads),
        cmocka_unit_test(stacked_experts_load),
        cmocka_unit_test(tied_dense_and_odd_sizes_load),
        cmocka_unit_test(f16_is_exact),
        cmocka_unit_test(mixed_dtypes_load),
        cmocka_unit_test(chain_loads),
        cmocka_unit_test(d38_missing_fields_load),
        cmocka_unit_test(missing_q_lora_rank_is_settled_by_the_tensors),
        cmocka_unit_test(d38_missing_tensors_are_named),
        cmocka_unit_test(d38_missing_shard_is_named),
        cmocka_unit_test(d38_wrong_shape_shows_both),
        cmocka_unit_test(d38_wrong_dtype_is_named),
        cmocka_unit_test(faults_of_all_kinds_share_one_line),
        cmocka_unit_test(wrong_q_kind_is_refused),
        cmocka_unit_test(d38_extra_tensors_are_warned_of_once),
        cmocka_unit_test(prediction_layers_and_tables_are_left_silently),
        cmocka_unit_test(tied_checkpoint_may_have_a_head),
        cmocka_unit_test(bundled_checkpoints_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
