"""The user's interface: Tensor, functions, creation, randomness, differentiation. All from `weft.ir` ops.

In rooms, each of which imports only those before it (held by the contracts in pyproject.toml):

    args            what a user passes becomes operands, axes, dtypes; checked
    execute         traces, changes, computing, devices, files: alone with the scheduler and the backends
    composed        what functions of several ops are made with
    pointwise       functions of each element by itself
    layout          creation, movement, gather, indexing
    views           tensors that look at the same elements
    functions       sums, products, orders, rearrangements, random draws
    grad            derivatives, user-written rules, batching, loops
    functional      what neural networks are made of
    linear_algebra  factorizations, norms, solving
    surface         torch's names, keywords and overrides
    tensor          the Tensor, and how it meets other libraries
    compile         functions traced once and replayed as one plan
"""
