"""Python frames in the place of the native frames that ran them."""

from __future__ import annotations

from parprof.languages.cpython.functions import PythonFrame
from parprof.languages.cpython.merge import CUT, GAP, Native, merge
from parprof.model import Frame

OWN = frozenset(("python3", "libpython3.11.so.1.0"))


def native(*names: str) -> list[Native]:
    """Leaf first; ``loop`` is an activation, a name with ``!`` has its module before it."""
    out = []
    for name in names:
        module, _, function = name.rpartition("!")
        out.append(Native((Frame(function, module=module or "python3"),), name == "loop"))
    return out


def python(text: str) -> list[PythonFrame]:
    """Innermost first; ``f|`` is the outermost of its activation, ``|`` alone is a mark."""
    return [
        (Frame(word.strip("|"), "x.py", module="python") if word != "|" else None, word.endswith("|"))
        for word in text.split()
    ]


def names(stack: list[Native], text: str, whole: bool = True, cut: bool = False) -> tuple[list[str], bool]:
    frames, matched = merge(stack, python(text), OWN, whole=whole, cut=cut)
    return [frame.name for frame in frames], matched


def test_one_activation_for_each_frame() -> None:
    stack = native("loop", "function_code_fastcall", "loop", "PyEval_EvalCode", "main", "libc.so.6!start")
    assert names(stack, "f| module|") == (["f", "module", "start"], True)


def test_an_activation_that_runs_many_and_one_called_from_c() -> None:
    stack = native("loop", "list_sort", "loop", "Py_BytesMain")
    assert names(stack, "h g key| f module|") == (["h", "g", "key", "f", "module"], True)


def test_marks_without_code_end_activations() -> None:
    stack = native("loop", "list_sort", "loop", "Py_BytesMain")
    assert names(stack, "h key | f module |") == (["h", "key", "f", "module"], True)


def test_other_libraries_stay_and_calls_into_them_do_not() -> None:
    stack = native("blas.so!gemm", "numpy.so!matmul", "PyObject_Vectorcall", "loop", "x.so!callback", "PyObject_Call",
                   "loop")  # fmt: skip
    assert names(stack, "f| g|") == (["gemm", "matmul", "f", "callback", "g"], True)


def test_what_the_interpreter_does_itself_is_shown_at_the_leaf() -> None:
    stack = native("libc.so.6!memcpy", "list_sort", "method_vectorcall_NOARGS", "python3+0x33", "loop")
    assert names(stack, "f|") == (["memcpy", "list_sort", "f"], True)


def test_an_activation_that_has_not_begun() -> None:
    assert names(native("loop", "loop"), "f|") == (["f"], False)


def test_an_activation_that_the_native_stack_lacks() -> None:
    assert names(native("loop", "list_sort", "loop"), "h| g| f|") == (["h", "g", "f"], False)
    assert names(native("x.so!leaf"), "g| f|") == (["leaf", "g", "f"], False)


def test_a_native_stack_that_was_cut_short_is_matched_from_the_leaf() -> None:
    stack = native("x.so!leaf", "loop", "y.so!back", "loop")
    assert names(stack, "h| g| f|", whole=False) == (["leaf", "h", "back", "g", "f"], False)


def test_between_code_that_cannot_be_unwound_and_python_something_is_missing() -> None:
    stack = native("blas.so!kernel")
    assert names(stack, "g| f|", whole=False) == (["kernel", GAP.name, "g", "f"], False)


def test_python_frames_that_were_cut_short() -> None:
    stack = native("loop", "y.so!back", "loop", "z.so!back", "loop", "main")
    assert names(stack, "h| g", cut=True) == (["h", "back", "g", CUT.name, "back"], False)


def test_frames_that_the_interpreter_makes_up() -> None:
    frames = [(Frame("__init__", "__init__", module="python"), False), *python("f|")]
    assert [f.name for f in merge(native("loop"), frames, OWN, whole=True, cut=False)[0]] == ["f"]


def test_without_python_frames_nothing_changes() -> None:
    assert names(native("take_gil", "loop"), "") == (["take_gil", "loop"], False)
    assert names(native("malloc", "main"), "") == (["malloc", "main"], True)
