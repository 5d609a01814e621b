"""weft.session: a function that is run again and again while most of its input stays as it was.

    s = weft.session(model, ids)
    y = s(ids)             the first run computes everything, and keeps what kernels store
    ids[0, t] = token
    y = s(ids)             the second computes the boxes that the write can reach, and updates what was kept

A session adds no second way to compute. What a change can reach is computed by an ordinary graph, made from the
recorded one, with the starts of boxes as runtime variables; it is planned and run as everything else.

    recorded.py   the function, run once on placeholders
    modules.py    the modules that it called, as they were
    inputs.py     what is another value than in the last run, and where
    buckets.py    regions as classes of a few sizes, and where their boxes begin
    step.py       the graph of a step: what is kept, with the boxes that changed computed anew
    stale.py      what no result needed when it was reached, and so was not computed
    state.py      the memory of what is kept
    plans.py      a graph's plan, and where its leaves and results are;  execution.py  its runs
    trial.py      past runs, timed with two choices of what to keep
    form.py       the function for arguments of one structure;  session.py  sessions;  explain.py  both, for people
"""
# Tests: tests/sessions/test_session.py
