"""Who gives names to places in files: the files themselves, or a recording of what they said."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from parprof.facts.drain import Image
from parprof.model import Frame, Frames
from parprof.symbols.symbolizer import NameRequest

KernelPlace = tuple[int, bool]
"""(address in the kernel, is a return address)."""


class Namer(Protocol):
    """Names addresses, many at a time."""

    @property
    def uses_weights(self) -> bool:
        """Whether `name` looks at its weights, which take time to find."""

    @property
    def notes(self) -> list[str]:
        """What the reader of the names must know."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Path of a file -> why less is known of it than could be."""

    def name(self, weights: Mapping[NameRequest, int], total: int) -> Mapping[NameRequest, Frames]:
        """The frames at each place. ``weights``: in how many of all ``total`` samples each is."""

    def name_jit_code(self, image: Image, addresses: Collection[int]) -> Mapping[int, str]:
        """Functions in the anonymous memory of a process, by address; those without a name are left out."""

    def name_kernel(
        self, places: Collection[KernelPlace], told: Mapping[int, Frame]
    ) -> Mapping[KernelPlace, Frames]:
        """The frames of addresses of the kernel. ``told``: see `parprof.kernel.stacks.StackTable`."""

    def trim(self) -> None:
        """End idle helpers, and give back their memory."""
