"""The intermediate representations: dtypes, index expressions, the graph, kernels and lowered loops.

The rules by which nodes are made are loaded with the package: the graph, which they are about, does not import them.
"""

from weft.ir import shape_rules as shape_rules
