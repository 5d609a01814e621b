"""The functions that neural networks are made of; `weft.nn.functional` offers them."""
# Tests: tests/nn/test_functional.py, tests/core/test_against_torch.py
