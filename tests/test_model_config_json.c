/* test_model_config_json.c - config.json: what is read, defaulted and refused (D38's fields, D30's scales).
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "model/model_private.h"

static ltd_status parse(const char *config, const char *generation, model_config *c, ltd_err *err)
{
    return model_config_parse("/ckpt", config, strlen(config), generation,
                              generation ? strlen(generation) : 0, c, err);
}

static model_config read_ok(const char *config, const char *generation)
{
    model_config c;
    ltd_err err = {{0}};
    if (parse(config, generation, &c, &err) != LTD_OK) fail_msg("%s\n%s", err.text, config);
    return c;
}

/* Refused with a line that names the file and the field. */
static void check_refused(const char *config, const char *generation, ltd_status st, const char *names)
{
    model_config c = {.vocab_size = -7};
    ltd_err err = {{0}};
    ltd_status got = parse(config, generation, &c, &err);
    const char *file = generation ? "/ckpt/generation_config.json" : "/ckpt/config.json";
    if (got != st || !strstr(err.text, names) || !strstr(err.text, file) || strchr(err.text, '\n'))
        fail_msg("%s for %s: %s", ltd_status_name(got), config, err.text);
    assert_int_equal(c.vocab_size, -7); /* untouched */
}

#define V2   "\"model_type\":\"deepseek_v2\",\"kv_lora_rank\":512,\"num_experts_per_tok\":6"
#define V3   "\"model_type\":\"deepseek_v3\",\"kv_lora_rank\":512"
#define YARN "\"factor\":40,\"original_max_position_embeddings\":4096"

static void v2_lite_is_read_whole(void **state)
{
    (void)state;
    model_config c =
        read_ok("{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"attention_bias\":false,\"attention_"
                "dropout\":0.0,\"aux_loss_alpha\":0.001,"
                "\"bos_token_id\":100000,\"eos_token_id\":100001,\"first_k_dense_replace\":1,\"hidden_act\":"
                "\"silu\",\"hidden_size\":2048,"
                "\"intermediate_size\":10944,\"kv_lora_rank\":512,\"max_position_embeddings\":163840,\"model_"
                "type\":\"deepseek_v2\","
                "\"moe_intermediate_size\":1408,\"moe_layer_freq\":1,\"n_group\":1,\"n_routed_experts\":64,"
                "\"n_shared_experts\":2,"
                "\"norm_topk_prob\":false,\"num_attention_heads\":16,\"num_experts_per_tok\":6,\"num_hidden_"
                "layers\":27,\"num_key_value_heads\":16,"
                "\"pretraining_tp\":1,\"q_lora_rank\":null,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
                "\"rms_norm_eps\":1e-06,"
                "\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":0.707,\"mscale_"
                "all_dim\":0.707,"
                "\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},\"rope_theta\":10000,\"routed_"
                "scaling_factor\":1.0,"
                "\"scoring_func\":\"softmax\",\"seq_aux\":true,\"tie_word_embeddings\":false,\"topk_group\":"
                "1,\"topk_method\":\"greedy\","
                "\"torch_dtype\":\"bfloat16\",\"use_cache\":true,\"v_head_dim\":128,\"vocab_size\":102400}",
                "{\"bos_token_id\":100000,\"do_sample\":true,\"eos_token_id\":100001,\"temperature\":0.3,"
                "\"top_p\":0.95}");
    assert_string_equal(c.architecture, "DeepseekV2ForCausalLM");
    assert_false(c.v3);
    assert_int_equal(c.vocab_size, 102400);
    assert_int_equal(c.hidden_size, 2048);
    assert_int_equal(c.intermediate_size, 10944);
    assert_int_equal(c.moe_intermediate_size, 1408);
    assert_int_equal(c.n_layers, 27);
    assert_int_equal(c.n_heads, 16);
    assert_int_equal(c.q_lora_rank, 0);
    assert_true(c.q_lora_stated);
    assert_int_equal(c.kv_lora_rank, 512);
    assert_int_equal(c.d_nope + c.d_rope + c.d_v, 128 + 64 + 128);
    assert_int_equal(c.n_experts, 64);
    assert_int_equal(c.n_shared, 2);
    assert_int_equal(c.top_k, 6);
    assert_int_equal(c.first_dense, 1);
    assert_int_equal(c.route, KERN_ROUTE_GREEDY);
    assert_int_equal(c.max_position, 163840);
    assert_true(c.rms_eps == 1e-6F && c.routed_scale == 1);
    assert_int_equal(c.rope, ROPE_YARN);
    assert_true(c.rope_theta == 10000 && c.rope_factor == 40 && c.rope_original == 4096 &&
                c.beta_fast == 32 && c.beta_slow == 1);
    assert_int_equal(c.bos, 100000);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 100001);
    assert_true(c.temperature == 0.3F && c.top_p == 0.95F && c.min_p == 0 && c.top_k_default == 0);
    assert_false(model_layer_is_moe(&c, 0));
    assert_true(model_layer_is_moe(&c, 1) && model_layer_is_moe(&c, 26));
}

static void v2_group_limited_is_read(void **state)
{
    (void)state;
    model_config c = read_ok("{" V2 ",\"q_lora_rank\":1536,\"n_routed_experts\":160,\"topk_method\":\"group_"
                             "limited_greedy\",\"n_group\":8,"
                             "\"topk_group\":3,\"routed_scaling_factor\":16.0}",
                             NULL);
    assert_int_equal(c.route, KERN_ROUTE_GROUP_LIMITED);
    assert_int_equal(c.n_group, 8);
    assert_int_equal(c.topk_group, 3);
    assert_true(c.routed_scale == 16);
    assert_int_equal(c.q_lora_rank, 1536);
}

static void d38_missing_fields_of_v2_take_the_defaults(void **state)
{
    (void)state;
    model_config c = read_ok("{" V2 "}", NULL);
    assert_false(c.norm_topk_prob);
    assert_true(c.routed_scale == 1.0F);
    assert_int_equal(c.n_group, 1);
    assert_int_equal(c.rope, ROPE_PLAIN);
    assert_true(c.rope_cos_factor == 1 && c.rope_theta == 10000);
    assert_int_equal(c.vocab_size, 32000);
    assert_int_equal(c.hidden_size, 4096);
    assert_int_equal(c.intermediate_size, 11008);
    assert_int_equal(c.moe_intermediate_size, 1407);
    assert_int_equal(c.n_layers, 32);
    assert_int_equal(c.n_heads, 32);
    assert_int_equal(c.n_experts, 64);
    assert_int_equal(c.n_shared, 2);
    assert_int_equal(c.first_dense, 0);
    assert_int_equal(c.moe_layer_freq, 1);
    assert_int_equal(c.q_lora_rank, 1536);
    assert_false(c.q_lora_stated);
    assert_int_equal(c.d_nope, 128);
    assert_int_equal(c.d_rope, 64);
    assert_int_equal(c.d_v, 128);
    assert_int_equal(c.route, KERN_ROUTE_GREEDY);
    assert_int_equal(c.max_position, 2048);
    assert_true(c.rms_eps == 1e-6F && !c.tied);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.n_eos, 0);
    assert_true(c.temperature == 1 && c.top_p == 1 && c.min_p == 0 && c.top_k_default == 0);
}

static void missing_fields_of_v3_take_the_defaults(void **state)
{
    (void)state;
    model_config c = read_ok("{" V3 "}", NULL);
    assert_true(c.v3);
    assert_string_equal(c.architecture, "DeepseekV3ForCausalLM");
    assert_true(c.norm_topk_prob);
    assert_true(c.routed_scale == 2.5F);
    assert_int_equal(c.n_group, 8);
    assert_int_equal(c.topk_group, 4);
    assert_int_equal(c.top_k, 8);
    assert_int_equal(c.n_experts, 256);
    assert_int_equal(c.n_shared, 1);
    assert_int_equal(c.first_dense, 3);
    assert_int_equal(c.vocab_size, 129280);
    assert_int_equal(c.hidden_size, 7168);
    assert_int_equal(c.intermediate_size, 18432);
    assert_int_equal(c.moe_intermediate_size, 2048);
    assert_int_equal(c.n_layers, 61);
    assert_int_equal(c.n_heads, 128);
    assert_int_equal(c.route, KERN_ROUTE_NOAUX_TC);
    assert_int_equal(c.max_position, 4096);
}

static void moonlight_is_read(void **state)
{
    (void)state;
    model_config c = read_ok(
        "{\"architectures\":[\"DeepseekV3ForCausalLM\"]," V3
        ",\"n_routed_experts\":64,\"n_group\":1,\"topk_group\":1,"
        "\"num_experts_per_tok\":6,\"topk_method\":\"noaux_tc\",\"scoring_func\":\"sigmoid\",\"norm_topk_"
        "prob\":true,"
        "\"routed_scaling_factor\":2.446,\"rms_norm_eps\":1e-5,\"rope_theta\":50000.0,\"vocab_size\":163840,"
        "\"eos_token_id\":163585,\"q_lora_rank\":null,\"num_nextn_predict_layers\":0}",
        "{\"max_length\":8192,\"eos_token_id\":[163585,163586]}");
    assert_int_equal(c.n_group, 1);
    assert_true(c.rms_eps == 1e-5F && c.rope_theta == 50000);
    assert_int_equal(c.n_eos, 2); /* the union, each once */
    assert_int_equal(c.eos[0], 163585);
    assert_int_equal(c.eos[1], 163586);
    assert_true(fabs(c.softmax_scale - 0.0721687836) < 1e-10);
}

static void nulls_that_mean_none(void **state)
{
    (void)state;
    model_config c = read_ok(
        "{\"model_type\":\"deepseek_v2\",\"kv_lora_rank\":512,\"n_routed_experts\":null,\"n_shared_experts\":"
        "null,"
        "\"q_lora_rank\":null,\"rope_scaling\":null,\"num_key_value_heads\":null,\"norm_topk_prob\":true}",
        NULL);
    assert_int_equal(c.n_experts, 0);
    assert_int_equal(c.n_shared, 0);
    assert_int_equal(c.q_lora_rank, 0);
    assert_false(model_layer_is_moe(&c, 5));
}

static void greedy_ignores_groups(void **state)
{
    (void)state;
    model_config c = read_ok(
        "{" V2 ",\"topk_method\":\"gready\",\"n_routed_experts\":64,\"n_group\":7,\"topk_group\":3}", NULL);
    assert_int_equal(c.route, KERN_ROUTE_GREEDY);
    assert_int_equal(c.n_group, 1);
    assert_int_equal(c.topk_group, 1);
}

static void d38_no_kv_lora_rank_is_refused(void **state)
{
    (void)state;
    check_refused("{\"model_type\":\"deepseek_v2\",\"num_experts_per_tok\":6}", NULL, LTD_UNSUPPORTED,
                  "kv_lora_rank");
    check_refused("{\"model_type\":\"deepseek_v2\",\"num_experts_per_tok\":6,\"kv_lora_rank\":null}", NULL,
                  LTD_UNSUPPORTED, "kv_lora_rank");
}

static void other_models_are_refused(void **state)
{
    (void)state;
    check_refused("{}", NULL, LTD_UNSUPPORTED, "architectures");
    check_refused("{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"}", NULL,
                  LTD_UNSUPPORTED, "LlamaForCausalLM");
    check_refused("{\"architectures\":[\"DeepseekV32ForCausalLM\"]," V3 "}", NULL, LTD_UNSUPPORTED,
                  "DeepseekV32ForCausalLM");
    check_refused("{\"model_type\":\"kimi_k2\",\"architectures\":[\"DeepseekV3ForCausalLM\"]}", NULL,
                  LTD_UNSUPPORTED, "kimi_k2");
    check_refused("{" V3 ",\"architectures\":[\"DeepseekV2ForCausalLM\"]}", NULL, LTD_CORRUPT, "deepseek_v3");
    check_refused("{" V2 ",\"architectures\":\"DeepseekV2ForCausalLM\"}", NULL, LTD_CORRUPT, "architectures");
    check_refused("{" V2 ",\"architectures\":[]}", NULL, LTD_CORRUPT, "architectures");
}

static void unsupported_values_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *config, *names;
    } cases[] = {
        {"{" V2 ",\"attention_bias\":true}", "attention_bias"},
        {"{" V2 ",\"mlp_bias\":true}", "mlp_bias"},
        {"{" V2 ",\"hidden_act\":\"gelu\"}", "gelu"},
        {"{" V2 ",\"norm_topk_prob\":true}", "norm_topk_prob"},
        {"{" V2 ",\"num_key_value_heads\":8}", "num_key_value_heads"},
        {"{" V2 ",\"scoring_func\":\"sigmoid\"}", "scoring_func"},
        {"{" V3 ",\"scoring_func\":\"softmax\"}", "scoring_func"},
        {"{" V2 ",\"topk_method\":\"noaux_tc\"}", "topk_method"},
        {"{" V3 ",\"topk_method\":\"greedy\"}", "topk_method"},
        {"{" V3 ",\"rope_interleave\":false}", "rope_interleave"},
        {"{" V3 ",\"quantization_config\":{\"quant_method\":\"fp8\"}}", "quantization_config"},
        {"{\"model_type\":\"deepseek_v2\",\"kv_lora_rank\":512}", "num_experts_per_tok"},
        {"{" V2 ",\"topk_method\":\"group_limited_greedy\",\"n_group\":7,\"topk_group\":3}", "n_group"},
        {"{" V2 ",\"topk_method\":\"group_limited_greedy\",\"n_group\":8}", "topk_group"},
        {"{" V2 ",\"topk_method\":\"group_limited_greedy\",\"n_group\":8,\"topk_group\":9}", "topk_group"},
        {"{" V2 ",\"topk_method\":\"group_limited_greedy\",\"n_group\":32,\"topk_group\":2}",
         "num_experts_per_tok"},
        {"{" V3 ",\"n_routed_experts\":8,\"n_group\":8,\"topk_group\":8}", "n_group"},
        {"{" V3 ",\"n_routed_experts\":4}", "num_experts_per_tok"},
        {"{\"model_type\":\"deepseek_v2\",\"kv_lora_rank\":512,\"num_experts_per_tok\":65}",
         "num_experts_per_tok"},
        {"{" V2 ",\"qk_rope_head_dim\":63}", "qk_rope_head_dim"},
        {"{" V2 ",\"hidden_size\":65537}", "hidden_size"},
        {"{" V2 ",\"vocab_size\":0}", "vocab_size"},
        {"{" V2 ",\"vocab_size\":99999999999}", "vocab_size"},
        {"{" V2 ",\"num_hidden_layers\":-1}", "num_hidden_layers"},
        {"{" V2 ",\"rms_norm_eps\":0}", "rms_norm_eps"},
        {"{" V2 ",\"q_lora_rank\":0}", "q_lora_rank"},
        {"{" V2 ",\"rope_theta\":1}", "rope_theta"},
        {"{" V2 ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", "linear"},
        {"{" V2 ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":4}}", "dynamic"},
        {"{" V2 ",\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":4096}}",
         "rope_scaling.factor"},
        {"{" V2 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40}}",
         "rope_scaling.original_max_position_embeddings"},
        {"{" V2 ",\"rope_parameters\":{\"type\":\"yarn\"," YARN ",\"beta_fast\":1,\"beta_slow\":2}}",
         "rope_parameters.beta_fast"},
        {"{" V2
         ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5,\"original_max_position_embeddings\":4096}}",
         "rope_scaling.factor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_refused(cases[i].config, NULL, LTD_UNSUPPORTED, cases[i].names);
}

static void wrong_types_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *config, *names;
    } cases[] = {
        {"[]", "object"},
        {"{" V2 ",\"vocab_size\":\"320\"}", "vocab_size"},
        {"{" V2 ",\"vocab_size\":320.5}", "vocab_size"},
        {"{" V2 ",\"moe_layer_freq\":[0,1]}", "moe_layer_freq"},
        {"{" V2 ",\"rms_norm_eps\":\"1e-6\"}", "rms_norm_eps"},
        {"{" V2 ",\"tie_word_embeddings\":1}", "tie_word_embeddings"},
        {"{" V2 ",\"topk_method\":3}", "topk_method"},
        {"{" V2 ",\"rope_scaling\":\"yarn\"}", "rope_scaling"},
        {"{" V2 ",\"rope_scaling\":{\"type\":7}}", "rope_scaling.type"},
        {"{" V2 ",\"eos_token_id\":\"</s>\"}", "eos_token_id"},
        {"{" V2 ",\"eos_token_id\":[1,\"x\"]}", "eos_token_id"},
        {"{" V2 ",\"bos_token_id\":[1]}", "bos_token_id"},
        {"{" V2 ",\"vocab_size\":320,\"vocab_size\":320}", "vocab_size"},
        {"{" V2, "line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_refused(cases[i].config, NULL, LTD_CORRUPT, cases[i].names);
}

static void numbers_may_be_ints_or_floats(void **state)
{
    (void)state;
    model_config c = read_ok(
        "{" V2
        ",\"vocab_size\":3.2e2,\"rope_theta\":10000.0,\"rms_norm_eps\":1,\"routed_scaling_factor\":16}",
        NULL);
    assert_int_equal(c.vocab_size, 320);
    assert_true(c.rms_eps == 1 && c.routed_scale == 16);
}

static void d30_yarn_scales(void **state)
{
    (void)state;
    static const struct {
        const char *scaling;
        double scale, factor;
    } cases[] = {
        {"{\"type\":\"yarn\"," YARN ",\"mscale\":0.707,\"mscale_all_dim\":0.707}", .1147213867929261, 1},
        {"{\"type\":\"yarn\"," YARN ",\"mscale\":1.0,\"mscale_all_dim\":0.707}", .1147213867929261,
         1.0857264},
        {"{\"type\":\"yarn\"," YARN "}", .0721687836, 1.3688879},
        {"null", .0721687836, 1},
        {"{\"type\":\"yarn\"," YARN ",\"mscale\":1,\"mscale_all_dim\":1}", .1352337788608801, 1},
        {"{\"type\":\"yarn\"," YARN ",\"mscale\":0.707}", .0721687836, 1.3688879},
        {"{\"type\":\"yarn\"," YARN ",\"mscale\":1,\"mscale_all_dim\":0}", .0721687836, 1.3688879},
        {"{\"type\":\"yarn\"," YARN ",\"mscale\":1,\"mscale_all_dim\":0.707,\"attention_factor\":1.25}",
         .1147213867929261, 1.25},
        {"{\"rope_type\":\"default\",\"rope_theta\":10000,\"mscale_all_dim\":1}", .0721687836, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int v5 = 0; v5 < 2; v5++) {
            char text[1024];
            snprintf(text, sizeof text, "{" V2 ",\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"%s\":%s}",
                     v5 ? "rope_parameters" : "rope_scaling", cases[i].scaling);
            model_config c = read_ok(text, NULL);
            if (fabs(c.softmax_scale - cases[i].scale) > 1e-9 ||
                fabs(c.rope_cos_factor - cases[i].factor) > 1e-6)
                fail_msg("%s: scale %.10f factor %.10f", text, c.softmax_scale, c.rope_cos_factor);
        }
}

static void rope_of_either_spelling(void **state)
{
    (void)state;
    model_config c = read_ok("{" V2 ",\"head_dim\":64,\"dtype\":\"bfloat16\",\"rope_parameters\":{\"rope_"
                             "type\":\"yarn\",\"type\":\"yarn\","
                             "\"rope_theta\":50000," YARN ",\"truncate\":false}}",
                             NULL);
    assert_true(c.rope == ROPE_YARN && c.rope_theta == 50000 && !c.rope_truncate && c.beta_fast == 32 &&
                c.beta_slow == 1);
    assert_int_equal(c.d_nope, 128); /* head_dim says the rotary size there, nothing else */
    c = read_ok("{" V2 ",\"rope_theta\":7,\"rope_scaling\":null,\"rope_parameters\":{\"rope_theta\":9.5,"
                "\"rope_type\":\"default\"}}",
                NULL);
    assert_true(c.rope == ROPE_PLAIN && c.rope_theta == 9.5);
    c = read_ok("{" V2 ",\"rope_theta\":7,\"rope_scaling\":{\"type\":\"yarn\"," YARN
                "},\"rope_parameters\":{\"rope_type\":\"default\"}}",
                NULL);
    assert_true(c.rope == ROPE_YARN && c.rope_theta == 7); /* rope_scaling goes first */
}

static void ids_outside_the_vocabulary_are_left_out(void **state)
{
    (void)state;
    model_config c =
        read_ok("{" V2 ",\"vocab_size\":320,\"bos_token_id\":100000,\"eos_token_id\":[100001,-1,5,5]}",
                "{\"eos_token_id\":6,\"bos_token_id\":4}");
    assert_int_equal(c.bos, 4);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 5);
    assert_int_equal(c.eos[1], 6);
}

static void generation_defaults(void **state)
{
    (void)state;
    model_config c = read_ok("{" V2 "}", "{\"temperature\":0.6,\"top_p\":0.9,\"top_k\":40,\"min_p\":0.05}");
    assert_true(c.temperature == 0.6F && c.top_p == 0.9F && c.top_k_default == 40 && c.min_p == 0.05F);
    c = read_ok("{" V2 "}", "{\"do_sample\":false,\"temperature\":0.6,\"top_p\":0.9,\"top_k\":40,\"min_p\":0."
                            "05,\"eos_token_id\":3}");
    assert_true(c.temperature == 1 && c.top_p == 1 && c.top_k_default == 0 && c.min_p == 0);
    assert_int_equal(c.eos[0], 3);
    c = read_ok("{" V2 "}", "{\"top_k\":-1,\"temperature\":null}");
    assert_true(c.temperature == 1 && c.top_k_default == 0);
    check_refused("{" V2 "}", "{\"top_p\":1.5}", LTD_UNSUPPORTED, "top_p");
    check_refused("{" V2 "}", "{\"temperature\":-1}", LTD_UNSUPPORTED, "temperature");
    check_refused("{" V2 "}", "{\"min_p\":2}", LTD_UNSUPPORTED, "min_p");
    check_refused("{" V2 "}", "{\"top_k\":\"all\"}", LTD_CORRUPT, "top_k");
    check_refused("{" V2 "}", "[", LTD_CORRUPT, "line 1");
    check_refused("{" V2 "}", "3", LTD_CORRUPT, "object");
    check_refused("{" V2 "}", "{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}",
                  LTD_UNSUPPORTED, "eos_token_id");
}

static void missing_file_is_named(void **state)
{
    (void)state;
    model_config c;
    ltd_err err = {{0}};
    assert_int_equal(model_config_read("/nonexistent", &c, &err), LTD_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/config.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v2_lite_is_read_whole),
        cmocka_unit_test(v2_group_limited_is_read),
        cmocka_unit_test(d38_missing_fields_of_v2_take_the_defaults),
        cmocka_unit_test(missing_fields_of_v3_take_the_defaults),
        cmocka_unit_test(moonlight_is_read),
        cmocka_unit_test(nulls_that_mean_none),
        cmocka_unit_test(greedy_ignores_groups),
        cmocka_unit_test(d38_no_kv_lora_rank_is_refused),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(unsupported_values_are_refused_by_name),
        cmocka_unit_test(wrong_types_are_refused_by_name),
        cmocka_unit_test(numbers_may_be_ints_or_floats),
        cmocka_unit_test(d30_yarn_scales),
        cmocka_unit_test(rope_of_either_spelling),
        cmocka_unit_test(ids_outside_the_vocabulary_are_left_out),
        cmocka_unit_test(generation_defaults),
        cmocka_unit_test(missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
