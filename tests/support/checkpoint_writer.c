/* checkpoint_writer.c - see checkpoint_writer.h. */
#include "tests/support/checkpoint_writer.h"

#include "kernels/kernels.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const support_dims support_dims_small = {
    .vocab = 320,
    .hidden = 320,
    .inter = 96,
    .moe_inter = 48,
    .layers = 2,
    .first_dense = 1,
    .heads = 2,
    .q_lora = 0,
    .kv_lora = 64,
    .nope = 32,
    .rope = 16,
    .v = 32,
    .experts = 8,
    .shared = 1,
    .top_k = 2,
    .n_group = 1,
    .topk_group = 1,
    .max_position = 4096,
    .dtype = "BF16",
    .shards = 1,
};

enum { BOS = 256, EOS = 257 };

/* ---------------------------------------------------------------- files and folders */

void support_write_file(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    LTD_CHECK(f, "%s", path);
    LTD_CHECK(fwrite(bytes, 1, n, f) == n && fclose(f) == 0, "%s", path);
}

void support_write_safetensors(const char *dir, const char *name, const char *header, const void *data,
                               size_t n)
{
    ltd_buf b = {0};
    uint64_t len = strlen(header);
    for (int i = 0; i < 8; i++) ltd_buf_add(&b, &(char){(char)(len >> (8 * i))}, 1);
    ltd_buf_str(&b, header);
    ltd_buf_add(&b, data, n);
    support_write_file(dir, name, b.data, b.len);
    ltd_buf_deinit(&b);
}

void support_copy_file(const char *from_dir, const char *name, const char *to_dir)
{
    char path[4096], *data;
    size_t n;
    ltd_err err;
    snprintf(path, sizeof path, "%s/%s", from_dir, name);
    LTD_CHECK(ltd_read_file(path, 0, &data, &n, &err) == LTD_OK, "%s", err.text);
    support_write_file(to_dir, name, data, n);
    ltd_free(data);
}

char *support_dir_create(void)
{
    const char *tmp = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/latentd-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    LTD_CHECK(mkdtemp(path), "%s", path);
    return ltd_strdup(path);
}

void support_dir_remove(char *dir)
{
    if (!dir) return;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[4096];
        snprintf(path, sizeof path, "%.3000s/%s", dir, e->d_name);
        unlink(path); /* fails on . and .., as it should */
    }
    if (d) closedir(d);
    rmdir(dir);
    ltd_free(dir);
}

/* ---------------------------------------------------------------- tensors */

static size_t dtype_bytes(const char *dtype)
{
    if (strcmp(dtype, "F64") == 0 || strcmp(dtype, "I64") == 0) return 8;
    if (strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0) return 4;
    return strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 ? 2 : 1;
}

support_tensor *support_add(support_checkpoint *c, const char *name, const char *dtype, int32_t rank,
                            const int64_t *shape)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? c->cap * 2 : 64;
        c->tensors = ltd_realloc(c->tensors, (size_t)c->cap * sizeof *c->tensors);
    }
    support_tensor *t = &c->tensors[c->n++];
    *t = (support_tensor){.name = ltd_strdup(name), .rank = rank, .bytes = dtype_bytes(dtype)};
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    for (int32_t i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        t->bytes *= (size_t)shape[i];
    }
    t->data = ltd_calloc(t->bytes + 1, 1);
    return t;
}

support_tensor *support_find(support_checkpoint *c, const char *name)
{
    for (int32_t i = 0; i < c->n; i++)
        if (strcmp(c->tensors[i].name, name) == 0) return &c->tensors[i];
    return NULL;
}

void support_drop(support_checkpoint *c, const char *name)
{
    support_tensor *t = support_find(c, name);
    LTD_CHECK(t, "no tensor %s", name);
    ltd_free(t->name);
    ltd_free(t->data);
    memmove(t, t + 1, (size_t)(c->tensors + --c->n - t) * sizeof *t);
}

/* To nearest, ties to even; the values of these checkpoints are far from the ends of the range. */
static uint16_t to_f16(float v)
{
    int e;
    float m = frexpf(fabsf(v), &e); /* 0.5 <= m < 1 */
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    if (v == 0 || e < -24) return sign;
    LTD_CHECK(e <= 16, "%g", (double)v);
    if (e < -13) return (uint16_t)(sign | (int)lrintf(ldexpf(m, e + 24))); /* subnormal */
    return (uint16_t)(sign + ((e + 14) << 10) + (int)lrintf(ldexpf(m, 11)) - 1024);
}

void support_set(support_tensor *t, int64_t i, float value)
{
    size_t size = dtype_bytes(t->dtype);
    LTD_CHECK(i >= 0 && (size_t)(i + 1) * size <= t->bytes, "%s[%lld]", t->name, (long long)i);
    uint16_t half = strcmp(t->dtype, "BF16") == 0 ? kern_f32_to_bf16(value) : size == 2 ? to_f16(value) : 0;
    memcpy(t->data + (size_t)i * size, size == 2 ? (void *)&half : (void *)&value, size);
}

/* ---------------------------------------------------------------- a model's tensors */

typedef enum fill { FILL_ONE, FILL_ZERO, FILL_UNIT, FILL_FAN_IN, FILL_LOGITS } fill;

/* Whose values: chain (fixed parts are made afterwards) or rand. */
typedef struct maker {
    support_checkpoint *c;
    bool chain;
    uint64_t seed;
} maker;

static uint64_t next_random(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* About normal, variance 1: the sum of four uniforms. */
static float next_normal(uint64_t *s)
{
    uint64_t r = next_random(s);
    int64_t sum = 0;
    for (int i = 0; i < 4; i++) sum += (int64_t)(r >> (16 * i) & 0xffff) - 32768;
    return (float)sum / 65536 * sqrtf(3);
}

static void fill_random(support_tensor *t, uint64_t seed, fill how)
{
    for (const char *s = t->name; *s; s++) seed = (seed ^ (unsigned char)*s) * 0x100000001b3u;
    int64_t n = (int64_t)(t->bytes / dtype_bytes(t->dtype)), fan_in = t->shape[t->rank - 1];
    float scale = how == FILL_UNIT  ? 1
                  : how == FILL_ONE ? 0.1F
                                    : (how == FILL_LOGITS ? 2 : 1) / sqrtf((float)fan_in);
    for (int64_t i = 0; i < n; i++) support_set(t, i, (how == FILL_ONE) + scale * next_normal(&seed));
}

static support_tensor *make(maker *m, const char *prefix, const char *suffix, fill how, int32_t rank,
                            const int64_t *shape)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    support_tensor *t = support_add(m->c, name, m->c->dims.dtype, rank, shape);
    if (m->chain && how == FILL_ONE) {
        for (int64_t i = 0; i < shape[0]; i++) support_set(t, i, 1);
    } else if (how != FILL_ZERO && !(m->chain && (how == FILL_UNIT || how == FILL_LOGITS))) {
        fill_random(t, m->seed, how);
    }
    return t;
}

static void make_vector(maker *m, const char *prefix, const char *suffix, int64_t n)
{
    make(m, prefix, suffix, FILL_ONE, 1, &n);
}
static void make_matrix(maker *m, const char *prefix, const char *suffix, fill how, int64_t n, int64_t k)
{
    make(m, prefix, suffix, how, 2, (int64_t[]){n, k});
}

static void make_mlp(maker *m, const char *prefix, int64_t inter)
{
    int64_t hidden = m->c->dims.hidden;
    make_matrix(m, prefix, "gate_proj.weight", FILL_FAN_IN, inter, hidden);
    make_matrix(m, prefix, "up_proj.weight", FILL_FAN_IN, inter, hidden);
    make_matrix(m, prefix, "down_proj.weight", m->chain ? FILL_ZERO : FILL_FAN_IN, hidden, inter);
}

static void make_moe(maker *m, const char *prefix)
{
    const support_dims *d = &m->c->dims;
    char p[128];
    make_matrix(m, prefix, "gate.weight", FILL_FAN_IN, d->experts, d->hidden);
    if (d->v3) {
        snprintf(p, sizeof p, "%sgate.e_score_correction_bias", prefix);
        support_tensor *t = support_add(m->c, p, "F32", 1, &(int64_t){d->experts});
        for (int64_t i = 0; i < d->experts; i++) support_set(t, i, 0.05F * (float)((i * 7) % 5 - 2));
    }
    if (d->stacked_experts) {
        make(m, prefix, "experts.gate_up_proj", FILL_FAN_IN, 3,
             (int64_t[]){d->experts, 2 * d->moe_inter, d->hidden});
        make(m, prefix, "experts.down_proj", m->chain ? FILL_ZERO : FILL_FAN_IN, 3,
             (int64_t[]){d->experts, d->hidden, d->moe_inter});
    }
    for (int32_t e = 0; e < d->experts && !d->stacked_experts; e++) {
        snprintf(p, sizeof p, "%sexperts.%d.", prefix, e);
        make_mlp(m, p, d->moe_inter);
    }
    snprintf(p, sizeof p, "%sshared_experts.", prefix);
    if (d->shared) make_mlp(m, p, (int64_t)d->shared * d->moe_inter);
}

static void make_layer(maker *m, int32_t layer)
{
    const support_dims *d = &m->c->dims;
    int64_t d_q = (int64_t)d->heads * (d->nope + d->rope);
    char p[64];
    snprintf(p, sizeof p, "model.layers.%d.", layer);
    make_vector(m, p, "input_layernorm.weight", d->hidden);
    if (d->q_lora) {
        make_matrix(m, p, "self_attn.q_a_proj.weight", FILL_FAN_IN, d->q_lora, d->hidden);
        make_vector(m, p, "self_attn.q_a_layernorm.weight", d->q_lora);
        make_matrix(m, p, "self_attn.q_b_proj.weight", FILL_FAN_IN, d_q, d->q_lora);
    } else {
        make_matrix(m, p, "self_attn.q_proj.weight", FILL_FAN_IN, d_q, d->hidden);
    }
    make_matrix(m, p, "self_attn.kv_a_proj_with_mqa.weight", FILL_FAN_IN, d->kv_lora + d->rope, d->hidden);
    make_vector(m, p, "self_attn.kv_a_layernorm.weight", d->kv_lora);
    make_matrix(m, p, "self_attn.kv_b_proj.weight", FILL_FAN_IN, (int64_t)d->heads * (d->nope + d->v),
                d->kv_lora);
    make_matrix(m, p, "self_attn.o_proj.weight", m->chain ? FILL_ZERO : FILL_FAN_IN, d->hidden,
                (int64_t)d->heads * d->v);
    make_vector(m, p, "post_attention_layernorm.weight", d->hidden);
    strcat(p, "mlp.");
    if (layer >= d->first_dense && d->experts)
        make_moe(m, p);
    else
        make_mlp(m, p, d->inter);
}

static support_checkpoint *build(const support_dims *dims, bool chain, uint64_t seed)
{
    maker m = {.c = ltd_calloc(1, sizeof *m.c), .chain = chain, .seed = seed};
    m.c->dims = dims ? *dims : support_dims_small;
    const support_dims *d = &m.c->dims;
    make_matrix(&m, "", "model.embed_tokens.weight", FILL_UNIT, d->vocab, d->hidden);
    for (int32_t i = 0; i < d->layers; i++) make_layer(&m, i);
    make_vector(&m, "", "model.norm.weight", d->hidden);
    if (!d->tied) make_matrix(&m, "", "lm_head.weight", FILL_LOGITS, d->vocab, d->hidden);
    return m.c;
}

/* ---------------------------------------------------------------- CHAIN and RAND */

int32_t support_chain_next(int32_t t)
{
    static const int32_t chars[] = {'<', 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, '.'};
    for (size_t i = 0; i + 1 < sizeof chars / sizeof *chars; i++)
        if (chars[i] == t) return chars[i + 1];
    if (t >= 'A' && t < 'Z') return t + 1;
    if (t == 'a' || t == 0xFF) return t;
    return t == '6' ? 280 : t == 280 ? '9' : EOS;
}

support_checkpoint *support_chain(const support_dims *dims, const support_edge *edges, int32_t n_edges)
{
    support_checkpoint *c = build(dims, true, 1);
    int32_t n = c->dims.vocab;
    LTD_CHECK(n == c->dims.hidden && n > 280 && !c->dims.tied, "vocab %d hidden %d", n, c->dims.hidden);
    support_tensor *embed = support_find(c, "model.embed_tokens.weight"),
                   *head = support_find(c, "lm_head.weight");
    for (int32_t t = 0; t < n; t++) {
        bool own = false;
        support_set(embed, (int64_t)t * n + t, 1);
        for (int32_t i = 0; i < n_edges; i++) {
            if (edges[i].from != t) continue;
            own = true;
            support_set(head, (int64_t)edges[i].to * n + t, 4);
        }
        if (!own) support_set(head, (int64_t)support_chain_next(t) * n + t, 4);
    }
    return c;
}

support_checkpoint *support_rand(uint64_t seed, const support_dims *dims) { return build(dims, false, seed); }

void support_checkpoint_destroy(support_checkpoint *c)
{
    if (!c) return;
    for (int32_t i = 0; i < c->n; i++) {
        ltd_free(c->tensors[i].name);
        ltd_free(c->tensors[i].data);
    }
    ltd_free(c->tensors);
    ltd_free(c);
}

void support_write_chain(const char *dir, const support_dims *dims, const support_edge *edges,
                         int32_t n_edges)
{
    support_checkpoint *c = support_chain(dims, edges, n_edges);
    support_write_checkpoint(c, dir);
    support_checkpoint_destroy(c);
}

void support_write_rand(const char *dir, uint64_t seed, const support_dims *dims)
{
    support_checkpoint *c = support_rand(seed, dims);
    support_write_checkpoint(c, dir);
    support_checkpoint_destroy(c);
}

/* ---------------------------------------------------------------- writing */

static cJSON *config_object(const support_dims *d)
{
    const struct {
        const char *key;
        int32_t value;
    } ints[] = {
        {"vocab_size", d->vocab},
        {"hidden_size", d->hidden},
        {"intermediate_size", d->inter},
        {"moe_intermediate_size", d->moe_inter},
        {"num_hidden_layers", d->layers},
        {"first_k_dense_replace", d->first_dense},
        {"moe_layer_freq", 1},
        {"num_attention_heads", d->heads},
        {"num_key_value_heads", d->heads},
        {"kv_lora_rank", d->kv_lora},
        {"qk_nope_head_dim", d->nope},
        {"qk_rope_head_dim", d->rope},
        {"v_head_dim", d->v},
        {"n_group", d->n_group},
        {"topk_group", d->topk_group},
        {"max_position_embeddings", d->max_position},
        {"bos_token_id", BOS},
        {"eos_token_id", EOS},
        {"rope_theta", 10000},
    };
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToObject(
        o, "architectures",
        cJSON_CreateStringArray((const char *[]){d->v3 ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM"},
                                1));
    cJSON_AddStringToObject(o, "model_type", d->v3 ? "deepseek_v3" : "deepseek_v2");
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        cJSON_AddNumberToObject(o, ints[i].key, ints[i].value);
    cJSON_AddItemToObject(o, "q_lora_rank", d->q_lora ? cJSON_CreateNumber(d->q_lora) : cJSON_CreateNull());
    cJSON_AddItemToObject(o, "n_routed_experts",
                          d->experts ? cJSON_CreateNumber(d->experts) : cJSON_CreateNull());
    cJSON_AddItemToObject(o, "n_shared_experts",
                          d->shared ? cJSON_CreateNumber(d->shared) : cJSON_CreateNull());
    cJSON_AddNumberToObject(o, "num_experts_per_tok", d->top_k);
    cJSON_AddStringToObject(o, "topk_method",
                            d->topk_method ? d->topk_method
                            : d->v3        ? "noaux_tc"
                                           : "greedy");
    cJSON_AddStringToObject(o, "scoring_func", d->v3 ? "sigmoid" : "softmax");
    cJSON_AddBoolToObject(o, "norm_topk_prob", d->v3);
    cJSON_AddNumberToObject(o, "routed_scaling_factor", 1);
    cJSON_AddNumberToObject(o, "rms_norm_eps", 1e-6);
    cJSON_AddNullToObject(o, "rope_scaling");
    cJSON_AddBoolToObject(o, "tie_word_embeddings", d->tied);
    cJSON_AddStringToObject(o, "hidden_act", "silu");
    cJSON_AddBoolToObject(o, "attention_bias", false);
    cJSON_AddStringToObject(o, "torch_dtype",
                            strcmp(d->dtype, "BF16") == 0  ? "bfloat16"
                            : strcmp(d->dtype, "F16") == 0 ? "float16"
                                                           : "float32");
    return o;
}

void support_write_config(const char *dir, const support_dims *dims)
{
    const support_dims *d = dims ? dims : &support_dims_small;
    cJSON *o = config_object(d), *changes = d->config ? cJSON_Parse(d->config) : NULL;
    LTD_CHECK(!d->config || cJSON_IsObject(changes), "%s", d->config);
    for (const cJSON *v = changes ? changes->child : NULL; v; v = v->next) {
        cJSON_DeleteItemFromObjectCaseSensitive(o, v->string);
        if (!cJSON_IsString(v) || strcmp(v->valuestring, "__remove__") != 0)
            cJSON_AddItemToObject(o, v->string, cJSON_Duplicate(v, true));
    }
    char *text = cJSON_Print(o);
    support_write_file(dir, "config.json", text, strlen(text));
    free(text);
    cJSON_Delete(changes);
    cJSON_Delete(o);
}

/* Tensors first .. last of the checkpoint as one file. */
static void write_shard(const support_checkpoint *c, const char *dir, const char *name, int32_t first,
                        int32_t last)
{
    ltd_buf header = {0}, data = {0};
    ltd_buf_str(&header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int32_t i = first; i < last; i++) {
        const support_tensor *t = &c->tensors[i];
        ltd_buf_str(&header, ",");
        ltd_buf_json_str(&header, t->name, strlen(t->name));
        ltd_buf_fmt(&header, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
        for (int32_t k = 0; k < t->rank; k++)
            ltd_buf_fmt(&header, "%s%lld", k ? "," : "", (long long)t->shape[k]);
        ltd_buf_fmt(&header, "],\"data_offsets\":[%zu,%zu]}", data.len, data.len + t->bytes);
        ltd_buf_add(&data, t->data, t->bytes);
    }
    ltd_buf_str(&header, "}");
    while (header.len % 8) ltd_buf_str(&header, " ");
    support_write_safetensors(dir, name, header.data, data.data, data.len);
    ltd_buf_deinit(&header);
    ltd_buf_deinit(&data);
}

void support_write_checkpoint(const support_checkpoint *c, const char *dir)
{
    support_write_config(dir, &c->dims);
    int32_t shards = c->dims.shards;
    if (shards <= 1) return write_shard(c, dir, "model.safetensors", 0, c->n);
    ltd_buf index = {0};
    ltd_buf_str(&index, "{\"metadata\":{},\"weight_map\":{");
    for (int32_t s = 0; s < shards; s++) {
        char name[64];
        int32_t first = (int32_t)((int64_t)c->n * s / shards),
                last = (int32_t)((int64_t)c->n * (s + 1) / shards);
        snprintf(name, sizeof name, "model-%05d-of-%06d.safetensors", s + 1, shards);
        write_shard(c, dir, name, first, last);
        for (int32_t i = first; i < last; i++) {
            if (i) ltd_buf_str(&index, ",");
            ltd_buf_json_str(&index, c->tensors[i].name, strlen(c->tensors[i].name));
            ltd_buf_fmt(&index, ":\"%s\"", name);
        }
    }
    ltd_buf_str(&index, "}}");
    support_write_file(dir, "model.safetensors.index.json", index.data, index.len);
    ltd_buf_deinit(&index);
}
