"""How n_w of one process image is found: what its files call for, the probes in place, the source, what was cut off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from parprof.errors import ProbeAttachError
from parprof.files.dso import Dso
from parprof.kernel.alarms import Cut
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import BLAME_LOCKS, CACTUS, CREATORS_UNPROBED, LETS_GO, Cost, WatchConfig
from parprof.plans import Edge
from parprof.probes.placed import PlacedProbes
from parprof.probes.plan import Plan, learned_site, make_plan, plan_spins
from parprof.probes.wait_functions import SpinRules
from parprof.process.loadmap import LoadMap
from parprof.runtimes import Agent
from parprof.session.sources import (
    MemoryChoice,
    Source,
    can_probe_edges,
    first_source,
    flags_for,
    look_again,
    look_for_memory,
    next_source,
    root_sites,
    with_root,
)

_SWITCHES_KEPT = 8
_LOCK_KINDS = (Edge.LOCK, Edge.UNLOCK)


class ProbedImage(Protocol):
    """The process image, as far as its probing asks something of it."""

    def configure(self) -> None:
        """Tell the programs anew what `Probing.config` says."""

    def place_probes(self) -> None:
        """`Probing.place` for the load map that it has now."""

    def note_refusal(self, text: str) -> None:
        """The kernel refused probes."""


class Probing:
    """The plan for one process image, and what came of it."""

    def __init__(
        self,
        kernel: BpfKernel,
        pid: int,
        image: int,
        *,
        probed: ProbedImage,
        wanted_source: Source | None,
        blame_locks: bool,
        spares_plain: bool,
        spin_rules: SpinRules,
    ) -> None:
        """``wanted_source``: the user's choice, if any; ``spares_plain``: as in `Watched`."""
        self.plan = Plan()
        self.source = Source.SCHEDULER
        self.memory = MemoryChoice()
        self.switches: list[str] = []
        """Changes of the source and what was cut off, each with its reason."""
        self.cuts: set[Cost] = set()
        """Kinds of events that were too dear for it."""
        self.calls_cut: Cut | None = None
        """Since then calls are no longer counted."""
        self._kernel = kernel
        self._probed = probed
        self._pid = pid
        self._image = image
        self._wanted_source = wanted_source
        self._blame_locks = blame_locks
        self._spares_plain = spares_plain
        self._spin_rules = spin_rules
        self._probes = PlacedProbes(kernel, pid)
        self._planned_for: LoadMap | None = None
        self._chosen_for: list[Agent] = []
        """Of the runtimes that the source was chosen for."""
        self._transitions: list[tuple[str, str]] = []

    def inherit(self, parent: Probing) -> None:
        """A fork starts with its parent's memory."""
        self.plan, self.source, self.memory = parent.plan, parent.source, parent.memory
        self._chosen_for = parent._chosen_for

    def is_planned_for(self, load_map: LoadMap | None) -> bool:
        """Whether this load map has nothing that was not planned for."""
        return load_map is self._planned_for

    @property
    def has_edges(self) -> bool:
        """Whether work edges can be probed."""
        return can_probe_edges(self.plan.sites, self.plan.agents, self.plan.outlined)

    def unmet_wish(self) -> str:
        """What the user is to be told of the source that he wanted, and that this process cannot have; empty: nothing.
        Why a runtime's state cannot be read is told elsewhere (`MemoryChoice.problem`)."""
        if self._wanted_source in (None, Source.SCHEDULER) or self.plan.agents:
            return ""
        wish = f"n_w source {self._wanted_source} was asked for, and is {self.source}"
        return f"{wish}: no parallel runtime was found in it"

    def config(self, flags: int, code_spans: tuple[tuple[int, int], ...]) -> WatchConfig:
        """What the programs are told of the process, with further flags and where its code is."""
        plan = self.plan
        flags |= flags_for(self.source, self.memory)
        if self._blame_locks:
            flags |= BLAME_LOCKS
        if any(agent.cactus for agent in plan.agents):
            flags |= CACTUS
        if self.source is Source.EXACT and all(agent.lets_go for agent in plan.agents):
            flags |= LETS_GO
        if plan.agents and not plan.rare_sites:
            flags |= CREATORS_UNPROBED
        return WatchConfig(
            flags,
            tuple(plan.runtime_ranges),
            tuple(plan.user_ranges),
            tuple(plan.wait_ranges),
            code_spans,
            tuple(plan.spin_ranges),
            tuple(plan.libc_ranges),
            tuple(plan.unprobed_ranges),
            self.memory.plan,
            self.memory.closures,
        )

    def place(self, load_map: LoadMap) -> None:
        """Probe whatever the load map calls for and is not probed yet.

        The programs are told first that there is a runtime: threads that they meet from then on are judged by
        it. A refusal is told, and does not stop the profiling of this or other processes.
        """
        self._make_plan(load_map)
        self._probed.configure()
        locks = [site for site in self.plan.sites if site.kind in _LOCK_KINDS]
        edges = [site for site in self.plan.sites if site.kind not in _LOCK_KINDS]
        if self.plan.agents or not self._spares_plain:
            with self._telling_refusals():
                self._probes.attach(self.plan.loader_sites, None)
        with self._telling_refusals():
            if Cost.CREATE not in self.cuts:
                self._probes.attach(self.plan.rare_sites, Cost.CREATE)
        if self.source is Source.EXACT:
            with self._telling_refusals():
                self._probes.attach(edges, Cost.PROBE)
            with self._telling_refusals():
                self._probes.attach(locks, Cost.LOCK)
        elif self.source is Source.MEMORY and self.memory.is_learned:
            with self._telling_refusals():
                self._probes.attach(root_sites(edges), None)

    def _place_anew(self) -> None:
        """The files may have been closed since they were planned for: their descriptors are in the plan."""
        self._planned_for = None
        self._probed.place_probes()

    @contextmanager
    def _telling_refusals(self) -> Iterator[None]:
        try:
            yield
        except ProbeAttachError as error:
            self._probed.note_refusal(str(error))

    def _make_plan(self, load_map: LoadMap) -> None:
        if self._planned_for is load_map:
            return
        self.plan = make_plan(load_map, self._blame_locks and Cost.LOCK not in self.cuts, self._spin_rules)
        self._planned_for = load_map
        if self.memory.plan is None:
            self.memory = with_root(look_for_memory(self.plan.agents, load_map), self.plan.sites)
        else:
            self.memory = look_again(self.memory, self.plan.agents, load_map)
            if self.source is Source.MEMORY and not self.memory.holds and self._wanted_source is None:
                without = first_source(self.plan.agents, self.memory, None, self.has_edges)
                self.go_over_to(without, self.memory.spoilt_by)
        if self.source is Source.SCHEDULER:
            self.source = first_source(self.plan.agents, self.memory, self._wanted_source, self.has_edges)
        elif self._wanted_source is None and not any(agent.hooks for agent in self._chosen_for):
            self._choose_anew()
        self._chosen_for = self.plan.agents
        if self.source is Source.MEMORY and self.memory.spoilt_by:  # the user would have it
            self.plan.notes.append(f"n_w from memory is not right here: {self.memory.spoilt_by}")

    def _choose_anew(self) -> None:
        """Nothing could be probed until now: if that was for want of a runtime with probes, it may have come."""
        source = first_source(self.plan.agents, self.memory, None, self.has_edges)
        if source is Source.EXACT:
            known = {agent.name for agent in self._chosen_for}
            late = [agent.name for agent in self.plan.agents if agent.name not in known]
            self._note_source(source, f"{' and '.join(late)} came, which is probed")

    def go_over_to(self, source: Source, why: str) -> None:
        """Take n_w from another source from now on. Threads are judged anew by the next that is seen of them."""
        self._note_source(source, why)
        self._probed.configure()
        if source is Source.EXACT:
            self._kernel.breaker.probe_again(self._pid)
            self._place_anew()
            return
        self._probes.detach(Cost.PROBE, Cost.LOCK)
        self._kernel.forget_learned({self._image})
        if source is Source.MEMORY and self.memory.is_learned:
            self._place_anew()

    def _note_source(self, source: Source, why: str) -> None:
        self._transitions.append((str(self.source), str(source)))
        self._note_switch(f"n_w source {self.source} -> {source}: {why}")
        self.source = source

    def take_transitions(self) -> list[tuple[str, str]]:
        """Changes of the source since the last call: (from, to)."""
        taken, self._transitions = self._transitions, []
        return taken

    def cut_off(self, cut: Cut) -> None:
        """The breaker has cut off a kind of event, whose probes are gone by now: go on without."""
        again = cut.cost in self.cuts
        self.cuts.add(cut.cost)
        if cut.cost is Cost.PROBE:
            if self.source is Source.EXACT:
                self.go_over_to(next_source(self.memory), "probes cost more than the budget")
            self.cuts.discard(Cost.PROBE)
        elif cut.cost is Cost.LOCK:
            self._note_switch("holders of locks are no longer probed: that cost more than the budget")
            self._probes.detach(Cost.LOCK)
            self._place_anew()
        elif cut.cost is Cost.CREATE:
            self._note_switch("creation of threads is no longer probed: that cost more than the budget")
            self._probes.detach(Cost.CREATE)
        elif cut.cost is Cost.CALL:
            self.calls_cut = cut
        elif cut.cost is Cost.ALLOCATION:
            self._note_switch(
                "allocations are no longer probed: that cost more than the budget; `parprof record` counts them for "
                "far less"
            )
        elif cut.cost is Cost.TRANSFER:
            self._note_switch(
                "bytes that are read and written are no longer counted, in any process: that cost more than the budget"
            )
            self._kernel.amounts.leave_transfers()
        elif cut.cost is Cost.SWITCH and not again:
            self._note_switch(
                "context switches are no longer followed: that cost more than the budget; "
                "n_w is what runs on the CPUs at each sample"
            )

    def _note_switch(self, text: str) -> None:
        self.switches = [*self.switches[-_SWITCHES_KEPT:], text]

    def learn(self, dso: Dso, elf_address: int) -> None:
        """An outlined function without a symbol was passed to the runtime: probe it."""
        site = learned_site(self.plan.agents[0], dso, elf_address) if self.plan.agents else None
        if site is not None and self.source is Source.EXACT:
            self.plan.outlined += 1
            with self._telling_refusals():
                self._probes.attach([site], Cost.PROBE)

    def learn_spins(self, load_map: LoadMap) -> None:
        """There is new code, in its files, of which it is known that threads only wait there."""
        plan_spins(self.plan, load_map, self._spin_rules)

    def close(self) -> None:
        """Detach the probes (slow mechanisms in the background)."""
        self._probes.close()
