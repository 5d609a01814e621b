"""The interface to the scheduler and the backends: traces, pending changes, computing, devices, files.

Imports `args` only.
"""
