"""One file per framework: how it runs each kind of workload.

A framework is a class made with the number of threads. `versions()` says what is installed. For a kind of workload it
has a method of that name, which takes the workload's inputs and returns a `Run`, or None where the framework (or this
variant of it) has nothing to run. Methods use the framework as its own manual says, at its best.
"""
