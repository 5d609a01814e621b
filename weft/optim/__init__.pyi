# Written by tools/surface.py from weft/surface/table.py.

from weft.optim import lr_scheduler, swa_utils
from weft.optim.adam import Adam, AdamW
from weft.optim.adaptive import ASGD, Adadelta, Adagrad, Adamax, NAdam, RAdam, RMSprop, Rprop
from weft.optim.large_batch import Adafactor, LAMB, Lion, Muon
from weft.optim.lbfgs import LBFGS
from weft.optim.optimizer import Optimizer, RuleOptimizer
from weft.optim.sgd import SGD
__all__ = [
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LAMB", "LBFGS", "Lion", "Muon",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "RuleOptimizer", "SGD", "lr_scheduler", "swa_utils",
]
