"""Tests that `make long` runs and `make test` leaves out: each takes seconds, and others of its kind stay.

A test that is named by its own (`pytest file::test`) runs in any case; `make fuzz` runs its own. In a name, "..."
stands for anything.
"""

from __future__ import annotations


def is_named(test: str, name: str) -> bool:
    """True for a test that a name here stands for."""
    begin, dots, end = name.partition("...")
    return test.startswith(begin) and test.endswith(end) if dots else test == name


LONG = {
    "autograd/test_vjp.py": {
        "test_products_that_scatter_know_higher_derivatives": "second derivatives of each against differences",
    },
    "backends/cpu/test_ops.py": {
        "test_constant_operands": "operands that vary, and pairs of special values",
    },
    "backends/cuda/test_conformance.py": {
        "test_conformance[ops of two doubles]": "each float alone, and tests of ops",
        "test_conformance[ops of two floats]": "each float alone, and tests of ops",
        "test_conformance[ops of two longs]": "each float alone, and tests of ops",
        "test_conformance[ops of two]": "each float alone, and tests of ops",
        "test_conformance[steps]": "the same on other devices",
        "test_conformance[threads of the host]": "the same on other devices",
        "test_conformance[wide indices]": "on other devices, with arithmetic",
    },
    "backends/cuda/test_kernels.py": {
        "test_attention_is_one_launch[bf16, no whole step]": "whole steps in bf16, and one step of f16",
    },
    "backends/hip/test_objects.py": {
        "test_dtypes": "kernels and graphs",
        "test_graphs": "kernels; graphs in backends/cuda/test_assemble.py",
    },
    "backends/disk/test_writing.py": {
        "test_a_killed_writer_leaves_the_old_file[1]": "every other kill",
    },
    "backends/opencl/test_blocks.py": {
        "test_a_model": "its products, one by one",
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
        "test_dropout_tables_norms_counters_and_constants_are_those_of_one_device[same]": "each alone",
        "test_eight_devices_give_the_bits_of_one": "two and three",
        "test_gradients_are_used_inside_and_outside_wherever_they_lie[accumulated]": "used inside",
        "test_gradients_are_used_inside_and_outside_wherever_they_lie[made anew]": "used inside",
        "test_gradients_are_used_inside_and_outside_wherever_they_lie[set to zero]": "used inside",
        "test_what_is_explained_is_what_runs[512]": "9 rows",
    },
    "core/composed/test_halves.py": {
        "test_a_function_is_float32_inside[...-bfloat16]": "the same by float16",
        "test_other_devices_agree[opencl]": "dummy; each function on the cpu",
    },
    "core/execute/test_explained_meshes.py": {
        "test_memory_is_that_of_a_run[16]": "four devices",
        "test_the_predicted_timeline_has_each_lane_in_order[16]": "four devices",
    },
    "core/functional/test_attention.py": {
        "test_a_call_is_its_parts[False-True-False-...": "without weights batch first, with weights both ways",
        "test_a_call_is_its_parts[True-False-True-...": "weights of each head batch second, averages both ways",
    },
    "core/functional/test_cells.py": {
        "test_calls_are_their_formulas[False-True-...": "with both, and with neither",
        "test_calls_are_their_formulas[True-False-...": "with both, and with neither",
    },
    "core/functional/test_attention_gradient.py": {
        "test_devices_agree[opencl-True]": "wgpu and dummy",
    },
    "core/functional/test_k_quants.py": {
        "test_blocks_without_spread_come_back[Q4_K]": "Q5_K",
        "test_blocks_without_spread_come_back[Q6_K]": "Q4_K and Q5_K",
        "test_numbers_come_back_as_near_as_the_steps_let_them[Q6_K]": "Q4_K and Q5_K",
    },
    "core/functions/test_selection.py": {
        "test_the_kth_value_and_where_it_is[uint32]": "int64 and uint8",
    },
    "core/test_surface.py": {
        "test_accuracy[special.modified_bessel_k0]": "i0e, i1e, airy_ai and 40 functions",
        "test_accuracy[special.modified_bessel_k1]": "i0e, i1e, airy_ai and 40 functions",
        "test_bessel_waves": "samples of torch's own",
        "test_incomplete_gamma": "samples of torch's own",
    },
    "distributed/test_bits.py": {
        "test_ten_steps_have_the_bits_of_one_device[2-13-ways1]": "1 and 4 devices",
        "test_ten_steps_have_the_bits_of_one_device[3-13-ways2]": "1 and 4 devices",
        "test_ten_steps_have_the_bits_of_one_device[4-8-ways3]":
            "one device; four in scheduler/test_mesh_plans.py",
        "test_ten_steps_have_the_bits_of_one_device[8-13-ways4]": "1 and 4 devices",
        "test_ten_steps_of_a_transformer_have_the_bits_of_one_device": "perceptrons on 1 to 4",
    },
    "distributed/test_load.py": {
        "test_a_device_that_slows_down_for_good_gets_less_to_do": "other loads",
        "test_values_are_those_of_one_device_throughout": "noise, a slow device, recovery",
    },
    "distributed/test_speeds.py": {
        "test_a_training_step_takes_its_work_over_the_sum_of_speeds[Adam-2048-512-16000000000.0-1.05]":
            "two other farms",
        "test_a_training_step_takes_its_work_over_the_sum_of_speeds[SGD-8192-256-100000000000.0-1.025]":
            "another farm",
        "test_blocks_by_speed_have_the_bits_of_one_device": "steps by the sum of speeds",
        "test_gradients_stay_where_they_are_made": "a step's time over the sum of speeds",
    },
    "distributed/test_training.py": {
        "TestTraining::test_by_batches[transformer]": "perceptrons; transformers in scheduler/spmd",
        "TestTraining::test_by_columns_and_rows[transformer]": "perceptrons; transformers in scheduler/spmd",
        "TestTraining::test_with_nothing_twice[transformer]": "perceptrons; transformers in scheduler/spmd",
    },
    "examples/test_backend_c.py": {
        "test_it_conforms[whole]": "copies, memory, errors, what it says of itself, and tensors",
        "test_it_is_listed": "it conforms",
    },
    "examples/test_finetune.py": {
        "test_a_limit_holds": "steps within limits in optim/test_steps.py",
        "test_a_run_learns_and_goes_on_bit_for_bit": "the same of examples/gpt.py",
    },
    "examples/test_gpt.py": {
        "test_a_run_that_was_stopped_goes_on_bit_for_bit": "examples/test_finetune.py does, too",
    },
    "examples/test_sharded.py": {
        "test_one_script_has_the_same_bits_on_all_devices": "tests/distributed/test_bits.py",
    },
    "fuzz/test_basic.py": {
        "test_basic_plans_of_random_loops_compute_what_final_ones_do": "basic plans without loops",
    },
    "fuzz/test_families.py": {
        "test_every_size_and_number_is_right[cpu:0-10]":
            "dummy:0, and named structures in scheduler/test_families.py",
        "test_every_size_and_number_is_right[cpu:0-30]": "the first ten",
        "test_every_size_and_number_is_right_on_basic_plans": "final plans; basic ones in test_basic.py",
    },
    "fuzz/test_layers.py": {
        "test_layers_compute_what_the_reference_does[matmul]": "batched products, and perceptrons",
    },
    "fuzz/test_programs.py": {
        "test_plans_serve_other_values_of_the_same_structure[dummy:0]": "cpu:0",
    },
    "fuzz/test_session_models.py": {
        "test_edits_of_models_give_the_bits_of_a_session_that_starts_anew[cpu:0-20]": "dummy:0",
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
        "test_float64[log]": "log in float32; two others in float64",
        "test_float64[sin]": "float32, and four other functions",
        "test_float64[tanh]": "tanh in float32; two others in float64",
        "test_power_float64": "float32 in all its ways, and float64's logarithm and exponential",
    },
    "models/test_batch.py": {
        "test_a_sequence_has_the_tokens_that_it_has_alone[gemma3_text]": "qwen3",
        "test_a_sequence_has_the_tokens_that_it_has_alone[gpt2]": "qwen3",
    },
    "models/test_decoders.py": {
        "test_layers_computed_again_give_the_same_gradients_from_less_memory":
            "checkpoints, in autograd/test_checkpoint_numbers.py",
        "test_prompts_of_unequal_lengths_go_on_as_alone[gemma3_text]": "another model",
        "test_steps_with_a_cache_give_what_the_whole_gives[llama]": "four other architectures",
        "test_steps_with_a_cache_give_what_the_whole_gives[phi3]": "four other architectures",
        "test_steps_with_a_cache_give_what_the_whole_gives[phi]": "four other architectures",
        "test_steps_with_a_cache_give_what_the_whole_gives[qwen3]": "two other models",
    },
    "models/test_gguf.py": {
        "test_a_file_gives_the_model_back[gemma3-BlockFormat.Q8_0]": "three other files",
        "test_a_file_gives_the_model_back[llama-BlockFormat.Q8_0]": "gemma3 in blocks, and four files",
        "test_a_file_gives_the_model_back[qwen3-BlockFormat.Q8_0]": "gemma3 in blocks, and four files",
    },
    "models/test_gguf_text.py": {
        "test_texts_become_what_the_whole_vocabulary_makes_of_them[llama-changes0]":
            "four other vocabularies",
    },
    "models/test_klein.py": {
        "test_an_image_follows_its_seed_and_is_what_its_steps_give": "its parts, and the pipeline from a folder",
    },
    "models/test_speculation.py": {
        "test_guesses_change_no_likeliest_token[gemma3_text]": "two other architectures",
        "test_guesses_change_no_likeliest_token[phi]": "two other architectures",
    },
    "nn/test_pipeline.py": {
        "test_stages_work_on_different_microbatches_at_once[4-8]": "two stages",
        "test_training_is_that_of_the_layers[7-False]": "two and eight",
        "test_training_is_that_of_the_layers[8-True]": "two and seven",
    },
    "optim/test_steps.py": {
        "test_a_batch_that_does_not_fit_changes_nothing_and_half_of_it_can_be_tried[new memory-zbcs]":
            "three others",
        "test_a_batch_that_does_not_fit_changes_nothing_and_half_of_it_can_be_tried[new memory-zbsi]":
            "other orders of a step",
        "test_a_batch_that_does_not_fit_changes_nothing_and_half_of_it_can_be_tried[new memory-zibs]":
            "three others",
        "test_an_interrupt_leaves_no_half_step[new memory-False]": "old memory, both ways",
        "test_an_interrupt_leaves_no_half_step[new memory-True]": "old memory, both ways",
    },
    "scheduler/kernelize/test_decisions.py": {
        "test_kernels_compute_what_the_graph_means[prologue of windows]": "102 other graphs",
        "test_kernels_compute_what_the_graph_means[scales of blocks for many rows]": "102 other graphs",
    },
    "scheduler/optimize/test_abreast.py": {
        "test_as_numpy_computes_it[float64-...": "three other dtypes",
    },
    "scheduler/optimize/test_contraction.py": {
        "test_a_stream_with_edges_is_moved_first_as_well[1-2]": "others",
        "test_a_stream_with_edges_is_moved_first_as_well[2-1]": "others",
        "test_a_factor_that_lies_in_panels_is_read_there[small caches...]": "other processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(67, 9, 16)-avx2]": "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(67, 9, 16)-avx512]": "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(8, 30, 70)-avx2]": "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(9, 401, 50)-avx2]": "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(9, 401, 50)-avx512]":
            "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[...-small caches]": "other processors",
        "test_a_panel_that_is_used_once_is_transposed_in_registers[130]": "two smaller ones",
        "test_a_stream_from_beyond_the_cache_is_moved_first[66-128-avx2]": "avx512",
        "test_a_stream_from_beyond_the_cache_is_moved_first[70-130-avx2]": "avx512",
        "test_a_stream_that_steps_from_line_to_line_is_used_in_blocks[avx2]": "avx512",
        "test_all_steps_of_a_tiles_rows_lie_together[avx2]": "avx512",
        "test_gradients_of_a_convolution[avx2]": "AVX-512",
        "test_gradients_of_a_convolution[small caches]": "AVX-512",
        "test_one_kernel_multiplies_matrices_of_all_sizes[(3, 200, 129)-avx2]": "other sizes and processors",
        "test_one_kernel_multiplies_matrices_of_all_sizes[...-small caches]": "other processors",
    },
    "scheduler/optimize/test_decisions.py": {
        "test_every_decision_may_be_another[a deep product]": "17 other kernels",
        "test_every_decision_may_be_another[an update]": "17 other kernels",
        "test_every_decision_may_be_another[attention on blocks]": "17 other kernels",
        "test_every_decision_may_be_another[long products]": "17 other kernels",
        "test_every_decision_may_be_another[matmul on blocks]": "17 other kernels",
    },
    "scheduler/optimize/test_gpu.py": {
        "test_right_for_every_size[...-2]": "the same on 132 processors",
        "test_right_for_every_size[attention 1x11x3-132]": "another size",
        "test_threads_of_a_warp_combine_in_registers[...-2]": "the same on 132 processors",
        "test_tiles[tile0-shape2]": "four others",
        "test_tiles[tile1-shape2]": "five others",
        "test_without_a_scratchpad_threads_share_nothing[softmax 1x300]": "40 other kernels",
    },
    "scheduler/optimize/test_rules.py": {
        "test_right_for_every_size[...-avx2]": "AVX-512, and scalars",
        "test_right_for_every_size[attention 1x35x72-scalar]": "two other processors",
        "test_right_for_every_size[attention 1x37x64-scalar]": "two other processors",
        "test_right_for_every_size[attention 2x65x4-scalar]": "two other processors",
        "test_right_for_every_size[convolution 2x3x9-scalar]": "two other processors",
        "test_right_for_every_size[depthwise_taps 3x1x35, 3, 1-scalar]": "two other processors",
        "test_right_for_every_size[depthwise_taps_last 3x1x35, 3, 1-scalar]": "two other processors",
        "test_right_for_every_size[scaled rows 5x40x128, 32-scalar]": "two other processors",
    },
    "scheduler/optimize/test_taps.py": {
        "test_results[(2, 7, 7, 32)-7-{'padding': 3}-avx2]": "avx512",
        "test_results[(3, 8, 11, 16)-7-{'padding': 3}-avx2]": "avx512",
    },
    "scheduler/parts/test_plan.py": {
        "test_random_programs_give_what_one_device_gives[devices2]": "two other farms",
        "test_random_programs_give_what_one_device_gives[devices3]": "two other farms",
    },
    "scheduler/parts/test_verify.py": {
        "test_graphs_are_proved_and_each_with_a_fault_is_refused[others]": "20 graphs",
    },
    "scheduler/pools/test_resting.py": {
        "test_a_fault_leaves_state_as_it_was_or_unreadable[copies]": "launches, allocations",
        "test_a_step_within_the_least_limit_has_the_bits_of_one_without[RMSprop]": "Adam and SGD",
    },
    "scheduler/pools/test_within.py": {
        "test_training_steps_in_a_part_of_their_memory[gpt-shares0]": "random graphs; a perceptron's step",
        "test_training_steps_in_a_part_of_their_memory[resnet-shares1]": "random graphs; a perceptron's step",
    },
    "scheduler/spmd/test_plan.py": {
        "test_training_is_that_of_one_device[False]": "sharded weights",
    },
    "scheduler/stream/test_stream.py": {
        "test_the_same_as_at_once": "slices of results",
    },
    "scheduler/test_basic.py": {
        "test_what_is_sorted_and_summed_up_by_basic_plans[<lambda>0]": "six others",
    },
    "scheduler/test_families.py": {
        "test_images_that_are_halved_and_doubled_have_few_plans": "sequences that are",
        "test_training_over_any_length_has_few_plans[longer keys]": "eight others",
        "test_training_over_any_length_has_few_plans[rows cut and filled up]": "nine others",
        "test_training_over_any_length_has_few_plans[state]": "nine others",
        "test_training_over_any_length_has_few_plans[windows]": "nine others",
    },
    "scheduler/test_mesh_plans.py": {
        "test_ten_compiled_steps_are_those_of_one_device": "steps in scheduler/spmd/test_plan.py",
    },
    "scheduler/test_pinned.py": {
        "test_meshes_give_the_bits_of_one_device[2]": "three devices",
        "test_sums_along_rows_are_those_of_slices[9001]": "shorter rows",
    },
    "scheduler/test_winograd.py": {
        "test_compiled_steps_in_tiles_train_alike[1]": "two threads",
        "test_gradients_in_tiles_are_as_exact_as_sums": "errors of results; random steps",
        "test_random_convolutions": "each kind of convolution, and random steps",
    },
    "serve/test_server.py": {
        "test_it_stops_while_it_streams[15]": "SIGINT",
    },
    "sessions/test_reach.py": {
        "test_a_naive_model_decodes_token_by_token_in_two_plans[is_causal]": "three other ways to mask",
        "test_a_naive_model_decodes_token_by_token_in_two_plans[masked_fill]": "two other masks",
    },
    "test_adding.py": {
        "test_the_tests_of_a_tutorial_pass_with_its_change_and_fail_without[A pass]":
            "the tutorial of a layer",
        "test_the_tests_of_a_tutorial_pass_with_its_change_and_fail_without[A primitive op]":
            "the tutorial of a layer",
        "test_the_tests_of_a_tutorial_pass_with_its_change_and_fail_without[A schedule rule]":
            "the tutorial of a layer",
    },
    "test_caches.py": {
        "test_a_soak_with_small_bounds_is_flat": "tests of each cache's bound",
    },
    "test_main.py": {
        "test_activations_of_a_file_are_rounded_where_that_is_asked_for[generate]": "serve",
    },
    "test_pack.py": {
        "test_damage_is_noticed": "tests/fuzz/test_damaged_files.py",
    },
    "test_prepare.py": {
        "test_each_routine_computes_numbers[a policy of two actions]": "four actions",
        "test_each_routine_computes_numbers[gradients of several batches]": "the other routines",
        "test_each_routine_computes_numbers[images of any size]":
            "others; a convolution's in scheduler/test_families.py",
        "test_each_routine_computes_numbers[images]": "others; networks of images",
        "test_each_routine_computes_numbers[next tokens]": "the other routines",
        "test_each_routine_computes_numbers[recurrent layers, 10 wide]": "recurrent layers of other sizes",
        "test_each_routine_computes_numbers[recurrent layers, 100 wide]": "recurrent layers of other sizes",
        "test_each_routine_computes_numbers[recurrent layers, 32 wide]": "recurrent layers of other sizes",
        "test_each_routine_computes_numbers[sequences in windows]":
            "others; windows in scheduler/test_families.py",
        "test_each_routine_computes_numbers[trees]": "the other routines",
        "test_recurrent_layers_of_other_sizes_need_no_compiler": "cells; products and single ops",
    },
    "test_scale.py": {
        "test_tree": "chains",
    },
    "testing/test_strategies.py": {
        "test_every_op_and_dtype_turns_up": "the fuzzers themselves",
    },
    "fuzz/test_transforms.py": {
        "test_gradients_through_transforms_are_those_without[10]": "another seed",
        "test_gradients_through_transforms_are_those_without[20]": "another seed",
    },
    "nn/test_functional.py": {
        "test_group[resampling]": "torch's samples of it",
    },
    "backends/cuda/test_warpgroups.py": {
        "test_products_by_groups[bf16, ...]": "16-bit floats of the other kind",
        "test_products_by_groups[bf16]": "bf16 with a or b transposed",
    },
    "backends/cuda/test_resources.py": {
        "test_kernels[...]": "kernels are assembled, in test_kernels.py",
    },
    "core/functional/test_integer_blocks.py": {
        "test_a_product_in_integers_is_the_formula[...-37-5]": "other shapes",
        "test_all_devices_agree[Q6_K-opencl]": "the same on wgpu",
        "test_all_devices_agree[Q8_0-opencl]": "two other formats",
    },
    "core/execute/test_pending.py": {
        "test_a_loop_that_updates_by_hand_is_flat[...after-none]": "the same with zeros",
    },
    "test_mutate.py": {
        "test_tests_run_on_the_mutant_in_place_of_the_file[...]": "`make mutants`",
    },
}  # fmt: skip
