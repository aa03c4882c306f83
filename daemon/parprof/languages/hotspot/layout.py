"""Where one JVM keeps what is read of it, from what it says itself: JDK 11 to 25."""

from __future__ import annotations

from parprof.languages.hotspot.memory import JvmMemory, Unreadable
from parprof.languages.hotspot.structures import VmStructures
from parprof.values import dataclass

_WITHOUT_ZERO = 20
"""From this version on no byte of compressed numbers is 0."""
HEAPS = 3
"""Of compiled code, at most: JVM_HEAPS."""
PER_HEAP = "heap", "heap_size", "segments"
FACTS = (
    *PER_HEAP, "interpreter", "interpreter_size", "segment_shift", "frame_words", "const_method", "bytecodes"
)  # fmt: skip
"""Fields of ``struct jvm``."""


@dataclass(frozen=True, slots=True)
class Heap:
    """A heap of compiled code, and of stubs. Where it is does not change while the JVM lives."""

    start: int
    end: int
    segments: int
    """The map of its segments, a byte for each."""
    shift: int
    """A segment has 1 << so many bytes."""


@dataclass(frozen=True, slots=True)
class JvmLayout:
    """Offsets in bytes, 0 for what the version does not have; and addresses of what does not move."""

    heaps: tuple[Heap, ...]
    interpreter: tuple[int, int]
    """Where its code begins and ends."""
    without_zero: bool
    block_header: int
    blob_name: int
    """In a CodeBlob, as the next four."""
    blob_size: int
    blob_frame_size: int
    blob_code_begin: int
    """A pointer."""
    blob_code_offset: int
    """From the blob on, where there is no pointer."""
    nmethod_method: int
    nmethod_scopes_pcs: int
    nmethod_pcs_end: int
    """Where the descriptions of places in the code end."""
    nmethod_scopes_data: int
    """A pointer, or likewise an offset."""
    nmethod_metadata: int
    """Where its own table of methods begins."""
    nmethod_immutable: int
    """Pointer to what these offsets are from, of versions that have it."""
    blob_mutable: int
    """The same, of the table of methods: it begins behind the relocations."""
    blob_relocations: int
    pc_desc_size: int
    method_const: int
    const_size: int
    const_constants: int
    const_name: int
    const_code_size: int
    const_flags: int
    pool_size: int
    pool_holder: int
    pool_file: int
    klass_name: int
    klass_file: int
    symbol_length: int
    symbol_body: int

    @classmethod
    def of(cls, said: VmStructures, memory: JvmMemory) -> JvmLayout:
        """What a JVM says of itself.

        Raises:
            Unreadable: it is not as far as that yet, or says nothing that we know.
        """
        offset = said.offset
        version = memory.number(said.static("Abstract_VM_Version._vm_major_version"), 4)
        moved = ("nmethod", "_immutable_data") in said.offsets
        return cls(
            heaps=_heaps(said, memory),
            interpreter=_interpreter(said, memory),
            without_zero=version >= _WITHOUT_ZERO,
            block_header=said.size("HeapBlock"),
            blob_name=offset("CodeBlob._name"),
            blob_size=offset("CodeBlob._size"),
            blob_frame_size=offset("CodeBlob._frame_size"),
            blob_code_begin=_if_any(said, "CodeBlob._code_begin"),
            blob_code_offset=_if_any(said, "CodeBlob._code_offset"),
            nmethod_method=offset("nmethod._method", "CompiledMethod._method"),
            nmethod_scopes_pcs=offset("nmethod._scopes_pcs_offset"),
            nmethod_pcs_end=offset(
                "nmethod._scopes_data_offset" if moved else "nmethod._dependencies_offset"
            ),
            nmethod_scopes_data=offset(
                *(["nmethod._scopes_data_offset"] if moved else []),
                "CompiledMethod._scopes_data_begin",
                "nmethod._scopes_data_begin",
            ),
            nmethod_metadata=_if_any(said, "nmethod._metadata_offset"),
            nmethod_immutable=_if_any(said, "nmethod._immutable_data"),
            blob_mutable=_if_any(said, "CodeBlob._mutable_data"),
            blob_relocations=_if_any(said, "CodeBlob._relocation_size"),
            pc_desc_size=said.size("PcDesc"),
            method_const=offset("Method._constMethod"),
            const_size=said.size("ConstMethod"),
            const_constants=offset("ConstMethod._constants"),
            const_name=offset("ConstMethod._name_index"),
            const_code_size=offset("ConstMethod._code_size"),
            const_flags=offset("ConstMethod._flags", "ConstMethod._flags._flags"),
            pool_size=said.size("ConstantPool"),
            pool_holder=offset("ConstantPool._pool_holder"),
            pool_file=_if_any(said, "ConstantPool._source_file_name_index"),
            klass_name=offset("Klass._name"),
            klass_file=_if_any(said, "InstanceKlass._source_file_name_index"),
            symbol_length=offset("Symbol._length"),
            symbol_body=offset("Symbol._body"),
        )

    def heap_of(self, address: int) -> Heap | None:
        """The heap that an address lies in."""
        return next((heap for heap in self.heaps if heap.start <= address < heap.end), None)

    def kernel_facts(self) -> dict[str, int | tuple[int, ...]]:
        """What the programs in the kernel must know, by field of ``struct jvm``."""
        heaps = self.heaps
        room = (0,) * (HEAPS - len(heaps))
        start, end = self.interpreter
        return {
            "heap": (*(heap.start for heap in heaps), *room),
            "heap_size": (*(heap.end - heap.start for heap in heaps), *room),
            "segments": (*(heap.segments for heap in heaps), *room),
            "interpreter": start,
            "interpreter_size": end - start,
            "segment_shift": heaps[0].shift,
            "frame_words": self.block_header + self.blob_frame_size,
            "const_method": self.method_const,
            "bytecodes": self.const_size,
        }


def _if_any(said: VmStructures, name: str) -> int:
    try:
        return said.offset(name)
    except Unreadable:
        return 0


def _heaps(said: VmStructures, memory: JvmMemory) -> tuple[Heap, ...]:
    number = memory.number
    table = number(said.static("CodeCache._heaps"))
    count = number(table + said.offset("GrowableArrayBase._len", "GenericGrowableArray._len"), 4)
    if not 0 < count <= HEAPS:
        raise Unreadable(f"{count} heaps of code")
    first = number(table + said.offset("GrowableArray<int>._data"))
    low, high = said.offset("VirtualSpace._low_boundary"), said.offset("VirtualSpace._high_boundary")
    code, segments = said.offset("CodeHeap._memory"), said.offset("CodeHeap._segmap")
    out = []
    for index in range(count):
        heap = number(first + 8 * index)
        shift = number(heap + said.offset("CodeHeap._log2_segment_size"), 4)
        found = Heap(
            number(heap + code + low), number(heap + code + high), number(heap + segments + low), shift
        )
        if not 0 < found.start < found.end < 1 << 47 or not 4 <= shift <= 16 or not found.segments:
            raise Unreadable("a heap that is none")
        out.append(found)
    if len({heap.shift for heap in out}) != 1:
        raise Unreadable("heaps of different segments")
    return tuple(out)


def _interpreter(said: VmStructures, memory: JvmMemory) -> tuple[int, int]:
    queue = memory.number(said.static("AbstractInterpreter._code"))
    start = memory.number(queue + said.offset("StubQueue._stub_buffer"))
    end = start + memory.number(queue + said.offset("StubQueue._buffer_limit"), 4)
    if not 0 < start < end < 1 << 47:
        raise Unreadable("no interpreter")
    return start, end
