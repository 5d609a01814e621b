"""Tests that `make long` runs and `make test` leaves out: each takes seconds, and others of its kind stay.

A test that is named by its own (`pytest file::test`) runs in any case; `make fuzz` runs its own.
"""

from __future__ import annotations

LONG = {
    "backends/cuda/test_conformance.py": {
        "test_conformance[ops of two doubles]": "two floats, and tests of ops",
        "test_conformance[ops of two longs]": "two floats, and tests of ops",
        "test_conformance[ops of two]": "two floats, and tests of ops",
        "test_conformance[threads of the host]": "the same on other devices",
    },
    "backends/hip/test_objects.py": {
        "test_dtypes": "kernels and graphs",
    },
    "backends/test_measure.py": {
        "test_the_command_prints_them": "what it prints, measured one by one",
    },
    "benchmarks/test_dynamic.py": {
        "test_two_programs_run_at_all_temperatures_and_agree": "its parts, one by one",
    },
    "benchmarks/test_generating.py": {
        "test_a_token_of_narrow_layers_is_timed": "a process that says when its first token came",
    },
    "benchmarks/test_sessions.py": {
        "test_an_edit_of_each_graph_of_an_image_generator_changes_its_result": "other graphs",
    },
    "benchmarks/test_sharding.py": {
        "test_explanations_are_of_several_devices": "core/execute/test_explained_meshes.py",
        "test_plans_of_more_layers_have_as_many_programs": "the other measures",
    },
    "core/compile/test_over_devices.py": {
        "test_dropout_tables_norms_counters_and_constants_are_those_of_one_device[None]": "the mode same",
        "test_gradients_are_used_inside_and_outside_wherever_they_lie[made anew]": "used inside",
        "test_gradients_are_used_inside_and_outside_wherever_they_lie[set to zero]": "used inside",
    },
    "core/functional/test_attention_gradient.py": {
        "test_devices_agree[opencl-True]": "wgpu and dummy",
    },
    "core/functional/test_k_quants.py": {
        "test_blocks_without_spread_come_back[Q6_K]": "Q4_K and Q5_K",
    },
    "core/test_surface.py": {
        "test_accuracy[special.modified_bessel_k0]": "i0e, i1e, airy_ai and 40 functions",
        "test_accuracy[special.modified_bessel_k1]": "i0e, i1e, airy_ai and 40 functions",
        "test_incomplete_gamma": "samples of torch's own",
    },
    "distributed/test_bits.py": {
        "test_ten_steps_have_the_bits_of_one_device[8-13-ways4]": "1 to 4 devices",
        "test_ten_steps_of_a_transformer_have_the_bits_of_one_device": "perceptrons on 1 to 4",
    },
    "distributed/test_load.py": {
        "test_values_are_those_of_one_device_throughout": "noise, a slow device, recovery",
    },
    "distributed/test_speeds.py": {
        "test_a_training_step_takes_its_work_over_the_sum_of_speeds[Adam-2048-512-16000000000.0-1.05]":
            "two other farms",
        "test_blocks_by_speed_have_the_bits_of_one_device": "steps by the sum of speeds",
    },
    "distributed/test_training.py": {
        "TestTraining::test_by_batches[transformer]": "columns and rows, and perceptrons",
        "TestTraining::test_with_nothing_twice[transformer]": "columns and rows, and perceptrons",
    },
    "examples/test_backend_c.py": {
        "test_it_conforms[whole]": "copies, memory, errors, what it says of itself, and tensors",
    },
    "examples/test_finetune.py": {
        "test_a_run_learns_and_goes_on_bit_for_bit": "the same of examples/gpt.py",
    },
    "examples/test_sharded.py": {
        "test_one_script_has_the_same_bits_on_all_devices": "tests/distributed/test_bits.py",
    },
    "fuzz/test_basic.py": {
        "test_basic_plans_of_random_loops_compute_what_final_ones_do": "basic plans without loops",
    },
    "fuzz/test_families.py": {
        "test_every_size_and_number_is_right[cpu:0-30]": "the first ten",
        "test_every_size_and_number_is_right_on_basic_plans": "final plans; basic ones in test_basic.py",
    },
    "fuzz/test_layers.py": {
        "test_layers_compute_what_the_reference_does[matmul]": "batched products, and perceptrons",
    },
    "fuzz/test_variables.py": {
        "test_kernels_are_right_at_both_bounds_and_around_whole_vectors[cpu:0-200-sizes0-gradient of image]":
            "dummy:0, and the image itself",
    },
    "ir/kernel/test_transforms.py": {
        "test_random_schedules[byte sums]": "ten others; on devices all",
        "test_random_schedules[causal]": "ten others; on devices all",
        "test_random_schedules[convolution]": "ten others; on devices all",
        "test_random_schedules[depthwise taps]": "ten others; on devices all",
        "test_random_schedules[depthwise]": "ten others; on devices all",
        "test_random_schedules[matmul in threads]": "ten others; on devices all",
    },
    "ir/passes/test_quotients.py": {
        "test_taken_where_all_quotients_of_few_bits_are_right[8]": "fewer bits",
    },
    "ir/test_math.py": {
        "test_float64[cos]": "float32, and four other functions",
        "test_float64[erf]": "float32, and four other functions",
        "test_float64[expm1]": "float32, and four other functions",
        "test_float64[log2]": "float32, and four other functions",
        "test_float64[sin]": "float32, and four other functions",
        "test_power_float64": "float32 in all its ways, and float64's logarithm and exponential",
    },
    "models/test_batch.py": {
        "test_a_sequence_has_the_tokens_that_it_has_alone[gemma3_text]": "qwen3",
        "test_a_sequence_has_the_tokens_that_it_has_alone[gpt2]": "qwen3",
    },
    "models/test_decoders.py": {
        "test_steps_with_a_cache_give_what_the_whole_gives[llama]": "five other architectures",
        "test_steps_with_a_cache_give_what_the_whole_gives[phi]": "five other architectures",
    },
    "models/test_gguf.py": {
        "test_a_file_gives_the_model_back[llama-BlockFormat.Q8_0]": "qwen3 and gemma3",
    },
    "models/test_speculation.py": {
        "test_guesses_change_no_likeliest_token[gemma3_text]": "two other architectures",
        "test_guesses_change_no_likeliest_token[phi]": "two other architectures",
    },
    "optim/test_steps.py": {
        "test_a_batch_that_does_not_fit_changes_nothing_and_half_of_it_can_be_tried[new memory-zbsi]":
            "other orders of a step",
        "test_an_interrupt_leaves_no_half_step[new memory-False]": "the other three ways",
    },
    "scheduler/kernelize/test_decisions.py": {
        "test_kernels_compute_what_the_graph_means[prologue of windows]": "104 other graphs",
    },
    "scheduler/optimize/test_contraction.py": {
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(67, 9, 16)-avx2]": "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(67, 9, 16)-small caches]":
            "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(8, 30, 70)-avx2]": "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(9, 401, 50)-avx2]": "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(9, 401, 50)-avx512]":
            "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(9, 401, 50)-small caches]":
            "other sizes and processors",
        "test_a_stream_that_steps_from_line_to_line_is_used_in_blocks[avx2]": "avx512",
        "test_one_kernel_multiplies_matrices_of_all_sizes[(3, 200, 129)-small caches]":
            "other sizes and processors",
    },
    "scheduler/optimize/test_decisions.py": {
        "test_every_decision_may_be_another[a deep product]": "20 other kernels",
        "test_every_decision_may_be_another[an update]": "20 other kernels",
        "test_every_decision_may_be_another[attention on blocks]": "20 other kernels",
    },
    "scheduler/optimize/test_gpu.py": {
        "test_right_for_every_size[attention-2]": "132 processors",
        "test_right_for_every_size[causal-2]": "132 processors",
        "test_tiles[tile1-shape2]": "five others",
    },
    "scheduler/parts/test_plan.py": {
        "test_random_programs_give_what_one_device_gives[devices2]": "three other farms",
    },
    "scheduler/parts/test_verify.py": {
        "test_graphs_are_proved_and_each_with_a_fault_is_refused[others]": "50 graphs",
    },
    "scheduler/pools/test_resting.py": {
        "test_a_fault_leaves_state_as_it_was_or_unreadable[copies]": "launches, allocations",
    },
    "scheduler/pools/test_within.py": {
        "test_training_steps_in_a_part_of_their_memory[gpt-shares0]": "a ResNet",
    },
    "scheduler/spmd/test_plan.py": {
        "test_training_is_that_of_one_device[False]": "sharded weights",
    },
    "scheduler/stream/test_stream.py": {
        "test_the_same_as_at_once": "slices of results",
    },
    "scheduler/test_winograd.py": {
        "test_compiled_steps_in_tiles_train_alike[1]": "two threads",
        "test_random_convolutions": "each kind of convolution, and random steps",
    },
    "serve/test_server.py": {
        "test_it_stops_while_it_streams[15]": "SIGINT",
    },
    "test_prepare.py": {
        "test_each_routine_computes_numbers[images]": "others; networks of images",
        "test_each_routine_computes_numbers[recurrent layers, 100 wide]": "narrow ones",
        "test_each_routine_computes_numbers[recurrent layers, 32 wide]": "narrow ones",
    },
    "test_scale.py": {
        "test_tree": "chains",
    },
    "testing/test_strategies.py": {
        "test_every_op_and_dtype_turns_up": "the fuzzers themselves",
    },
}  # fmt: skip
"""By their file below `tests/`: what of their kind `make test` runs."""
