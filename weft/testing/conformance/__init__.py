"""The requirements of a backend, as a pytest suite: `pytest --pyargs weft.testing.conformance --device NAME`.

| file                  | what it asks for                                                                       |
|-----------------------|----------------------------------------------------------------------------------------|
| `test_description.py` | a description that the scheduler can work with                                         |
| `test_memory.py`      | allocating, freeing, limits, leaks                                                     |
| `test_copies.py`      | bytes in, out, and between pools                                                       |
| `test_ops.py`         | every elementwise op on every dtype, as scalars and as vectors; refusals of the rest   |
| `test_graphs.py`      | every op of the graph on every dtype; random graphs                                    |
| `test_loops.py`       | random loop programs                                                                   |
| `test_schedules.py`   | kernels under the empty schedule, that of the rules, and random legal ones             |
| `test_running.py`     | plans of several steps, workspaces, runtime variables, threads, images                 |
| `test_queues.py`      | order within a queue, events between queues                                            |
| `test_errors.py`      | what goes wrong is said, and harms nothing                                             |
| `test_tensors.py`     | what a user does: models, gradients, compiled functions                                |

Needs `pip install 'weft[testing]'`. `--examples 500` looks further than the quick run.
"""
# Tests: tests/testing/test_conformance.py, tests/backends/cuda/test_conformance.py
