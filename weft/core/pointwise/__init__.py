"""Functions of each element by itself, and what a dtype can hold.

Imports `args`, `execute` and `composed`.
"""
