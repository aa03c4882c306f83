"""Random programs of several threads, whose trace is known: they hand one turn on, so all is in one order.

A program is C text, and the events that it makes by its compiled loads and stores, for input_oracle.py. Each function
but the leaves is called once; threads end with their scenario, cells stay for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from input_oracle import ENTER, EXIT, FORGET, KERNEL_WRITE, LEAVE, READ, WRITE, Event

N_CELLS, N_LEAVES, MAX_THREADS, MAX_DEPTH = 8, 6, 3, 6
PAGE = 1000
"""The first of the cells of a page that threads replace by a new one."""
FIRST_LOCAL = 2000

HEAD = """\
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define ROUTINE static __attribute__((noinline, no_icf)) /* no_icf: gcc makes one of two that are alike */
#define ORDER __asm__ volatile("" : : : "memory")
#define USE(value) __asm__ volatile("" : : "r"(value))
#define V(type, where, byte) (*(volatile type *)((char *)(where) + byte))
/* both halves are used: Valgrind leaves out loads whose value nothing uses */
#define WIDE(where) ({ __int128 value = V(__int128, where, 0); (long)(value >> 64) + (long)value; })
#define PAGE ((long *)0x100000000000)
#define ZERO 100 /* descriptors by number: a variable would be a cell */
#define NOWHERE 101
struct __attribute__((packed)) odd { long value; };
static long cells[8] __attribute__((aligned(64)));
static sem_t turns[3];
static void fresh(void)
{
    if (mmap(PAGE, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != PAGE) abort();
}
static void run(int n, void *(*const *bodies)(void *), int first)
{
    pthread_t threads[3];
    for (int at = 0; at < n; at++)
        if (pthread_create(&threads[at], 0, bodies[at], 0)) abort();
    sem_post(&turns[first]);
    for (int at = 0; at < n; at++) pthread_join(threads[at], 0);
}
"""


@dataclass
class Function:
    """One that is being written."""

    name: str
    number: int
    lines: list[str] = field(default_factory=list)
    local: int = 0
    """The first cell of its local array."""


def returns_nothing(number: int) -> bool:
    """Whether the routine of that number is a void one."""
    return number % 2 == 1


def call(name: str, number: int, argument: str) -> str:
    """A statement that calls a routine."""
    return f"{name}({argument});" if returns_nothing(number) else f"s += {name}({argument});"


def access(rng: Random, base: str, first: int, n: int) -> tuple[str, list[tuple[int, int]]]:
    """A statement on some of ``n`` cells from ``first`` on, which C calls ``base``; what it does to which cell."""
    at = rng.randrange(n)
    cell, where = first + at, f"{base} + {at}"
    pair, where_pair = first + at // 2 * 2, f"{base} + {at // 2 * 2}"
    kind = rng.randrange(14)
    bytes_, type_ = rng.choice(((1, "char"), (2, "short"), (4, "int"), (8, "long")))
    byte = rng.randrange(0, 8, bytes_)
    if kind <= 2:
        return f"s += V({type_}, {where}, {byte});", [(READ, cell)]
    if kind <= 4:
        return f"V({type_}, {where}, {byte}) = 1;", [(WRITE, cell)]
    if kind == 5:
        return f"V({type_}, {where}, {byte}) += 1;", [(READ, cell), (WRITE, cell)]
    if kind == 6:
        return f"s += __atomic_fetch_add({where}, 1, __ATOMIC_SEQ_CST);", [(READ, cell), (WRITE, cell)]
    if kind == 7:
        return f"s += __atomic_load_n({where}, __ATOMIC_ACQUIRE);", [(READ, cell)]
    if kind == 8:
        return f"s += WIDE({where_pair});", [(READ, pair), (READ, pair + 1)]
    if kind == 9:
        return f"V(struct odd, {where_pair}, 3).value = 1;", [(WRITE, pair), (WRITE, pair + 1)]
    if kind == 10:
        return f"s += V(struct odd, {where_pair}, 3).value;", [(READ, pair), (READ, pair + 1)]
    if kind == 11:
        return f"memset({where_pair}, 0, 16);", [(WRITE, pair), (WRITE, pair + 1)]
    other = (at + 1) % n
    if kind == 12:
        return f"memcpy({base} + {other}, {where}, 8);", [(READ, cell), (WRITE, first + other)]
    return f"__atomic_store_n({where}, 1, __ATOMIC_RELEASE);", [(WRITE, cell)]


def system_call(rng: Random, base: str, first: int, n: int) -> tuple[str, list[tuple[int, int]]]:
    """As `access`: the kernel writes cells, or takes what is in them."""
    at = rng.randrange(n)
    many = rng.randint(1, n - at)
    where, touched = f"{base} + {at}", range(first + at, first + at + many)
    if rng.random() < 0.3:
        return f"if (write(NOWHERE, {where}, {8 * many}) < 0) abort();", [(READ, cell) for cell in touched]
    if rng.random() < 0.5:
        return f"if (read(ZERO, {where}, {8 * many}) < 0) abort();", [
            (KERNEL_WRITE, cell) for cell in touched
        ]
    return f"if (read(ZERO, (char *)({where}) + 2, 3) < 0) abort();", [(KERNEL_WRITE, first + at)]


class Program:
    """What ``text`` does, ``events`` tells; events call routines by their place in ``names``."""

    def __init__(self, seed: int, scenarios: int, steps: int) -> None:
        self.rng = Random(seed)
        self.events: list[Event] = []
        self.names: list[str] = []
        self.heads: list[str] = []
        self.bodies: list[str] = []
        self.leaves: list[list[tuple[int, int]]] = []
        self.n_locals = self.n_threads = 0
        for _ in range(N_LEAVES):
            self._add_leaf()
        calls = [Scenario(self, number).written(steps) for number in range(scenarios)]
        main = [
            "int main(void)\n{",
            '    dup2(open("/dev/zero", O_RDONLY), ZERO);\n    dup2(open("/dev/null", O_WRONLY), NOWHERE);',
            "    for (int at = 0; at < 3; at++) sem_init(&turns[at], 0, 0);\n    fresh();",
            *calls,
            "    return 0;\n}\n",
        ]
        self.text = "\n".join([HEAD, *self.heads, *self.bodies, *main])

    def _add_leaf(self) -> None:
        """A function of the two cells that it is given, which may call earlier ones."""
        number, lines, does = len(self.leaves), [], [(ENTER, len(self.names))]
        self.names.append(f"leaf{number}")
        for _ in range(self.rng.randint(1, 4)):
            line, touched = access(self.rng, "at", 0, 2)
            lines.append(line)
            does += touched
            if number and self.rng.random() < 0.3:
                called = self.rng.randrange(number)
                lines.append(call(f"leaf{called}", called, "at"))
                does += self.leaves[called]
        self.leaves.append([*does, (LEAVE, 0)])
        self.define_routine(f"leaf{number}", number, "long *at", lines)

    def define_routine(self, name: str, number: int, arguments: str, lines: list[str]) -> None:
        """Every other one returns nothing: then gcc's -O2 ends it with a jump to the hook, not with a call."""
        head = f"{name}({arguments})"
        if returns_nothing(number):
            self.define(f"ROUTINE void {head}", lines, "USE(s);")
        else:
            self.define(f"ROUTINE long {head}", lines, "return s;")

    def define(self, head: str, lines: list[str], end: str) -> None:
        self.heads.append(f"{head};")
        text = "".join(f"    {line}\n    ORDER;\n" for line in lines)
        self.bodies.append(f"{head}\n{{\n    long s = 0, own[2];\n    (void)own;\n{text}    {end}\n}}")


class Scenario:
    """Threads that begin, take turns, and end."""

    def __init__(self, program: Program, number: int) -> None:
        self.program, self.rng, self.number = program, program.rng, number
        self.n = self.rng.randint(1, MAX_THREADS)
        self.open: list[list[Function]] = []
        self.n_functions = 0
        self.first_thread = program.n_threads
        program.n_threads += self.n
        self.current = self.first = self.rng.randrange(self.n)
        for thread in range(self.n):
            self.open.append([])
            self._enter(thread, f"s{number}_thread{thread}")
            self._say(f"sem_wait(&turns[{thread}]);", thread)

    def written(self, steps: int) -> str:
        """Write it. Returns the statement that runs it."""
        for _ in range(steps):
            if self.rng.random() < 0.4:
                self._pass_turn(self.rng.randrange(self.n))
            self._step()
        order = [self.current, *(thread for thread in range(self.n) if thread != self.current)]
        for at, thread in enumerate(order):
            while len(self.open[thread]) > 1:
                self._leave()
            if at + 1 < self.n:
                self._pass_turn(order[at + 1], is_last=True)
            self._end(thread)
        bodies = ", ".join(f"s{self.number}_thread{thread}" for thread in range(self.n))
        return f"    run({self.n}, (void *(*[])(void *)){{{bodies}}}, {self.first});"

    def _step(self) -> None:
        depth, dice = len(self.open[self.current]), self.rng.random()
        top = self.open[self.current][-1]
        if dice < 0.15 and depth < MAX_DEPTH:
            self._enter(self.current, f"s{self.number}_f{self.n_functions}")
        elif dice < 0.28 and depth > 1:
            self._leave()
        elif dice < 0.42:
            leaf = self.rng.randrange(N_LEAVES)
            name, first = self.rng.choice(
                (("cells + 2", 2), ("cells + 5", 5), ("PAGE", PAGE), ("own", top.local))
            )
            self._say(call(f"leaf{leaf}", leaf, name))
            for kind, what in self.program.leaves[leaf]:
                self._happen(kind, what if kind in (ENTER, LEAVE) else first + what)
        elif dice < 0.46:
            self._say("fresh();")
            for cell in range(PAGE, PAGE + N_CELLS):
                self._happen(FORGET, cell)
        else:
            base, first = self.rng.choice((("cells", 0), ("PAGE", PAGE)))
            make = system_call if dice > 0.85 else access
            line, touched = make(self.rng, base, first, N_CELLS)
            self._say(line)
            for kind, cell in touched:
                self._happen(kind, cell)

    def _say(self, line: str, thread: int | None = None) -> None:
        self.open[self.current if thread is None else thread][-1].lines.append(line)

    def _happen(self, kind: int, what: int, thread: int | None = None) -> None:
        number = self.first_thread + (self.current if thread is None else thread)
        self.program.events.append((kind, number, what))

    def _pass_turn(self, to: int, is_last: bool = False) -> None:
        if to == self.current:
            return
        self._say(f"sem_post(&turns[{to}]);")
        if not is_last:
            self._say(f"sem_wait(&turns[{self.current}]);")
        self.current = to

    def _enter(self, thread: int, name: str) -> None:
        """A function begins, and writes the two cells that are its own."""
        program = self.program
        if self.open[thread]:
            self._say(call(name, self.n_functions, ""), thread)
        program.n_locals += 2
        function = Function(name, self.n_functions, local=FIRST_LOCAL + program.n_locals)
        self.n_functions += 1
        self.open[thread].append(function)
        self._happen(ENTER, len(program.names), thread)
        program.names.append(name)
        for at in range(2):
            self._say(f"V(long, own + {at}, 0) = 1;", thread)
            self._happen(WRITE, function.local + at, thread)

    def _leave(self) -> None:
        function = self.open[self.current].pop()
        self.program.define_routine(function.name, function.number, "void", function.lines)
        self._happen(LEAVE, 0)

    def _end(self, thread: int) -> None:
        (function,) = self.open[thread]
        self.program.define(
            f"ROUTINE void *{function.name}(void *s_)", function.lines, "return (char *)s_ + s;"
        )
        self._happen(LEAVE, 0, thread)
        self._happen(EXIT, 0, thread)
