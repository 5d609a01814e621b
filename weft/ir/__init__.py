"""The intermediate representations: dtypes, index expressions, the graph, kernels and lowered loops."""
