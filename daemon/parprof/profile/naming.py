"""Names from the files that processes map, from their JIT compilers, and from the running kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from parprof.facts.drain import Image
from parprof.facts.names import KernelPlace
from parprof.kernel.stacks import STAND_IN_BITS
from parprof.loops.kept import KeptLoops
from parprof.loops.scopes import LoopScopes
from parprof.model import Frame, Frames
from parprof.resources import Closing
from parprof.symbols.kernel import KernelSymbolizer
from parprof.symbols.kernel_image import KernelImage
from parprof.symbols.symbolizer import NameRequest, Symbolizer


class FileNamer(Closing):
    """The `Namer` of what runs here and now."""

    def __init__(
        self, symbolizer: Symbolizer, *, loops: bool = True, kernel_pass_seconds: float = 0.0
    ) -> None:
        """``loops``: put loops of hot functions among the frames, which costs time and memory.

        ``kernel_pass_seconds``: look up new addresses of the kernel at most so often; each time takes 0.1 s.
        """
        self._symbolizer = symbolizer
        self._loops = KeptLoops() if loops else None
        self._kernel = KernelSymbolizer(pass_seconds=kernel_pass_seconds, image=KernelImage())
        self.notes: list[str] = []
        """What the reader of the names must know."""

    @property
    def uses_weights(self) -> bool:
        """Whether `name` looks at its weights: only hot functions are looked at for loops."""
        return self._loops is not None

    @property
    def problems(self) -> Mapping[str, str]:
        """Path of a file -> why less is known of it than could be."""
        return self._symbolizer.problems

    def prepare(self) -> None:
        """Start the helper that reads names, which takes a moment, beside what else there is to do."""
        self._symbolizer.prepare()

    def name(self, weights: Mapping[NameRequest, int], total: int) -> Mapping[NameRequest, Frames]:
        """The frames at each place; see `parprof.facts.names.Namer`."""
        if self._loops is None:
            return self._symbolizer.resolve(weights)
        if weights:
            hottest, _, _ = max(weights, key=weights.__getitem__)
            self._loops.prepare(hottest)  # beside the names
        resolved = self._symbolizer.resolve(weights)
        scopes = LoopScopes(self._symbolizer.resolve, self._loops)
        scopes.prepare(weights, resolved, total)
        self.notes += scopes.notes
        # a loop without lines is an address, which tells its reader nothing
        return {
            request: tuple(
                frame for frame in scopes.scopes(request, frames) if frame.line or not frame.is_loop
            )
            for request, frames in resolved.items()
        }

    def name_jit_code(self, image: Image, addresses: Collection[int]) -> Mapping[int, str]:
        """Functions in the anonymous memory of a process, from the map file that its JIT compiler may have written."""
        return image.jit_names(addresses)

    def look_up_kernel(self, every_seconds: float) -> None:
        """From now on look up new addresses of the kernel at most so often."""
        self._kernel.pass_seconds = every_seconds

    def name_kernel(
        self, places: Collection[KernelPlace], told: Mapping[int, Frame]
    ) -> Mapping[KernelPlace, Frames]:
        """The frames of addresses of the kernel: to look for those that nobody has told takes 0.1 s."""
        found: dict[KernelPlace, Frames] = {}
        for place in places:
            if function := told.get(place[0] >> STAND_IN_BITS):
                found[place] = (function,)
        return found | self._kernel.resolve([place for place in places if place not in found])

    def trim(self) -> None:
        """End idle helpers, and give back their memory."""
        self._symbolizer.trim()
        if self._loops is not None:
            self._loops.trim()

    def close(self) -> None:
        """End the helpers; the symbolizer is the caller's."""
        if self._loops is not None:
            self._loops.close()
