/* fuzz_config_json.c - any text as config.json and, past a NUL, generation_config.json: refused, or a
 * configuration that the rest may trust. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_private.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(const model_config *c)
{
    LTD_CHECK(c->vocab_size > 0 && c->hidden_size > 0 && c->n_layers > 0 && c->n_heads > 0 &&
                  c->kv_lora_rank > 0,
              "sizes");
    LTD_CHECK(c->d_rope >= 2 && c->d_rope % 2 == 0 && c->d_nope > 0 && c->d_v > 0 && c->max_position > 0,
              "dims");
    LTD_CHECK(c->n_experts == 0 || (c->top_k >= 1 && c->top_k <= c->n_experts), "top_k");
    LTD_CHECK(c->n_experts == 0 ||
                  (c->n_experts % c->n_group == 0 && c->topk_group >= 1 && c->topk_group <= c->n_group),
              "groups");
    LTD_CHECK(isfinite(c->softmax_scale) && c->softmax_scale > 0 && isfinite(c->rope_cos_factor) &&
                  c->rope_cos_factor > 0,
              "scales");
    LTD_CHECK(c->n_eos >= 0 && c->n_eos <= MODEL_MAX_EOS && c->bos >= -1 && c->bos < c->vocab_size, "ids");
    LTD_CHECK(c->temperature >= 0 && c->top_p >= 0 && c->top_p <= 1 && c->min_p >= 0 && c->min_p <= 1 &&
                  c->top_k_default >= 0,
              "sampling");
    float *t = ltd_alloc((size_t)c->d_rope * 3 * sizeof *t);
    model_rope_table(c, 3, t);
    for (int32_t i = 0; i < c->d_rope * 3; i++) LTD_CHECK(isfinite(t[i]), "table[%d]", i);
    ltd_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data, *nul = n ? memchr(text, 0, n) : NULL;
    size_t len = nul ? (size_t)(nul - text) : n;
    model_config c;
    ltd_err err = {{0}};
    static bool quiet;
    if (!quiet)
        quiet = log_start(&(log_config){.level = LOG_ERROR, .fd = 2}) ==
                LTD_OK; /* ids outside the vocabulary are warned of */
    if (model_config_parse("fuzz", text, len, nul ? nul + 1 : NULL, nul ? n - len - 1 : 0, &c, &err) ==
        LTD_OK)
        check(&c);
    else
        LTD_CHECK(err.text[0], "a refusal without a reason");
    return 0;
}
