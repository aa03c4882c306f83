"""Code that runs once and is freed then, as the body of a module and that of a class. Argument: work or wait.

Tells how many seconds it waited for at least."""

import sys
import time

PARTS = 100
SECONDS, NAP = 0.01, 0.005
BODY = """
class Part{number}:
    end = clock() + {seconds}
    while clock() < end:  # line 4
        wait(naps.append({nap}) or {nap})  # line 5
"""

naps = []
files = [f"part_{number}.py" for number in range(PARTS)]  # as an import keeps them
is_work = sys.argv[1] == "work"
names = {
    "__name__": "part",
    "clock": time.thread_time if is_work else time.monotonic,
    "wait": float if is_work else time.sleep,
    "naps": naps,
}

print("ready", flush=True)
sys.stdin.readline()
for number, file in enumerate(files):
    source = BODY.format(number=number, seconds=SECONDS, nap=NAP)
    exec(compile(source, file, "exec"), dict(names))
print(sum(naps))
