"""What torch's C++ stacks on standard error show of a crash."""

from __future__ import annotations

import pytest

from pytest_ddp.outcome import stack_dumps

LIB = "/site-packages/torch/lib"
HANDLER = (
    f" frame #0: c10::FatalSignalHandler::stacktraceSignalHandler(bool) + 0x8f (0x7f1 in {LIB}/"
    "libc10.so)\n"
    "frame #1: c10::FatalSignalHandler::fatalSignalHandler(int, siginfo_t*) + 0x2da (0x7f2 in "
    f"{LIB}/libc10.so)\n"
    "frame #2: <unknown function> + 0x3c050 (0x7f3 in /lib/x86_64-linux-gnu/libc.so.6)\n"
    "frame #4: gsignal + 0x12 (0x7f4 in /lib/x86_64-linux-gnu/libc.so.6)\n"
    "frame #5: <unknown function> + 0x3c050 (0x7f3 in /lib/x86_64-linux-gnu/libc.so.6)\n"
)
ADD = (
    "frame #13: at::_ops::add_Tensor::redispatch(c10::DispatchKeySet, at::Tensor const&) + 0xf4 "
    f"(0x7f5 in {LIB}/libtorch_cpu.so)\n"
)
ELEMENTWISE = (
    "frame #7: at::TensorIteratorBase::for_each(c10::function_ref<void (char**, long)>, long) + "
    f"0x14f (0x7f6 in {LIB}/libtorch_cpu.so)\n"
)
MATMUL = f"frame #20: at::_ops::matmul::call(at::Tensor const&) + 0x1 (0x7f7 in {LIB}/libt.so)\n"
PYTHON = "<omitting python frames>\n"
START = "frame #28: __libc_start_main + 0x85 (0x7f8 in /lib/x86_64-linux-gnu/libc.so.6)\n"
FFI = (
    "frame #7: string_at + 0x8608 (0x7f in /lib-dynload/_ctypes.cpython-311-x86_64.so)\n"
    "frame #8: __gxx_personality_v0 + 0x8608 (0x7f in /usr/lib/libstdc++.so.6)\n"
    "frame #9: _dl_start + 0x8608 (0x7f in /lib64/ld-linux-x86-64.so.2)\n"
    "frame #11: ffi_call + 0xcd (0x7f in /lib/x86_64-linux-gnu/libffi.so.8)\n"
    "frame #12: PyObject_Call + 0xcd (0x7f in /usr/lib/libpython3.11.so.1.0)\n"
    "frame #13: _Py_RunMain + 0xcd (0x7f in /usr/bin/python3.11)\n"
)


def thread(number: int, *frames: str) -> str:
    return f"SIGSEGV(11), PID: 7875, Thread {number}: \n{''.join(frames)}\n"


BYSTANDER = thread(2, HANDLER.splitlines(keepends=True)[0], MATMUL)


@pytest.mark.parametrize(
    ("stacks", "expected"),
    [
        ("", ""),
        ("no stack", ""),
        (BYSTANDER, ""),
        (thread(1, HANDLER, PYTHON, START), ""),
        (thread(1, HANDLER, FFI, PYTHON, START), ""),
        (thread(1, HANDLER, PYTHON, MATMUL), ""),
        (thread(1, HANDLER, ADD, PYTHON), "the operator at::_ops::add_Tensor::call"),
        (thread(1, HANDLER, ELEMENTWISE, ADD, MATMUL), "the operator at::_ops::add_Tensor::call"),
        (BYSTANDER + thread(1, HANDLER, ADD), "the operator at::_ops::add_Tensor::call"),
        (
            thread(1, HANDLER, ELEMENTWISE, PYTHON),
            "at::TensorIteratorBase::for_each() of libtorch_cpu.so",
        ),
        (
            thread(1, HANDLER, "frame #6: my_kernel(float*, int) + 0x8 (0x7f in /src/my_ext.so)\n"),
            "my_kernel() of my_ext.so",
        ),
        (
            thread(
                1,
                HANDLER,
                "frame #6: gloo::(anonymous namespace)::ring(int) + 0x8 (0x7f in /lib/libg.so)\n",
            ),
            "gloo::<anonymous>::ring() of libg.so",
        ),
        (
            thread(
                1,
                HANDLER,
                "frame #6: plain_c_name + 0x8 (0x7f in /src/other.cpython-311-x86_64.so)\n",
            ),
            "plain_c_name of other.cpython-311-x86_64.so",
        ),
    ],
)
def test_culprit(stacks: str, expected: str) -> None:
    assert stack_dumps.culprit(stacks) == expected


def test_nothing_to_split() -> None:
    for text in ("", "said\n", "frame #1: of a film\n", "\n\n"):
        assert stack_dumps.split(text) == (text, "")


def test_stacks_are_split_from_other_output() -> None:
    stacks = thread(1, HANDLER, ADD, PYTHON, START) + BYSTANDER
    said, found = stack_dumps.split(f"before\n\n{stacks}after\n")
    assert said == "before\n\nafter\n"
    assert found == stacks


def test_stack_that_was_cut_off() -> None:
    """The process was killed while it printed."""
    stacks = f"SIGSEGV(11), PID: 1, Thread 1: \n{HANDLER}frame #6: at::Ten"
    assert stack_dumps.split(f"before\n{stacks}") == ("before\n", stacks)
    assert stack_dumps.culprit(stacks) == ""


def test_lost_thread_belongs_to_the_stacks() -> None:
    stacks = thread(1, HANDLER) + "signal lost waiting for stacktrace 12:13\n"
    assert stack_dumps.split(stacks + "after") == ("after", stacks)
