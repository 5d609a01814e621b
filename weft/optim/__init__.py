"""Optimizers and learning rate schedules, under torch's names."""
# Tests: tests/optim/test_optimizers.py

from weft.module_paths import offer_paths
from weft.optim import lr_scheduler, swa_utils
from weft.optim.adam import Adam, AdamW
from weft.optim.adaptive import ASGD, Adadelta, Adagrad, Adamax, NAdam, RAdam, RMSprop, Rprop
from weft.optim.large_batch import LAMB, Adafactor, Lion, Muon
from weft.optim.lbfgs import LBFGS
from weft.optim.optimizer import Optimizer, RuleOptimizer
from weft.optim.sgd import SGD

__all__ = [
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LAMB", "LBFGS", "Lion", "Muon",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "RuleOptimizer", "SGD", "lr_scheduler", "swa_utils",
]  # fmt: skip

offer_paths(__name__, {
    "adadelta": "weft.optim.adaptive", "adagrad": "weft.optim.adaptive", "adamax": "weft.optim.adaptive",
    "adamw": "weft.optim.adam", "asgd": "weft.optim.adaptive", "nadam": "weft.optim.adaptive",
    "radam": "weft.optim.adaptive", "rmsprop": "weft.optim.adaptive", "rprop": "weft.optim.adaptive",
})  # fmt: skip
