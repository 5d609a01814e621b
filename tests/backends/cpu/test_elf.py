"""Objects linked by weft are what LLVM's linker makes of them, and what it does not know goes to LLVM."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import struct
import weakref
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.backends.cpu import elf, llvm, objects
from weft.backends.cpu.detected import detected
from weft.backends.cpu.targets import CodeMemoryError, LLVMError

pytestmark = pytest.mark.skipif(
    not elf.AVAILABLE, reason="objects are linked by weft on Linux and x86-64 only"
)


@cache
def compiled(text: str) -> bytes:
    return llvm.compile_ir(text, detected().target)


def called(loaded: objects.Loaded, *arguments: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(loaded.address("f"))(
        *arguments
    )


CONSTANTS = """
@table = internal constant [4 x i64] [i64 3, i64 5, i64 7, i64 11], align 64
define i64 @f(i64 %k) {
  %p = getelementptr i64, ptr @table, i64 %k
  %x = load i64, ptr %p
  ret i64 %x
}"""

STATE = """
@count = internal global i64 0
@step = internal global i64 2, align 32
@where = internal global ptr @step
define i64 @f(i64 %k) {
  %p = load ptr, ptr @where
  %s = load i64, ptr %p
  %o = load i64, ptr @count
  %a = mul i64 %s, %k
  %n = add i64 %o, %a
  store i64 %n, ptr @count
  ret i64 %n
}"""

JUMPS = """
define i64 @f(i64 %k) {
  switch i64 %k, label %other [ %cases ]
other:
  ret i64 -1
%blocks
}""".replace("%cases", " ".join(f"i64 {k}, label %b{k}" for k in range(12))).replace(
    "%blocks",
    "\n".join(f"b{k}:\n  %r{k} = call i64 @g(i64 {k * k + k % 3})\n  ret i64 %r{k}" for k in range(12))
    + "\n}\ndeclare i64 @g(i64)\ndefine i64 @unused() {\n  ret i64 0",
)

COPIES = """
declare ptr @memcpy(ptr, ptr, i64)
declare i64 @strlen(ptr)
@text = internal constant [6 x i8] c"loom\\00\\00"
define i64 @f(i64 %k) {
  %p = alloca [8 x i8]
  call ptr @memcpy(ptr %p, ptr @text, i64 6)
  %n = call i64 @strlen(ptr %p)
  %r = add i64 %n, %k
  ret i64 %r
}"""

ADDRESSES = """
@here = external global i64
declare i64 @g(i64)
define i64 @f(i64 %k) {
  %x = load i64, ptr @here
  %p = select i1 true, ptr @g, ptr null
  %r = call i64 %p(i64 %k)
  %s = add i64 %r, %x
  ret i64 %s
}"""

SQUARE = "define i64 @g(i64 %x) {\n  %y = mul i64 %x, %x\n  ret i64 %y\n}"


@pytest.mark.parametrize("text", [CONSTANTS, STATE, JUMPS, COPIES, ADDRESSES], ids=range(5))
def test_objects_do_what_those_do_that_llvm_links(text: str) -> None:
    here = ctypes.c_int64(1000)
    double = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: 2 * x)
    imports = {"here": ctypes.addressof(here), "g": ctypes.cast(double, ctypes.c_void_p).value or 0}
    data = compiled(text)
    ours, theirs = elf.link([data], ["f"], imports), llvm.link([data], ["f"], imports)
    for k in [0, 1, 3, 2, 0]:
        assert called(ours, k) == called(theirs, k)


def test_objects_of_a_library_know_each_other_before_what_is_given() -> None:
    wrong = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: -x)
    imports = {
        "g": ctypes.cast(wrong, ctypes.c_void_p).value or 0,
        "here": ctypes.addressof(ctypes.c_int64(4)),
    }
    keep = ctypes.c_int64(4)
    imports["here"] = ctypes.addressof(keep)
    loaded = elf.link([compiled(ADDRESSES), compiled(SQUARE)], ["f", "g"], imports)
    assert called(loaded, 9) == 85
    with pytest.raises(KeyError):
        loaded.address("here")


def test_code_is_not_written_to_and_data_is_not_executed() -> None:
    loaded = elf.link([compiled(STATE)], ["f"], {})
    at = loaded.address("f")
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [(*(int(x, 16) for x in line.split()[0].split("-")), line.split()[1]) for line in lines]
    (mine,) = [k for k, (begin, end, _) in enumerate(ranges) if begin <= at < end]
    assert ranges[mine][2] == "r-xp" and ranges[mine][1] - ranges[mine][0] == mmap.PAGESIZE
    assert not any("w" in rights and "x" in rights for *_, rights in ranges[mine : mine + 2])
    loaded.release()
    loaded.release()
    with pytest.raises(LLVMError, match="released"):
        loaded.address("f")


def test_what_is_called_may_be_anywhere() -> None:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    low = ctypes.c_void_p(1 << 36)
    rights, flags = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    at = libc.mmap(low, ctypes.c_size_t(mmap.PAGESIZE), rights, flags, -1, ctypes.c_long(0))
    ctypes.memmove(at, bytes.fromhex("488d047fc3"), 5)  # lea (%rdi,%rdi,2), %rax; ret
    try:
        loaded = elf.link([compiled(JUMPS)], ["f"], {"g": at})
        assert abs(at - loaded.address("f")) > 1 << 32
        assert [called(loaded, k) for k in (2, 3, 20)] == [3 * 6, 3 * 9, -1]
    finally:
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(mmap.PAGESIZE))


def test_alignments_and_symbols_that_no_section_can_have_are_refused() -> None:
    data = compiled(STATE)
    at, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    headers = [(at + 64 * k, *struct.unpack_from("<2I4Q2I2Q", data, at + 64 * k)) for k in range(count)]
    (text,) = [h for h in headers if h[2] == 1 and h[3] == 6]
    (symbols,) = [h for h in headers if h[2] == 2]
    for place, value in ((text[0] + 48, 24), (text[0] + 48, 1 << 20)):
        image = bytearray(data)
        struct.pack_into("<Q", image, place, value)
        with pytest.raises(elf.UnsupportedObjectError, match="alignment"):
            elf.link([bytes(image)], ["f"], {})
    image = bytearray(data)
    for k in range(symbols[5], symbols[5] + symbols[6], 24):
        struct.pack_into("<Q", image, k + 8, text[6] + 1)
    with pytest.raises(elf.UnsupportedObjectError):
        elf.link([bytes(image)], ["f"], {})


def mapped(address: int) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any(begin <= address < end for begin, end in (
        (int(x, 16) for x in line.split()[0].split("-")) for line in lines
    ))  # fmt: skip


def test_code_is_unmapped_when_it_is_dropped_but_not_by_the_end_of_the_process() -> None:
    loaded = elf.link([compiled(CONSTANTS)], ["f"], {})
    assert loaded._pages is not None
    at, memory = loaded.address("f"), weakref.ref(loaded._pages._memory)
    assert mapped(at)
    del loaded
    assert not mapped(at) and memory() is None
    kept = elf.link([compiled(CONSTANTS)], ["f"], {})
    assert kept._pages is not None
    at = kept.address("f")
    kept._pages.__del__(lambda: True)
    assert mapped(at)
    kept.release()
    assert not mapped(at)


def test_libraries_that_are_linked_together_have_names_of_their_own() -> None:
    """Each with its state, and with what it calls in its own library, in others of the process, and far away."""
    here = ctypes.c_int64(1000)
    imports = {"here": ctypes.addressof(here)}
    texts = [
        ADDRESSES,
        COPIES,
        CONSTANTS,
        STATE,
        JUMPS,
        STATE,
    ]  # the first one has slots, which others follow
    libraries = [[compiled(t), *([compiled(SQUARE)] if t in (JUMPS, ADDRESSES) else [])] for t in texts]
    together = elf.link_all([(objects_, ["f"]) for objects_ in libraries], imports)
    alone = [elf.link(objects_, ["f"], imports) for objects_ in libraries]
    for k in range(4):
        assert [called(x, k) for x in together] == [called(x, k) for x in alone]
    with pytest.raises(KeyError):
        together[0].address("g")


def test_code_that_was_linked_with_others_stays_while_one_of_them_is_there() -> None:
    one, two = elf.link_all([([compiled(CONSTANTS)], ["f"])] * 2, {})
    at = one.address("f")
    one.release()
    assert mapped(at)
    del two
    assert not mapped(at)


def test_one_library_that_is_refused_refuses_all() -> None:
    with pytest.raises(elf.UnsupportedObjectError):
        elf.link_all([([compiled(CONSTANTS)], ["f"]), ([b"no object"], ["f"])], {})


REFUSED = {
    "a weak symbol": "define weak i64 @f(i64 %k) {\n  ret i64 1\n}",
    "a thread's own": "@x = thread_local global i64 3\ndefine i64 @f(i64 %k) {\n  %v = load i64, ptr @x\n"
    "  ret i64 %v\n}",
    "functions that run first": (
        "@x = global i64 1\n@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] "
        "[{ i32, ptr, ptr } { i32 1, ptr @g, ptr null }]\ndefine void @g() {\n  store volatile i64 1, ptr @x\n"
        "  ret void\n}\ndefine i64 @f(i64 %k) {\n  ret i64 1\n}"
    ),
    "a group": "$f = comdat any\ndefine weak_odr i64 @f(i64 %k) comdat {\n  ret i64 1\n}",
    "what is nowhere": "declare i64 @weft_nowhere(i64)\ndefine i64 @f(i64 %k) {\n  %v = call i64 @weft_nowhere(i64 1)\n"
    "  ret i64 %v\n}",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_is_not_linked_here_goes_to_llvm(text: str, caplog: pytest.LogCaptureFixture) -> None:
    data = compiled(text)
    with pytest.raises(elf.UnsupportedObjectError):
        elf.link([data], ["f"], {})
    caplog.set_level(logging.DEBUG, "weft.backends.cpu.objects")
    if "nowhere" in text:
        with pytest.raises(LLVMError, match=r"weft_nowhere|materialize"):
            objects.load_object(data, ["f"])
    elif "thread_local" not in text:  # for which LLVM needs a runtime of its own
        assert called(objects.load_object(data, ["f"]), 0) == 1
    assert "thread_local" in text or "LLVM links an object" in caplog.text


def test_two_of_a_name_and_none_of_it_are_refused() -> None:
    square = compiled(SQUARE)
    for images, exports in (([square, square], ["g"]), ([square], ["f"]), ([], []), ([b""], ["g"])):
        with pytest.raises(elf.UnsupportedObjectError):
            elf.link(images, exports, {})


def test_no_object_of_weft_needs_llvm_to_be_linked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "weft.backends.cpu.objects")
    for dtype in (weft.float32, weft.float64, weft.float16, weft.bfloat16, weft.int64, weft.int8):
        x = weft.arange(40, device="cpu").reshape(5, 8).to(dtype)
        values = [
            (x + 1.5),
            x.cumsum(1),
            x.sort(1).values,
            (x @ x.T),
            x.sum(),
            x.to(weft.float32).erf().sin().tolist(),
        ]
        for v in values:
            if isinstance(v, weft.Tensor):
                v.tolist()
    assert not caplog.records


@given(data=st.data())
def test_damaged_objects_are_refused_or_linked_but_never_crash(data: st.DataObject) -> None:
    image = bytearray(compiled(data.draw(st.sampled_from([CONSTANTS, STATE, JUMPS, COPIES, ADDRESSES]))))
    # headers of sections lie at the end, symbols and relocations before them
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(image) - 1))
        image[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    damaged = bytes(image if cut else image[: data.draw(st.integers(0, len(image)))])
    imports = {"here": 8, "g": 8}
    with contextlib.suppress(elf.UnsupportedObjectError, CodeMemoryError):
        elf.link([damaged], ["f"], imports).release()


def test_sizes_beyond_all_memory_are_refused() -> None:
    image = bytearray(compiled(STATE))
    at, count = struct.unpack_from("<Q", image, 40)[0], struct.unpack_from("<H", image, 60)[0]
    (bss,) = [at + 64 * k for k in range(count) if struct.unpack_from("<I", image, at + 64 * k + 4)[0] == 8]
    for size in (1 << 50, (1 << 64) - 1):
        struct.pack_into("<Q", image, bss + 32, size)
        with pytest.raises((elf.UnsupportedObjectError, CodeMemoryError)):
            elf.link([bytes(image)], ["f"], {})


def test_code_of_many_kernels_takes_the_same_values() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((33, 17)).astype(np.float32)
    np.testing.assert_allclose((weft.tensor(x) @ weft.tensor(x.T)).numpy(), x @ x.T, rtol=2e-5, atol=2e-5)
