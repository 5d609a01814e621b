"""Schedules: rules that give a good one at once from a device's description."""
# Tests: tests/scheduler/test_golden.py
# Tests: tests/scheduler/optimize/test_rules.py, tests/scheduler/optimize/test_refusals.py
