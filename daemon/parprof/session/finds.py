"""What the programs come upon as they walk stacks, and tell of the processes that these are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from parprof.kernel.engine import BpfKernel
from parprof.languages import Instance
from parprof.session.early_mappings import EarlyMappings
from parprof.session.target import Target

_T = TypeVar("_T")


class StackFinds:
    """Gives load maps the mappings that nobody else had told of, and front ends of languages what they are to name."""

    def __init__(
        self, kernel: BpfKernel, targets: Mapping[int, Target], remember: Callable[[int], Target | None]
    ) -> None:
        """``targets``: by image. ``remember``: makes one of an image that is none yet, if it is known."""
        self._kernel = kernel
        self._targets = targets
        self._remember = remember
        self.early = EarlyMappings()
        """Those of processes that are yet to be told of."""

    def note_mappings(self) -> None:
        """Add what the kernel found mapped to load maps that lack it."""
        found = [*self.early.take(), *self._kernel.found_mappings()]
        for image, mappings in _by_image((mapping.image, mapping) for mapping in found).items():
            target = self._targets.get(image) or self._remember(image)
            if target is not None:
                target.mapped.note(mappings)
            else:
                self.early.keep(mappings)

    def resolve_functions(self) -> None:
        """Look up the functions of interpreted languages in new stacks: they may be gone soon."""
        for image, functions in _by_image(self._kernel.python_functions()).items():
            if (language := self._language(image)) is not None:
                language.take(functions)
        fresh = ((image, (digest, frames)) for image, digest, frames in self._kernel.python_stacks())
        for image, stacks in _by_image(fresh).items():
            if (language := self._language(image)) is not None:
                language.resolve(stacks)
        own = ((image, (digest, words)) for image, digest, words in self._kernel.own_stacks())
        for image, native in _by_image(own).items():
            if (language := self._language(image)) is not None:
                language.resolve_words(native)

    def trim(self) -> None:
        """Forget the functions in stacks that the kernel is to send again."""
        for image in self._targets:
            if (language := self._language(image)) is not None:
                language.keep(self._kernel.stacks)

    def _language(self, image: int) -> Instance | None:
        target = self._targets.get(image)
        return target.language if target is not None else None


def _by_image(found: Iterable[tuple[int, _T]]) -> dict[int, list[_T]]:
    """(process image, something of it), in order."""
    out: dict[int, list[_T]] = {}
    for image, one in found:
        out.setdefault(image, []).append(one)
    return out
