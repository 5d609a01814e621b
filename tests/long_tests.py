"""Tests that `make long` runs and `make test` leaves out: each takes seconds, and others of its kind stay.

A test that is named by its own (`pytest file::test`) runs in any case.
"""

from __future__ import annotations

LONG = {
    "backends/cuda/test_conformance.py": {
        "test_conformance[ops of two doubles]": "two floats, and tests of ops",
        "test_conformance[ops of two longs]": "two floats, and tests of ops",
        "test_conformance[ops of two]": "two floats, and tests of ops",
    },
    "benchmarks/test_dynamic.py": {
        "test_two_programs_run_at_all_temperatures_and_agree": "its parts, one by one",
    },
    "benchmarks/test_sessions.py": {
        "test_an_edit_of_each_graph_of_an_image_generator_changes_its_result": "other graphs",
    },
    "core/compile/test_over_devices.py": {
        "test_dropout_tables_norms_counters_and_constants_are_those_of_one_device[None]": "the mode same",
        "test_gradients_are_used_inside_and_outside_wherever_they_lie[made anew]": "the other three ways",
    },
    "core/test_surface.py": {
        "test_accuracy[special.modified_bessel_k1]": "k0, i1 and 40 functions",
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
        "test_blocks_by_speed_have_the_bits_of_one_device": "steps by the sum of speeds",
    },
    "distributed/test_training.py": {
        "TestTraining::test_by_batches[transformer]": "columns and rows, and perceptrons",
        "TestTraining::test_with_nothing_twice[transformer]": "columns and rows, and perceptrons",
    },
    "examples/test_backend_c.py": {
        "test_it_conforms[whole]": "threads and schedules of the suite",
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
        "test_every_size_and_number_is_right_on_basic_plans": "final plans; basic ones in test_basic.py",
    },
    "ir/passes/test_quotients.py": {
        "test_taken_where_all_quotients_of_few_bits_are_right[8]": "fewer bits",
    },
    "ir/test_math.py": {
        "test_power_float64": "float32 in all its ways, and float64's logarithm and exponential",
    },
    "models/test_batch.py": {
        "test_a_sequence_has_the_tokens_that_it_has_alone[gemma3_text]": "qwen3",
        "test_a_sequence_has_the_tokens_that_it_has_alone[gpt2]": "qwen3",
    },
    "optim/test_steps.py": {
        "test_a_batch_that_does_not_fit_changes_nothing_and_half_of_it_can_be_tried[new memory-zbsi]":
            "other orders of a step",
    },
    "scheduler/optimize/test_contraction.py": {
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(9, 401, 50)-avx2]": "other sizes and processors",
        "test_a_panel_of_unknown_depth_is_packed_in_blocks[(9, 401, 50)-small caches]":
            "other sizes and processors",
        "test_a_stream_that_steps_from_line_to_line_is_used_in_blocks[avx2]": "avx512",
    },
    "scheduler/optimize/test_decisions.py": {
        "test_every_decision_may_be_another[an update]": "53 other kernels",
    },
    "scheduler/optimize/test_gpu.py": {
        "test_tiles[tile1-shape2]": "five others",
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
    "scheduler/stream/test_stream.py": {
        "test_the_same_as_at_once": "slices of results",
    },
    "scheduler/test_winograd.py": {
        "test_random_convolutions": "each kind of convolution, and random steps",
    },
    "testing/test_strategies.py": {
        "test_every_op_and_dtype_turns_up": "the fuzzers themselves",
    },
}  # fmt: skip
"""By their file below `tests/`: what of their kind `make test` runs."""
