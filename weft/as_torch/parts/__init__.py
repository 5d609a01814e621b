"""Parts of torch that weft does otherwise or not at all, and programs do use: real, in Python, for the room only."""
# Tests: tests/as_torch/test_parts.py, tests/as_torch/test_room.py
