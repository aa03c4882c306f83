"""Where a call of the runtime is in the program's own code: C++'s and Rust's libraries make many for it."""

from __future__ import annotations

from collections.abc import Sequence

from parprof.causes.ownership import Owner, Ownership
from parprof.model import Frames


def own_frames(chain: Sequence[Frames], ownership: Ownership) -> Frames:
    """Of a call's frames, and those of the calls around it, the first that are the program's own, without what is
    inlined in them from its libraries. Where none is: the call's.

    A library that is a file of its own (a codec's) is told itself; one that is linked into the program (a crate, or a
    template) is passed over.
    """
    for frames in chain:
        for at, frame in enumerate(frames):
            owner = ownership.of(frame)
            if owner is Owner.PROGRAM or (owner is Owner.LIBRARY and ".so" in frame.module):
                return frames[at:]
    return chain[0] if chain else ()
