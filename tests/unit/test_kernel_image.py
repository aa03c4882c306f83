"""Names of the kernel's own functions, kept by its build id, are those that a pass over ``/proc/kallsyms`` finds."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.model import Frame
from parprof.symbols.kallsyms import KALLSYMS
from parprof.symbols.kernel import KernelSymbolizer
from parprof.symbols.kernel_image import NOTES, KernelImage

BASE = 0xFFFFFFFF81000000
BUILD_ID = bytes(range(20))


def kallsyms(begin: int) -> str:
    """Of a kernel whose image begins there."""
    image = {
        0: "T _text",
        0x10: "t do_work",
        0x20: "T sleep",
        0x30: "D data",
        0x40: "T last",
        0x100: "T _etext",
    }
    lines = [f"{0:016x} A of_each_cpu"] * 500
    lines += [f"{begin + offset:016x} {rest}" for offset, rest in image.items()]
    lines += [f"{begin + 0x10:016x} T alias", f"{begin + 0x40000000:016x} t helper\t[module]", "nonsense"]
    return "\n".join(lines) + "\n"


def notes(build_id: bytes) -> bytes:
    """Another note, then that of the linker."""
    other = struct.pack("<III", 6, 4, 0x100) + b"Linux\0\0\0" + b"\1\0\0\0"
    return other + struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id


@pytest.fixture
def boot(tmp_path: Path) -> Callable[..., KernelSymbolizer]:
    """Another start of the machine: what names it has from then on."""

    def start(begin: int = BASE, build_id: bytes = BUILD_ID) -> KernelSymbolizer:
        (tmp_path / "kallsyms").write_text(kallsyms(begin))
        (tmp_path / "notes").write_bytes(notes(build_id))
        path = tmp_path / "kallsyms"
        return KernelSymbolizer(path, image=KernelImage(path, tmp_path / "notes", tmp_path / "cache"))

    return start


def never(*_: object) -> None:
    """Instead of a pass."""
    pytest.fail("they are known")


def names(kernel: KernelSymbolizer, *addresses: int) -> list[str]:
    """In their order."""
    found = kernel.resolve((address, False) for address in addresses)
    return [frame.name for address in addresses for frame in found[address, False]]


def test_another_start_of_the_machine_needs_no_pass(
    boot: Callable[..., KernelSymbolizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = 0x0, 0x1F, 0x20, 0x3F, 0xFF
    expected = ["_text", "do_work", "sleep", "sleep", "last"]
    assert names(boot(), *(BASE + offset for offset in offsets)) == expected
    moved = BASE + 0x1E00000
    kernel = boot(moved)
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "_scan", never)
        assert names(kernel, *(moved + offset for offset in offsets)) == expected
    # a module is at another place each time
    assert names(kernel, moved + 0x40000004, moved + 0x100, moved - 1) == ["helper", "_etext", "[kernel]"]


def test_no_address_is_kept(boot: Callable[..., KernelSymbolizer], tmp_path: Path) -> None:
    names(boot(), BASE)
    (kept,) = (tmp_path / "cache/kernel").iterdir()
    data = kept.read_bytes()
    high = BASE >> 24 & 0xFFFFFFFF
    assert high.to_bytes(4, "little") not in data and high.to_bytes(4, "big") not in data
    assert f"{BASE:016x}"[:10].encode() not in data and b"_text" in data


def test_another_kernel_is_passed_over(boot: Callable[..., KernelSymbolizer], tmp_path: Path) -> None:
    names(boot(), BASE)
    assert names(boot(build_id=BUILD_ID[::-1]), BASE + 0x20) == ["sleep"]
    assert len(list((tmp_path / "cache/kernel").iterdir())) == 2


@pytest.mark.parametrize("lacks", ["notes", "build id", "addresses", "the end"])
def test_what_says_too_little_is_not_kept(
    boot: Callable[..., KernelSymbolizer], tmp_path: Path, lacks: str
) -> None:
    kernel = boot(0 if lacks == "addresses" else BASE, b"" if lacks == "build id" else BUILD_ID)
    if lacks == "notes":
        path = tmp_path / "kallsyms"
        kernel = KernelSymbolizer(path, image=KernelImage(path, tmp_path / "none", tmp_path / "cache"))
    if lacks == "the end":
        (tmp_path / "kallsyms").write_text(kallsyms(BASE).replace("_etext", "elsewhere"))
    assert names(kernel, BASE + 0x20) == ["[kernel]" if lacks == "addresses" else "sleep"]
    assert not list((tmp_path / "cache").rglob("*-*"))


@given(cut=st.integers(0, 400), at=st.integers(0, 200), value=st.binary(max_size=8))
def test_a_damaged_file_is_no_harm(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, value: bytes
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "kallsyms"
    path.write_text(kallsyms(BASE))
    (folder / "notes").write_bytes(notes(BUILD_ID))
    image = KernelImage(path, folder / "notes", folder)
    names(KernelSymbolizer(path, image=image), BASE)
    (kept,) = (folder / "kernel").iterdir()
    data = bytearray(kept.read_bytes()[:cut])
    data[at : at + len(value)] = value
    kept.write_bytes(data)
    kernel = KernelSymbolizer(path, image=image)
    assert len(names(kernel, *(BASE + 8 * offset for offset in range(40)))) == 40


@pytest.mark.skipif(not NOTES.exists(), reason="this kernel says nothing of itself")
def test_the_kernel_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = [
        int(line.split()[0], 16) for line in KALLSYMS.read_text().splitlines() if line.endswith(" _text")
    ]
    if not begin or not begin[0]:
        pytest.skip("it hides its addresses")
    places = [(begin[0] + 49999 * number, number % 2 > 0) for number in range(200)]
    expected = KernelSymbolizer().resolve(places)
    KernelSymbolizer(image=KernelImage(base=tmp_path)).resolve(places)
    kernel = KernelSymbolizer(image=KernelImage(base=tmp_path))
    monkeypatch.setattr(kernel, "_scan", never)
    assert kernel.resolve(places) == expected
    assert (
        len(set(expected.values())) > 100 and (Frame("[kernel]", module="[kernel]"),) not in expected.values()
    )
