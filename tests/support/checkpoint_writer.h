/* checkpoint_writer.h - checkpoints made on the spot: the CHAIN and RAND devices of the requirements, and
 * damaged ones. A checkpoint is built in memory, where a test may take a tensor away, add one or reshape one,
 * and is then written as config.json and safetensors.  Faults of the writer itself (no disk space) end the
 * process.  No tokenizer is written. */
#ifndef LTD_TESTS_CHECKPOINT_WRITER_H
#define LTD_TESTS_CHECKPOINT_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct support_dims {
    int32_t vocab, hidden, inter, moe_inter;
    int32_t layers, first_dense;
    int32_t heads, q_lora, kv_lora, nope, rope, v; /* q_lora 0: none */
    int32_t experts, shared, top_k, n_group, topk_group;
    const char *topk_method; /* NULL: greedy, with v3 noaux_tc */
    bool v3, tied, stacked_experts;
    int32_t max_position;
    const char *dtype;  /* of the matrices and norms: "BF16", "F16", "F32" */
    int32_t shards;     /* 1: model.safetensors; more: an index */
    const char *config; /* JSON object whose members replace those of config.json, "__remove__" takes one out;
                           or NULL */
} support_dims;

/* vocab and hidden 320, one dense and one MoE layer of 8 experts, 2 heads, no q_lora, BF16, one file. */
extern const support_dims support_dims_small;

typedef struct support_tensor {
    char *name;
    char dtype[16];
    int32_t rank;
    int64_t shape[4];
    size_t bytes;
    unsigned char *data;
} support_tensor;

typedef struct support_checkpoint {
    support_dims dims;
    support_tensor *tensors; /* in the order of the model */
    int32_t n, cap;
} support_checkpoint;

/* CHAIN: the greedy token after t is next(t), logit 71.54 against 0, whatever came before (requirements,
 * "Test devices"). An edge replaces what its `from` had; two edges of one `from` are a fair coin.  dims: NULL
 * = small; vocab must equal hidden. */
typedef struct support_edge {
    int32_t from, to;
} support_edge;
support_checkpoint *support_chain(const support_dims *dims, const support_edge *edges, int32_t n_edges);
/* The table itself: next of t where no edge says otherwise. */
int32_t support_chain_next(int32_t t);

/* RAND: every tensor random, a function of (seed, its name) alone; scaled so that activations and logits
 * spread by a few units. */
support_checkpoint *support_rand(uint64_t seed, const support_dims *dims);
void support_checkpoint_destroy(support_checkpoint *c);

support_tensor *support_find(support_checkpoint *c, const char *name); /* NULL if there is none */
support_tensor *support_add(support_checkpoint *c, const char *name, const char *dtype, int32_t rank,
                            const int64_t *shape); /* zeros */
void support_drop(support_checkpoint *c, const char *name);
void support_set(support_tensor *t, int64_t i, float value); /* element i, rounded to the tensor's dtype */
void support_write_checkpoint(const support_checkpoint *c,
                              const char *dir); /* config.json and weights; dir exists */

/* In one call. */
void support_write_chain(const char *dir, const support_dims *dims, const support_edge *edges,
                         int32_t n_edges);
void support_write_rand(const char *dir, uint64_t seed, const support_dims *dims);
void support_write_config(const char *dir, const support_dims *dims);

/* Any file, and any safetensors file: length of the header, the header as given, the data as given. */
void support_write_file(const char *dir, const char *name, const void *bytes, size_t n);
void support_write_safetensors(const char *dir, const char *name, const char *header, const void *data,
                               size_t n);
void support_copy_file(const char *from_dir, const char *name, const char *to_dir);

/* A new folder under $TMPDIR or /tmp; remove takes it away with the files in it, and frees the name. */
char *support_dir_create(void);
void support_dir_remove(char *dir);

#endif
