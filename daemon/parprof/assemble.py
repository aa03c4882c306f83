"""From a finished session to a Profile: addresses become frames, counts become metrics."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping

from parprof.attribution.idleness import attribute
from parprof.callpath import TRUNCATED, physical_path
from parprof.dso import ANONYMOUS
from parprof.interpreters.merge import python_merge
from parprof.loadmap import Dso
from parprof.loops import LoopScopes
from parprof.model import Frame, Metrics, Path, PathSample, ProcessInfo, Profile, ThreadState
from parprof.runtimes import agent_for_library
from parprof.session import FactKey, Session
from parprof.symbols import Request, Symbolizer
from parprof.symbols.kernel import KERNEL, KernelSymbolizer
from parprof.target import Target

_CREATE = re.compile(r"GOMP_task|GOMP_parallel|__kmpc_omp_task|__kmpc_fork|pthread_create|__kmpc_taskloop")
_SYNC = re.compile(r".*(barrier|lock|critical|taskwait|ordered|atomic|wait|reduce)")
_SCHEDULE = re.compile(r".*(loop|dispatch|for_static|sections|single)")


def overhead_category(function: str) -> str:
    """Which kind of parallel overhead a runtime function is: create, sync, schedule or other."""
    for pattern, category in ((_CREATE, "create"), (_SYNC, "sync"), (_SCHEDULE, "schedule")):
        if pattern.match(function):
            return category
    return "other"


Place = tuple[int, int, int, bool]
"""image, load map epoch, address, whether it is a return address"""


_STACK_ENDS = {
    "no_mapping": "at an address in no known mapping",
    "no_table": "in code without unwind table",
    "bad_row": "where the table says nothing",
    "unreadable": "at unreadable stack memory",
    "too_deep": "deeper than 512 frames",
    "zero": "at a return address of 0",
    "frame_pointers": "before the load map was known",
}


class Assembler:
    """Builds the Profile of one session."""

    def __init__(self, session: Session, symbolizer: Symbolizer, event: str, cores: int | None) -> None:
        self._session = session
        self._symbolizer = symbolizer
        self._cores = cores
        self._event = event
        self._frames: dict[Place, tuple[Frame, ...]] = {}
        self._kernel: dict[tuple[int, bool], tuple[Frame, ...]] = {}
        self._truncated = self._total = self._unsure = 0
        self._loop_notes: list[str] = []

    def _resolve_all(self, facts: Mapping[FactKey, list[int]]) -> None:
        """Look all addresses up at once: the symbolizer reads each file a single time."""
        wanted: dict[Place, tuple[Dso, int] | None] = {}
        kernel: set[tuple[int, bool]] = set()
        for image, _, _, _, _, user, in_kernel, epoch in facts:
            target = self._session.targets.get(image)
            for address, is_return in self._session.kernel.stack(user).frames:
                place = (image, epoch, address, is_return)
                if place not in wanted:
                    wanted[place] = target.find(address, epoch) if target else None
            kernel.update(self._session.kernel.stack(in_kernel).frames)
        requests: Counter[Request] = Counter()
        for key, row in facts.items():
            if key[2] == 0:
                for place in {
                    (key[0], key[7], *frame) for frame in self._session.kernel.stack(key[5]).frames
                }:
                    if found := wanted[place]:
                        requests[found[0], found[1], place[3]] += row[0]
        requests.update({(found[0], found[1], place[3]): 0 for place, found in wanted.items() if found})
        resolved = self._symbolizer.resolve(requests)
        scopes = LoopScopes(self._symbolizer.resolve)
        scopes.prepare(requests, resolved, sum(row[0] for key, row in facts.items() if key[2] == 0))
        self._loop_notes = scopes.notes
        for place, found in wanted.items():
            if found:
                request = found[0], found[1], place[3]
                here = scopes.scopes(request, resolved[request])
                # a loop without lines is an address, which tells its reader nothing
                self._frames[place] = tuple(frame for frame in here if frame.line or not frame.is_loop)
            elif not place[3]:  # a leaf outside of every mapping is code that went away, or was never a file
                self._frames[place] = (Frame(f"[unknown]+{place[2]:#x}"),)
        self._name_jit_code(wanted)
        self._kernel = KernelSymbolizer().resolve(kernel)

    def _name_jit_code(self, wanted: Mapping[Place, tuple[Dso, int] | None]) -> None:
        """Names of code in anonymous memory, from the map file that its JIT compiler may have written."""
        code: dict[int, dict[Place, int]] = {}
        for place, found in wanted.items():
            if found and found[0].name == ANONYMOUS:
                code.setdefault(place[0], {})[place] = place[2] - place[3]
        for image, places in code.items():
            names = self._session.targets[image].perf_map.names(places.values())
            for place, address in places.items():
                if name := names.get(address):
                    self._frames[place] = (Frame(name, module=ANONYMOUS, address=place[2]),)

    def _path(self, image: int, epoch: int, user: int, in_kernel: int) -> Path:
        def resolve(address: int, is_return: bool) -> tuple[Frame, ...]:
            return self._frames.get((image, epoch, address, is_return), ())

        def resolve_kernel(address: int, is_return: bool) -> tuple[Frame, ...]:
            return self._kernel[address, is_return]

        stack = self._session.kernel.stack
        target = self._session.targets.get(image)
        merge = python_merge(target.python, user, stack(user)) if target and target.python else None
        return physical_path(stack(user), stack(in_kernel), resolve, resolve_kernel, merge)

    def _overhead(self, path: Path) -> str:
        """Category of overhead when the innermost user frame is runtime code, else empty."""
        for frame in reversed(path):
            if frame.module == KERNEL or frame.is_loop:
                continue
            return overhead_category(frame.name) if agent_for_library(frame.module) else ""
        return ""

    def _cores_of(self, target: Target | None) -> int:
        return self._cores or (target.parallel_cores() if target else 1)

    def _samples(self) -> list[PathSample]:
        session = self._session
        period_ns = 1e9 / session.kernel.frequency_hz
        self._resolve_all(session.facts)
        paths: dict[tuple[int, int, int, int], Path] = {}
        rows: dict[tuple[Path, int, int], PathSample] = {}
        for key, (count, total, unsure) in session.facts.items():
            image, tid, event, state, n_working, user, in_kernel, epoch = key
            target = session.targets.get(image)
            path = paths.get((image, epoch, user, in_kernel))
            if path is None:
                path = paths[image, epoch, user, in_kernel] = self._path(image, epoch, user, in_kernel)
            if event == 0:
                self._total += count
                self._unsure += unsure
                self._truncated += count if path and path[0] == TRUNCATED else 0
                metrics = attribute(count, period_ns, n_working, self._cores_of(target), state)
            else:
                metrics = Metrics(events={session.kernel.events[event]: total})
            overhead = self._overhead(path) if state is ThreadState.WORKING else ""
            if overhead:
                metrics.overhead_ns = metrics.work_ns
            known = rows.get((path, image, tid))
            if known is None:
                process = target.process if target else None
                rows[path, image, tid] = PathSample(
                    path, metrics, process.pid if process else 0, process.comm if process else "?",
                    session.thread_names.get((image, tid), str(tid)), target.plan.runtime if target else "", overhead,
                )  # fmt: skip
            else:
                known.metrics.add(metrics)
        return list(rows.values())

    def profile(self, main: Target, notes: list[str], cpu_seconds_before: float) -> Profile:
        """The profile, described by its main process."""
        session = self._session
        duration_s = (session.ended_ns - session.started_ns) / 1e9
        own_s = (
            time.process_time() - cpu_seconds_before
        )  # before the work below, which the target no longer feels
        samples = self._samples()
        target_ns = sum(s.metrics.work_ns + s.metrics.spin_ns for s in samples)
        lost = session.kernel.lost()
        probe_failures = sum(len(target.failures) for target in session.targets.values())
        if probe_failures:
            lost["probes"] = probe_failures
        return Profile(
            process=ProcessInfo(
                main.pid, main.process.comm, main.process.command, main.plan.runtime,
                self._cores_of(main), main.n_w_source,
            ),
            duration_s=duration_s,
            frequency_hz=session.kernel.frequency_hz,
            samples=samples,
            event=self._event,
            lost=lost,
            target_cost_percent=100 * session.cost.target_ns() / target_ns if target_ns else 0.0,
            daemon_cost_percent=100 * own_s / duration_s if duration_s else 0.0,
            notes=[*notes, *self._notes()],
            extra={
                key: str(value) for key, value in {**session.kernel.statistics(), **self._python()}.items()
            },
            start_time_s=session.started_s,
        )  # fmt: skip

    def _python(self) -> dict[str, int]:
        """Python frames without a name, and stacks that did not match the native ones."""
        stacks = [target.python for target in self._session.targets.values() if target.python]
        return {
            "python_unnamed": sum(python.unresolved for python in stacks),
            "python_mismatched": sum(len(python.mismatched) for python in stacks),
        }

    def _notes(self) -> list[str]:
        out = []
        if self._truncated:
            counted = self._session.kernel.statistics()
            why = [
                f"{counted[f'stacks_{end}']} {text}"
                for end, text in _STACK_ENDS.items()
                if counted[f"stacks_{end}"]
            ]
            share = 100 * self._truncated / self._total
            out.append(f"{share:.1f} % of the stacks are cut short ({'; '.join(why)})")
        refused = self._session.watched.placer.refused
        if refused:
            out.append(f"no room for {refused} unwind tables: frame pointers were followed in those files")
        out += self._loop_notes
        problems = {**self._session.builder.problems, **self._symbolizer.problems}
        out += [f"{path}: {problem}" for path, problem in list(problems.items())[:8]]
        if self._unsure:
            out.append(
                f"n_w was partly guessed in {self._unsure} samples: attached in mid-region, or an edge not probed yet"
            )
        for target in self._session.targets.values():
            out += [f"process {target.pid}: {text}" for text in [*target.failures, *target.plan.notes]]
        return out
