"""The flow graph of a function: its basic blocks and where control goes between them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from parprof.files.elf import ElfFile
from parprof.loops.jumptables import JumpTables
from parprof.loops.machinecode import Code, Flow

_MANY = 8


class FlowGraph:
    """Nodes are the basic blocks in the order of their addresses, then the jump tables.

    That a table is a node of its own keeps the graph small where hundreds of jumps share it, and makes the
    table the header of an interpreter's loop that has no other.
    """

    def __init__(self, elf: ElfFile, code: Code) -> None:
        """Split the function.

        Raises:
            ElfError: the file cannot be read.
        """
        self._code = code
        self._jumps: dict[int, int] = {}
        """Index of an indirect jump -> address of its table."""
        self._tables: dict[int, tuple[int, ...]] = {}
        self._find_tables(elf)
        self._first = self._leaders()
        """Index of the first instruction of each block."""
        self.starts = [code.addresses[index] for index in self._first]
        self.successors: list[list[int]] = []
        self._through: list[list[int]] = [[] for _ in self._tables]
        """By table: addresses of the jumps through it."""
        self._connect()
        self.unresolved = sum(not targets for targets in self._tables.values())

    @property
    def blocks(self) -> int:
        """Number of blocks; further nodes are jump tables."""
        return len(self._first)

    def _find_tables(self, elf: ElfFile) -> None:
        code = self._code
        tables = None
        for index in range(len(code.addresses)):
            if code.flow(index) is Flow.JUMP and code.target(index) < 0:
                tables = tables or JumpTables(elf, code)
                if found := tables.find(index):
                    self._jumps[index] = found.address
                    self._tables[found.address] = found.targets
        uses = Counter(self._jumps.values())
        shared = [address for address, targets in self._tables.items() if targets and uses[address] >= _MANY]
        if len(shared) == 1:  # an interpreter: it is the same table, from a register that we lost track of
            self._tables = {address: targets for address, targets in self._tables.items() if targets}
            self._jumps = {i: at if at in self._tables else shared[0] for i, at in self._jumps.items()}

    def _leaders(self) -> list[int]:
        code = self._code
        out = {0}
        for index in range(len(code.addresses)):
            if code.flow(index) is not Flow.ON:
                out.add(index + 1)
                out.add(max(code.index(code.target(index)), 0))
        for targets in self._tables.values():
            out.update(code.index(target) for target in targets)
        out.discard(len(code.addresses))
        return sorted(out)

    def _block_at(self, address: int) -> int:
        """The block that a target is in; -1 outside of the function.

        A jump over the prefix of an instruction (glibc does so with ``lock``) is one to that instruction.
        """
        index = self._code.index(address)
        return bisect_right(self._first, index) - 1 if index >= 0 else -1

    def last(self, block: int) -> int:
        """Index of the last instruction of a block."""
        following = self._first[block + 1] if block + 1 < len(self._first) else len(self._code.addresses)
        return following - 1

    def _connect(self) -> None:
        code, blocks = self._code, self.blocks
        nodes = {address: blocks + number for number, address in enumerate(self._tables)}
        for block in range(blocks):
            last = self.last(block)
            flow = code.flow(last)
            out = []
            if flow in (Flow.BRANCH, Flow.JUMP):
                table = self._jumps.get(last, -1)
                out.append(nodes[table] if table >= 0 else self._block_at(code.target(last)))
            if flow in (Flow.ON, Flow.BRANCH) and block + 1 < blocks:
                out.append(block + 1)
            self.successors.append([node for node in out if node >= 0])
        for targets in self._tables.values():
            self.successors.append([self._block_at(target) for target in targets])
        for index, table in self._jumps.items():
            self._through[nodes[table] - blocks].append(code.addresses[index])
        unread = [node for node in range(blocks, len(self.successors)) if not self.successors[node]]
        if len(unread) == 1:  # what nothing else leads to is reached from there
            self.successors[unread[0]] = self.orphans()

    def orphans(self) -> list[int]:
        """The blocks that nothing leads to, the first one and padding apart."""
        known = {target for targets in self.successors for target in targets}
        return [
            block for block in range(1, self.blocks) if block not in known and not self._is_padding(block)
        ]

    def _is_padding(self, block: int) -> bool:
        return all(
            name.endswith("nop") for name in self._code.mnemonics[self._first[block] : self.last(block) + 1]
        )

    def entries(self, reached: Sequence[bool]) -> list[int]:
        """Blocks by which all that is not ``reached`` is entered: where nothing leads, else the first ones."""
        known = list(reached)
        out = []
        for block in (*self.orphans(), *range(self.blocks)):
            if known[block] or self._is_padding(block):
                continue
            out.append(block)
            pending = [block]
            while pending:
                node = pending.pop()
                if not known[node]:
                    known[node] = True
                    pending += self.successors[node]
        return out

    def may_not_return(self, source: int, target: int) -> bool:
        """Whether an edge exists only if the call at the end of a block returns."""
        if source >= self.blocks or target != source + 1:
            return False
        return self._code.mnemonics[self.last(source)].endswith("call")

    def branches(self, node: int) -> list[int]:
        """Addresses of the instructions that leave a block, or that jump through a table."""
        if node < self.blocks:
            return [self._code.addresses[self.last(node)]]
        return self._through[node - self.blocks]
