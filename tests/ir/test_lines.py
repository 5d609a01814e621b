"""Lines of the program: which nodes they are noted for, and who follows whom."""

from __future__ import annotations

import threading

import weft
from weft.ir import graph
from weft.ir.calls import expand_calls
from weft.ir.graph import toposort
from weft.ir.lines import Lines, noting
from weft.ir.ops import Op
from weft.ir.rewrite import over, rewritten


def here(back: int = 0) -> str:
    import inspect

    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno - back}"


def test_nodes_have_the_line_at_which_they_were_made() -> None:
    lines = Lines()
    x = weft.arange(7.0)
    with lines.noted():
        assert noting() is lines
        y = x * 3.25
        line = here(1)
        z = y.softmax(0)
    assert noting() is None
    later = x * 4.25
    assert lines.of(y.value.node) == line
    assert lines.of(z.value.node) == f"{__file__}:{int(line.rpartition(':')[2]) + 2}"
    assert lines.of(later.value.node) is None and lines.of(x.value.node) is None


def test_what_takes_the_place_of_a_node_has_its_line() -> None:
    lines = Lines()
    with lines.noted():
        y = (weft.arange(5.0) * 2.125).softmax(0)
        line = here(1)
    expanded = expand_calls([y.value.node])  # nobody notes
    leaf = next(n for n in toposort([y.value.node]) if not n.inputs)
    with lines.noted():
        (other,) = rewritten([y.value.node], over, known={leaf: weft.rand(5).realize().value.node})
        made = expand_calls([(weft.arange(6.0) * 2.125).softmax(0).value.node])
    assert other is not y.value.node and lines.of(other) == line
    inner = [n for n in toposort(made) if n.inputs and n.op is not Op.CONST]
    assert len(inner) > 3 and all(lines.of(n) is not None for n in inner)
    assert expanded


def test_gradients_are_of_the_line_of_the_forward_pass() -> None:
    lines = Lines()
    w = weft.arange(4.0, requires_grad=True)
    with lines.noted():
        y = w.exp() * 1.125
        line = here(1)
        y.sum().backward()
    assert w.grad is not None
    assert lines.of(w.grad.value.node) == line


def test_threads_note_their_own() -> None:
    lines, others = Lines(), Lines()
    inside, go = threading.Event(), threading.Event()
    made: list[weft.Tensor] = []

    def other() -> None:
        with others.noted():
            inside.set()
            go.wait()
            made.append(weft.arange(3.0) * 5.125)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with lines.noted():
        mine = weft.arange(3.0) * 6.125
        go.set()
        thread.join()
    assert lines.of(mine.value.node) and not others.of(mine.value.node)
    assert others.of(made[0].value.node) and not lines.of(made[0].value.node)
    assert not graph._shown


def test_threads_that_note_into_one_follow_their_own() -> None:
    lines = Lines()
    here_, there = threading.Event(), threading.Event()
    made: list[weft.Tensor] = []

    def other() -> None:
        with lines.noted():
            here_.wait()
            made.append(weft.arange(3.0) * 7.125)
            there.set()

    thread = threading.Thread(target=other)
    thread.start()
    with lines.noted():
        first = weft.arange(3.0) * 8.125
        line = here(1)

        def make() -> weft.Tensor:
            here_.set()
            there.wait()
            return weft.arange(3.0) * 9.125

        second = lines.following(first.value.node, make)
    thread.join()
    assert lines.of(second.value.node) == line
    assert lines.of(made[0].value.node) not in (None, line)


def test_watchers_are_called_again_afterwards() -> None:
    with Lines().noted():
        graph.watch_after(1 << 20)
        assert graph._due_at < 0
    assert graph._due_at > 0
