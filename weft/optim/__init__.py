"""Optimizers and learning rate schedules, under torch's names."""
# Tests: tests/optim/test_optimizers.py

from weft.module_paths import offer_paths
from weft.surface.namespaces import offer

offer(globals(), "optim")
offer_paths(__name__, {
    "adadelta": "weft.optim.adaptive", "adagrad": "weft.optim.adaptive", "adamax": "weft.optim.adaptive",
    "adamw": "weft.optim.adam", "asgd": "weft.optim.adaptive", "nadam": "weft.optim.adaptive",
    "radam": "weft.optim.adaptive", "rmsprop": "weft.optim.adaptive", "rprop": "weft.optim.adaptive",
})  # fmt: skip
