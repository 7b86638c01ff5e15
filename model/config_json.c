/* config_json.c - config.json and generation_config.json into a model_config.
 * Every field that the forward pass depends on is taken, or takes the reference's default where it is
 * missing, or is refused by its name: a field that is silently ignored is garbage output.  The defaults are
 * those of the native V2 and V3 classes, since a file written by them leaves out what equals them.  A null
 * counts as missing, but for q_lora_rank, n_routed_experts and n_shared_experts, where it says "none". */
#include "model/model_private.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* One object being read.  The first fault sticks; later reads return their defaults and change nothing. */
typedef struct reader {
    const cJSON *obj;
    const char *path;   /* of the file, for messages */
    const char *within; /* "" or "rope_scaling." */
    ltd_status st;
    ltd_err *err;
} reader;

static void fault(reader *r, ltd_status st, const char *fmt, ...) LTD_PRINTF(3, 4);
static void fault(reader *r, ltd_status st, const char *fmt, ...)
{
    if (r->st != LTD_OK) return;
    char text[768];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->st = ltd_fail(r->err, st, "%s: %s", r->path, text);
}

/* ---------------------------------------------------------------- single fields */

static const cJSON *field(const reader *r, const char *key)
{
    const cJSON *v = ltd_json_get(r->obj, key);
    return ltd_json_is_null(v) ? NULL : v;
}

static bool stated_null(const reader *r, const char *key)
{
    const cJSON *v = ltd_json_get(r->obj, key);
    return v && cJSON_IsNull(v);
}

static int32_t int_field(reader *r, const char *key, int32_t missing, int32_t lo, int32_t hi)
{
    const cJSON *v = field(r, key);
    int64_t n = 0;
    if (!v) return missing;
    if (ltd_json_int64(v, &n) != LTD_OK) {
        fault(r, LTD_CORRUPT, "%s%s must be an integer", r->within, key);
        return missing;
    }
    if (n < lo || n > hi) {
        fault(r, LTD_UNSUPPORTED, "%s%s is %lld; it must be from %d to %d", r->within, key, (long long)n, lo,
              hi);
        return missing;
    }
    return (int32_t)n;
}

static double num_field(reader *r, const char *key, double missing, double lo, double hi)
{
    const cJSON *v = field(r, key);
    if (!v) return missing;
    if (!cJSON_IsNumber(v)) {
        fault(r, LTD_CORRUPT, "%s%s must be a number", r->within, key);
        return missing;
    }
    if (!(v->valuedouble >= lo && v->valuedouble <= hi)) {
        fault(r, LTD_UNSUPPORTED, "%s%s is %g; it must be from %g to %g", r->within, key, v->valuedouble, lo,
              hi);
        return missing;
    }
    return v->valuedouble;
}

static bool bool_field(reader *r, const char *key, bool missing)
{
    const cJSON *v = field(r, key);
    if (!v) return missing;
    if (!cJSON_IsBool(v)) {
        fault(r, LTD_CORRUPT, "%s%s must be true or false", r->within, key);
        return missing;
    }
    return cJSON_IsTrue(v);
}

static const char *str_field(reader *r, const char *key, const char *missing)
{
    const cJSON *v = field(r, key);
    if (!v) return missing;
    if (!cJSON_IsString(v)) {
        fault(r, LTD_CORRUPT, "%s%s must be a string", r->within, key);
        return missing;
    }
    return v->valuestring;
}

/* ---------------------------------------------------------------- which model */

static void read_architecture(reader *r, model_config *c)
{
    const char *type = str_field(r, "model_type", NULL);
    const cJSON *list = field(r, "architectures");
    const char *arch = NULL;
    if (list && cJSON_IsArray(list) && cJSON_GetArraySize(list) == 1 && cJSON_IsString(list->child))
        arch = list->child->valuestring;
    else if (list)
        return fault(r, LTD_CORRUPT, "architectures must be a list of one name");
    if (!arch && !type)
        return fault(r, LTD_UNSUPPORTED, "neither architectures nor model_type says what model this is");
    if (arch && strcmp(arch, "DeepseekV2ForCausalLM") != 0 && strcmp(arch, "DeepseekV3ForCausalLM") != 0)
        return fault(r, LTD_UNSUPPORTED,
                     "architectures: %.100s is not served (DeepseekV2ForCausalLM, DeepseekV3ForCausalLM are)",
                     arch);
    if (type && strcmp(type, "deepseek_v2") != 0 && strcmp(type, "deepseek_v3") != 0)
        return fault(r, LTD_UNSUPPORTED, "model_type: %.100s is not served (deepseek_v2, deepseek_v3 are)",
                     type);
    bool v3_by_type = type && strcmp(type, "deepseek_v3") == 0;
    c->v3 = arch ? strcmp(arch, "DeepseekV3ForCausalLM") == 0 : v3_by_type;
    if (type && c->v3 != v3_by_type)
        return fault(r, LTD_CORRUPT, "architectures says %s but model_type says %s", arch, type);
    snprintf(c->architecture, sizeof c->architecture, "%s",
             c->v3 ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM");
}

/* What would change the numbers and is not there yet. */
static void refuse_unsupported(reader *r, const model_config *c)
{
    if (field(r, "quantization_config"))
        fault(r, LTD_UNSUPPORTED,
              "quantization_config: quantised checkpoints are not served yet, only BF16, F16 and F32 ones");
    if (bool_field(r, "attention_bias", false))
        fault(r, LTD_UNSUPPORTED, "attention_bias: true is not served");
    if (bool_field(r, "mlp_bias", false)) fault(r, LTD_UNSUPPORTED, "mlp_bias: true is not served");
    const char *act = str_field(r, "hidden_act", "silu");
    if (strcmp(act, "silu") != 0)
        fault(r, LTD_UNSUPPORTED, "hidden_act: %.100s is not served (silu is)", act);
    if (!bool_field(r, "rope_interleave", true))
        fault(r, LTD_UNSUPPORTED,
              "rope_interleave: false is not served (neighbouring elements are rotated together)");
    int32_t kv_heads = int_field(r, "num_key_value_heads", c->n_heads, 1, INT32_MAX);
    if (kv_heads != c->n_heads)
        fault(r, LTD_UNSUPPORTED,
              "num_key_value_heads is %d; it must equal num_attention_heads, %d, or be left out", kv_heads,
              c->n_heads);
}

/* The ranges are what the operations serve, and keep every product of two sizes within int32. */
static void read_sizes(reader *r, model_config *c)
{
    bool v3 = c->v3;
    c->vocab_size = int_field(r, "vocab_size", v3 ? 129280 : 32000, 1, 1 << 19);
    c->hidden_size = int_field(r, "hidden_size", v3 ? 7168 : 4096, 1, 65536);
    c->intermediate_size = int_field(r, "intermediate_size", v3 ? 18432 : 11008, 1, 1 << 20);
    c->n_layers = int_field(r, "num_hidden_layers", v3 ? 61 : 32, 1, 1024);
    c->n_heads = int_field(r, "num_attention_heads", v3 ? 128 : 32, 1, 1024);
    if (!field(r, "kv_lora_rank"))
        fault(r, LTD_UNSUPPORTED, "kv_lora_rank is missing: this is no checkpoint with latent attention");
    c->kv_lora_rank = int_field(r, "kv_lora_rank", 512, 1, 4096);
    c->q_lora_stated = ltd_json_get(r->obj, "q_lora_rank") != NULL;
    c->q_lora_rank = stated_null(r, "q_lora_rank") ? 0 : int_field(r, "q_lora_rank", 1536, 1, 65536);
    c->d_nope = int_field(r, "qk_nope_head_dim", 128, 1, 1024);
    c->d_rope = int_field(r, "qk_rope_head_dim", 64, 2, 1024);
    if (c->d_rope % 2) fault(r, LTD_UNSUPPORTED, "qk_rope_head_dim is %d; it must be even", c->d_rope);
    c->d_v = int_field(r, "v_head_dim", 128, 1, 1024);
    c->rms_eps = (float)num_field(r, "rms_norm_eps", 1e-6, 1e-12, 1);
    c->tied = bool_field(r, "tie_word_embeddings", false);
    c->max_position = int_field(r, "max_position_embeddings", v3 ? 4096 : 2048, 1, 1 << 24);
}

/* ---------------------------------------------------------------- experts */

static void read_route_method(reader *r, model_config *c)
{
    const char *score = str_field(r, "scoring_func", c->v3 ? "sigmoid" : "softmax");
    if (strcmp(score, c->v3 ? "sigmoid" : "softmax") != 0)
        fault(r, LTD_UNSUPPORTED, "scoring_func: %.100s is not served with %s (%s is)", score,
              c->architecture, c->v3 ? "sigmoid" : "softmax");
    const char *method = str_field(r, "topk_method", c->v3 ? "noaux_tc" : "greedy");
    if (c->v3 && strcmp(method, "noaux_tc") == 0)
        c->route = KERN_ROUTE_NOAUX_TC;
    else if (!c->v3 && strcmp(method, "group_limited_greedy") == 0)
        c->route = KERN_ROUTE_GROUP_LIMITED;
    else if (!c->v3 && (strcmp(method, "greedy") == 0 ||
                        strcmp(method, "gready") == 0)) /* the spelling of the first release's default */
        c->route = KERN_ROUTE_GREEDY;
    else
        fault(r, LTD_UNSUPPORTED, "topk_method: %.100s is not served with %s (%s)", method, c->architecture,
              c->v3 ? "noaux_tc is" : "greedy and group_limited_greedy are");
}

/* Groups limit the choice under two of the three methods; greedy ignores the fields, whatever they say. */
static void read_groups(reader *r, model_config *c)
{
    c->n_group = c->topk_group = 1;
    if (c->route == KERN_ROUTE_GREEDY) return;
    int32_t n = int_field(r, "n_group", c->v3 ? 8 : 1, 1, c->n_experts);
    if (c->n_experts % n)
        return fault(r, LTD_UNSUPPORTED, "n_group: %d groups do not divide n_routed_experts, %d", n,
                     c->n_experts);
    if (!field(r, "topk_group") && !c->v3 && n > 1)
        return fault(r, LTD_UNSUPPORTED, "topk_group is missing, with n_group %d", n);
    int32_t kept = int_field(r, "topk_group", c->v3 && n >= 4 ? 4 : n, 1, n);
    int32_t per_group = c->n_experts / n;
    if (c->top_k > (int64_t)kept * per_group)
        return fault(r, LTD_UNSUPPORTED,
                     "num_experts_per_tok: %d experts cannot be chosen from topk_group %d of n_group %d with "
                     "%d experts each",
                     c->top_k, kept, n, per_group);
    if (c->route == KERN_ROUTE_NOAUX_TC && n > 1 && per_group < 2)
        return fault(
            r, LTD_UNSUPPORTED,
            "n_group: noaux_tc ranks groups by their two best experts, and %d groups of %d have one each", n,
            c->n_experts);
    c->n_group = n;
    c->topk_group = kept;
}

static void read_experts(reader *r, model_config *c)
{
    bool v3 = c->v3;
    c->n_experts =
        stated_null(r, "n_routed_experts") ? 0 : int_field(r, "n_routed_experts", v3 ? 256 : 64, 1, 1024);
    c->n_shared =
        stated_null(r, "n_shared_experts") ? 0 : int_field(r, "n_shared_experts", v3 ? 1 : 2, 0, 64);
    c->moe_intermediate_size = int_field(r, "moe_intermediate_size", v3 ? 2048 : 1407, 1, 1 << 20);
    c->first_dense = int_field(r, "first_k_dense_replace", v3 ? 3 : 0, 0, 1 << 20);
    c->moe_layer_freq = int_field(r, "moe_layer_freq", 1, 1, 1024);
    c->norm_topk_prob = bool_field(r, "norm_topk_prob", v3);
    c->routed_scale = (float)num_field(r, "routed_scaling_factor", v3 ? 2.5 : 1.0, 1e-6, 1e6);
    c->n_group = c->topk_group = 1;
    read_route_method(r, c);
    if (c->n_experts == 0 || r->st != LTD_OK) return;
    if (!v3 && c->norm_topk_prob)
        return fault(r, LTD_UNSUPPORTED,
                     "norm_topk_prob: true is not served with DeepseekV2ForCausalLM, "
                     "whose references disagree on it (one ignores it, one normalises and drops "
                     "routed_scaling_factor)");
    if (!v3 && !field(r, "num_experts_per_tok"))
        return fault(r, LTD_UNSUPPORTED, "num_experts_per_tok is missing, with %d n_routed_experts",
                     c->n_experts);
    c->top_k = int_field(r, "num_experts_per_tok", 8, 1, c->n_experts);
    if (r->st == LTD_OK && c->top_k > c->n_experts) /* V3's default over a small n_routed_experts */
        return fault(r, LTD_UNSUPPORTED,
                     "num_experts_per_tok (%d where missing) is over n_routed_experts, %d", c->top_k,
                     c->n_experts);
    if (r->st == LTD_OK) read_groups(r, c);
}

/* ---------------------------------------------------------------- rope */

/* YaRN's length factor (sheet 3.4). */
static double yarn_g(double s, double m) { return s <= 1 ? 1 : 0.1 * m * log(s) + 1; }

static void read_yarn(reader *r, model_config *c)
{
    static const char *const needed[] = {"factor", "original_max_position_embeddings"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed;
         i++) /* the references disagree on what a missing one means */
        if (!field(r, needed[i]))
            return fault(r, LTD_UNSUPPORTED, "%s%s is missing, with type yarn", r->within, needed[i]);
    c->rope = ROPE_YARN;
    c->rope_factor = num_field(r, "factor", 1, 1, 1e6);
    c->rope_original = int_field(r, "original_max_position_embeddings", 1, 1, 1 << 24);
    c->beta_fast = num_field(r, "beta_fast", 32, 1e-6, 1e6);
    c->beta_slow = num_field(r, "beta_slow", 1, 1e-6, 1e6);
    if (c->beta_fast < c->beta_slow)
        fault(r, LTD_UNSUPPORTED, "%sbeta_fast %g is below beta_slow %g", r->within, c->beta_fast,
              c->beta_slow);
    c->rope_truncate = bool_field(r, "truncate", true);
    double mscale = num_field(r, "mscale", 0, 0, 1000);
    double all_dim = num_field(r, "mscale_all_dim", 0, 0, 1000);
    double s = c->rope_factor;
    c->rope_cos_factor = mscale != 0 && all_dim != 0 ? yarn_g(s, mscale) / yarn_g(s, all_dim) : yarn_g(s, 1);
    c->rope_cos_factor = num_field(r, "attention_factor", c->rope_cos_factor, 1e-6, 1e6);
    if (all_dim != 0) c->softmax_scale *= yarn_g(s, all_dim) * yarn_g(s, all_dim);
}

static void read_rope(reader *r, model_config *c)
{
    c->rope = ROPE_PLAIN;
    c->rope_factor = 1;
    c->rope_original = c->max_position;
    c->beta_fast = 32;
    c->beta_slow = 1;
    c->rope_truncate = true;
    c->rope_cos_factor = 1;
    c->softmax_scale = 1 / sqrt((double)(c->d_nope + c->d_rope));
    c->rope_theta = num_field(r, "rope_theta", 10000, 1.0001, 1e15);

    const char *key =
        field(r, "rope_scaling") ? "rope_scaling" : "rope_parameters"; /* transformers 5 writes the second */
    const cJSON *rope = field(r, key);
    if (!rope || r->st != LTD_OK) return;
    if (!cJSON_IsObject(rope)) return fault(r, LTD_CORRUPT, "%s must be an object or null", key);
    char within[32];
    snprintf(within, sizeof within, "%s.", key);
    reader in = {.obj = rope, .path = r->path, .within = within, .err = r->err};
    c->rope_theta = num_field(&in, "rope_theta", c->rope_theta, 1.0001, 1e15);
    const char *type = str_field(&in, "rope_type", str_field(&in, "type", "default"));
    if (strcmp(type, "yarn") == 0)
        read_yarn(&in, c);
    else if (strcmp(type, "default") != 0)
        fault(&in, LTD_UNSUPPORTED, "%s type %.100s is not served (yarn and default are)", key, type);
    r->st = in.st;
}

/* ---------------------------------------------------------------- ids and sampling defaults */

static void add_eos(reader *r, model_config *c, const cJSON *v)
{
    int64_t id;
    if (ltd_json_int64(v, &id) != LTD_OK)
        return fault(r, LTD_CORRUPT, "eos_token_id must be an integer or a list of integers");
    if (id < 0 || id >= c->vocab_size) { /* can never be drawn */
        log_warn("model", "%s: eos_token_id %lld is outside the vocabulary of %d; left out", r->path,
                 (long long)id, c->vocab_size);
        return;
    }
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return;
    if (c->n_eos == MODEL_MAX_EOS)
        return fault(r, LTD_UNSUPPORTED, "eos_token_id: more than %d different ids", MODEL_MAX_EOS);
    c->eos[c->n_eos++] = (int32_t)id;
}

/* A missing id is nobody's claim: the classes' defaults (1 and 2, or 100000 and 100001 in another reference)
 * would end answers at some ordinary token. */
static void read_ids(reader *r, model_config *c)
{
    const cJSON *eos = field(r, "eos_token_id");
    if (eos && cJSON_IsArray(eos)) {
        for (const cJSON *v = eos->child; v; v = v->next) add_eos(r, c, v);
    } else if (eos) {
        add_eos(r, c, eos);
    }
    int64_t bos = -1;
    const cJSON *v = field(r, "bos_token_id");
    if (!v) return;
    if (ltd_json_int64(v, &bos) != LTD_OK) return fault(r, LTD_CORRUPT, "bos_token_id must be an integer");
    if (bos >= 0 && bos < c->vocab_size)
        c->bos = (int32_t)bos;
    else
        log_warn("model", "%s: bos_token_id %lld is outside the vocabulary of %d; left out", r->path,
                 (long long)bos, c->vocab_size);
}

static void read_generation(reader *r, model_config *c)
{
    read_ids(r, c);
    float temperature = (float)num_field(r, "temperature", 1, 0, 100);
    float top_p = (float)num_field(r, "top_p", 1, 0, 1);
    float min_p = (float)num_field(r, "min_p", 0, 0, 1);
    int32_t top_k = int_field(r, "top_k", 0, -1, INT32_MAX); /* -1: off, as some write it */
    if (!bool_field(r, "do_sample", true)) return;
    c->temperature = temperature;
    c->top_p = top_p;
    c->min_p = min_p;
    c->top_k_default = top_k > 0 ? top_k : 0;
}

/* ---------------------------------------------------------------- the files */

static ltd_status fill(const char *dir, const cJSON *config, const cJSON *generation, model_config *c,
                       ltd_err *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", dir);
    reader r = {.obj = config, .path = path, .within = "", .err = err};
    if (!cJSON_IsObject(config)) return ltd_fail(err, LTD_CORRUPT, "%s: must hold an object", path);
    *c = (model_config){.bos = -1, .temperature = 1, .top_p = 1};
    read_architecture(&r, c);
    if (r.st == LTD_OK) read_sizes(&r, c);
    if (r.st == LTD_OK) refuse_unsupported(&r, c);
    if (r.st == LTD_OK) read_experts(&r, c);
    if (r.st == LTD_OK) read_rope(&r, c);
    if (r.st == LTD_OK) read_ids(&r, c);
    if (r.st != LTD_OK || !generation) return r.st;

    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    r.obj = generation;
    if (!cJSON_IsObject(generation)) return ltd_fail(err, LTD_CORRUPT, "%s: must hold an object", path);
    read_generation(&r, c);
    return r.st;
}

static ltd_status parse(const char *dir, const char *name, const char *text, size_t len, cJSON **out,
                        ltd_err *err)
{
    ltd_err why;
    ltd_status st = ltd_json_parse(text, len, NULL, out, &why);
    return st == LTD_OK ? st : ltd_fail(err, st, "%s/%s: %s", dir, name, why.text);
}

ltd_status model_config_parse(const char *dir, const char *text, size_t len, const char *generation,
                              size_t generation_len, model_config *c, ltd_err *err)
{
    cJSON *config = NULL, *gen = NULL;
    ltd_status st = parse(dir, "config.json", text, len, &config, err);
    if (st == LTD_OK && generation)
        st = parse(dir, "generation_config.json", generation, generation_len, &gen, err);
    model_config filled;
    if (st == LTD_OK) st = fill(dir, config, gen, &filled, err);
    if (st == LTD_OK) *c = filled;
    cJSON_Delete(gen);
    cJSON_Delete(config);
    return st;
}

ltd_status model_config_read(const char *dir, model_config *c, ltd_err *err)
{
    char path[4096];
    char *text = NULL, *gen = NULL;
    size_t len = 0, gen_len = 0;
    snprintf(path, sizeof path, "%s/config.json", dir);
    ltd_status st = ltd_read_file(path, MAX_CONFIG_BYTES, &text, &len, err);
    if (st != LTD_OK) return st;
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    st = ltd_read_file(path, MAX_CONFIG_BYTES, &gen, &gen_len, err);
    if (st == LTD_OK || st == LTD_NOT_FOUND) /* optional */
        st = model_config_parse(dir, text, len, gen, gen_len, c, err);
    ltd_free(gen);
    ltd_free(text);
    return st;
}
