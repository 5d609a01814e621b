"""Derivatives: backward and its transformations, user-written rules, batching, loops that are differentiated.

Imports `functions` and the rooms below it.
"""
# Tests: tests/autograd/test_tools.py
