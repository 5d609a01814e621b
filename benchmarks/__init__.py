"""weft's benchmarks: the same workloads on weft and on what else is installed, beside the machine's limits.

python -m benchmarks --help

workloads.py    what is run: inputs, operations, bytes         shapes.py   the sweep of matrix products
frameworks/     one file per framework: how it runs them       variants.py which frameworks, with which settings
worker.py       a process that runs one framework              runner.py   processes that take turns
startup.py      first results of fresh processes               phases.py   where compile time goes
inference.py    whole models that answer or learn, beside runtimes that read exported ones; vision.py more models
dynamic.py      programs that change               programs.py, models.py   their one source
once.py         a process that runs one of them
report.py       Markdown, a plot, comparisons                  results.py  one JSON file
"""
