"""Threads in native calls count as nobody, and what Python runs in them counts."""

from __future__ import annotations

import queue
import threading
import time

import pytest

import weft
from weft.backends.native_threads import NativeThread, others_wait, stay, undisturbed, wait_for
from weft.core.execute.ownership import sole_thread


@pytest.mark.usefixtures("no_other_thread")
def test_a_thread_counts_where_it_runs_python_within_its_call() -> None:
    begun, end = threading.Event(), threading.Event()

    def runs_python(_: int) -> None:
        begun.set()
        end.wait()

    thread = threading.Thread(target=stay, args=(runs_python, 0))
    thread.start()
    begun.wait()
    try:
        assert not sole_thread()
    finally:
        end.set()
        thread.join()
    assert sole_thread()


@pytest.mark.usefixtures("no_other_thread")
def test_a_thread_in_native_code_counts_as_nobody() -> None:
    before, lock = threading.active_count(), threading.Lock()
    lock.acquire()
    thread = NativeThread(lock.acquire, 1)  # a native call that waits
    try:
        for _ in range(2000):
            if sole_thread():
                break
            time.sleep(0.001)
        assert thread.is_alive() and sole_thread() and thread.native_id
        assert threading.active_count() == before  # who builds graphs need not take care of it
        assert not thread.join(0.001)
    finally:
        lock.release()
    assert thread.join(10) and not thread.is_alive()


@pytest.mark.usefixtures("no_other_thread")
def test_threads_of_kernels_count_as_nobody() -> None:
    before = weft.get_num_threads()
    weft.set_num_threads(3)
    try:
        for _ in range(2000):
            if sole_thread():
                break
            time.sleep(0.001)
        assert sole_thread()
    finally:
        weft.set_num_threads(before)


@pytest.mark.usefixtures("no_other_thread")
def test_a_thread_that_waits_goes_on_when_nobody_is_disturbed() -> None:
    told, heard = queue.SimpleQueue[int](), list[int]()
    thread = threading.Thread(target=lambda: heard.append(wait_for(told.get)))
    thread.start()
    with undisturbed() as alone:
        assert alone
        told.put(1)
        time.sleep(0.05)
        assert not heard
    thread.join()
    assert heard == [1]


@pytest.mark.usefixtures("no_other_thread")
def test_a_thread_that_runs_python_is_told_of() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert not others_wait()
    with undisturbed() as alone:
        assert not alone
    over.set()
    thread.join()
    assert others_wait()
