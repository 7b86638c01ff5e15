# One line per test or benchmark that needs more than its own folder's libraries:
#   SUPPORT_<name> := files of tests/support/ to link (without .c);  LINK_<name> := folders, in link order, instead of the default.
SUPPORT_test_model_goldens := model_runner
SUPPORT_test_scheduler_same_bits := model_runner
SUPPORT_test_model_safetensors := checkpoint_writer
SUPPORT_test_model_weights := checkpoint_writer
LINK_fuzz_safetensors := model mempool kernels config
LINK_fuzz_config_json := model mempool kernels config
SUPPORT_test_model_perplexity := model_runner
SUPPORT_test_model_tokenizer := byte_tokenizer
SUPPORT_test_model_tokenizer_vectors := byte_tokenizer
SUPPORT_test_model_tokenizer_regex := byte_tokenizer
LINK_bench_tokenizer := model mempool kernels config
SUPPORT_fuzz_tokenizer := byte_tokenizer
LINK_fuzz_tokenizer := model mempool kernels config
LINK_test_radix_random := radix mempool kernels config
LINK_bench_radix := radix mempool kernels config
SUPPORT_test_kernels_math := ktest
SUPPORT_test_kernels_matmul := ktest
SUPPORT_test_kernels_rows := ktest
SUPPORT_test_kernels_moe := ktest
SUPPORT_test_kernels_attn := ktest
SUPPORT_test_kernels_sample := ktest
SUPPORT_test_kernels_backend := ktest
SUPPORT_test_server_parse := byte_tokenizer
SUPPORT_test_server_frames := byte_tokenizer
SUPPORT_fuzz_request := byte_tokenizer
SUPPORT_bench_http := byte_tokenizer checkpoint_writer
LINK_bench_http := model mempool kernels config
SUPPORT_test_scheduler_output := sched_rig fake_model byte_tokenizer
SUPPORT_test_scheduler_batch := sched_rig fake_model byte_tokenizer
SUPPORT_test_scheduler_life := sched_rig fake_model byte_tokenizer
SUPPORT_test_scheduler_random := sched_rig fake_model byte_tokenizer
SUPPORT_test_scheduler_threads := sched_rig fake_model byte_tokenizer
SUPPORT_test_scheduler_engine := sched_rig fake_model byte_tokenizer
SUPPORT_bench_scheduler := fake_model byte_tokenizer
# Those that the thread sanitizer has something to say about.
THREADED := test_config_log test_kernels_backend test_kernels_matmul test_model_tokenizer test_scheduler_same_bits test_scheduler_threads test_scheduler_life test_scheduler_batch
