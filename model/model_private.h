/* model_private.h - what the files of model/ share: the checkpoint's configuration, its tensors, the weights on a device.
 * Everything here is immutable once loaded. */
#ifndef LTD_MODEL_PRIVATE_H
#define LTD_MODEL_PRIVATE_H

#include "kernels/kernels.h"
#include "model/model.h"

/* ---------------------------------------------------------------- config.json (config_json.c) */
typedef enum rope_kind { ROPE_PLAIN, ROPE_YARN } rope_kind;

typedef struct model_config {
    char architecture[64];
    bool v3;                      /* DeepseekV3ForCausalLM: sigmoid gate, noaux_tc */
    int32_t vocab_size, hidden_size, intermediate_size, moe_intermediate_size;
    int32_t n_layers, n_heads;
    int32_t q_lora_rank;          /* 0 = none: one q_proj */
    bool q_lora_stated;           /* config.json has the key (null too); if not, model_config_settle asks the tensors */
    int32_t kv_lora_rank, d_nope, d_rope, d_v;
    int32_t n_experts;            /* 0 = no MoE layer */
    int32_t n_shared, top_k, first_dense, moe_layer_freq;
    kern_route_method route;
    int32_t n_group, topk_group;  /* 1, 1 = none */
    bool norm_topk_prob;
    float routed_scale;
    float rms_eps;
    bool tied;                    /* tie_word_embeddings */
    int32_t max_position;
    /* rope */
    rope_kind rope;
    double rope_theta, rope_factor, beta_fast, beta_slow;
    int32_t rope_original;        /* original_max_position_embeddings */
    bool rope_truncate;
    double rope_cos_factor;       /* on cos and sin, sheet 3.4 */
    double softmax_scale;         /* (d_nope + d_rope)^-0.5, times g(factor, mscale_all_dim)^2 */
    /* ids and sampling defaults, config.json and generation_config.json together */
    int32_t bos;
    int32_t eos[MODEL_MAX_EOS];
    int32_t n_eos;
    float temperature, top_p, min_p;
    int32_t top_k_default;
} model_config;

static inline bool model_layer_is_moe(const model_config *c, int32_t layer)
{
    return c->n_experts > 0 && layer >= c->first_dense && layer % c->moe_layer_freq == 0;
}

/* Reads dir/config.json and, if there, dir/generation_config.json.  Every field that the forward pass depends on is taken, defaulted as the reference does, or refused by name. */
ltd_status model_config_read(const char *dir, model_config *c, ltd_err *err);
/* The same from texts; generation may be NULL.  dir is for messages.  For fuzzing. */
ltd_status model_config_parse(const char *dir, const char *text, size_t len, const char *generation, size_t generation_len, model_config *c, ltd_err *err);
/* cos and sin of every position below n_pos: out f32 [n_pos][d_rope / 2][2], with rope_cos_factor folded in (sheet 3.2 to 3.4). */
void model_rope_table(const model_config *c, int32_t n_pos, float *out);
void model_rope_inv_freq(const model_config *c, double *inv_freq); /* [d_rope / 2]; for tests */

/* ---------------------------------------------------------------- safetensors (safetensors.c) */
typedef enum st_dtype { ST_BF16, ST_F16, ST_F32, ST_OTHER } st_dtype;
typedef struct st_tensor {
    const char *name;   /* belongs to the st_files */
    st_dtype dtype;
    char dtype_name[16];
    int32_t rank;
    int64_t shape[8];
    const void *data;   /* in the mapping; any alignment */
    size_t bytes;
    const char *file;
} st_tensor;
typedef struct st_files st_files; /* all shards of a checkpoint, mapped read-only */
/* Opens model.safetensors or what model.safetensors.index.json lists; enforces the format's rules (sheet 2.4, 2.5) on every file. */
ltd_status st_open(const char *dir, st_files **out, ltd_err *err);
/* One file alone (tests, fuzzing, goldens). */
ltd_status st_open_file(const char *path, st_files **out, ltd_err *err);
void st_close(st_files *f);
const st_tensor *st_find(const st_files *f, const char *name); /* or NULL */
int32_t st_count(const st_files *f);
const st_tensor *st_at(const st_files *f, int32_t i);          /* 0 <= i < st_count, by name; one array, so that t - st_at(f, 0) is t's index */
const char *st_path(const st_files *f);                        /* the folder or file that was opened */
uint64_t st_fingerprint(const st_files *f);                    /* of all headers */

/* ---------------------------------------------------------------- weights (weights.c) */
typedef struct layer_weights {
    float *input_norm, *post_norm;   /* device f32 [hidden] */
    float *q_a_norm;                 /* [q_lora] or NULL */
    float *kv_a_norm;                /* [kv_lora] */
    kern_weight *qkv_a;              /* stacked: (q_proj or q_a_proj), then kv_a_proj_with_mqa; k = hidden */
    kern_weight *q_b;                /* [heads * (nope + rope)][q_lora], or NULL */
    kern_weight *kv_b;               /* [heads * (nope + v)][kv_lora] */
    kern_weight *o;                  /* [hidden][heads * v] */
    /* dense layer, or the shared experts' fused MLP (NULL: none) */
    kern_weight *gate_up;            /* [2 * inter][hidden], gate rows first */
    kern_weight *down;               /* [hidden][inter] */
    int32_t inter;
    /* MoE layer */
    bool moe;
    kern_weight *router;             /* [experts][hidden] */
    float *router_bias;              /* device f32 [experts] or NULL */
    kern_weight *experts_gate_up;    /* experts matrices [2 * moe_inter][hidden] */
    kern_weight *experts_down;       /* experts matrices [hidden][moe_inter] */
} layer_weights;

/* Between model_config_read and everything else: a config.json without q_lora_rank means 1536 to one reference and "whatever the tensors are" to people, so the
 * tensors of layer 0 decide (q_proj alone: none; q_a_proj: its rows). */
void model_config_settle(model_config *c, const st_files *f);

typedef struct model_weights {
    kern_backend *backend;
    kern_weight *embed;      /* [vocab][hidden] */
    kern_weight *lm_head;    /* the same handle as embed when tied */
    float *final_norm;
    int32_t n_layers;
    layer_weights *layers;
    float *vectors;          /* device: every norm and router bias, one block that the pointers above point into */
    size_t bytes;            /* on the device */
    int64_t n_parameters;
} model_weights;

/* Takes every tensor that the configuration needs from f, checking presence, dtype and shape (all faults of a kind in one line, the first few named);
 * unexpected tensors are warned of once; those of layers past n_layers are silently left. */
ltd_status model_weights_load(const model_config *c, const st_files *f, kern_backend *b, const kern_ctx *ctx, model_weights **out, ltd_err *err);
void model_weights_destroy(model_weights *w);

/* ---------------------------------------------------------------- a started model (model.c) */
const model_limits *model__limits(const model *m);
int32_t model__n_slots(const model *m);
/* Tests: from the next step on, the logits of each step's samples go to logits[max_samples][vocab] (host); NULL ends it.  Only while nothing is in flight. */
void model__capture(model *m, float *logits);

#endif
