# SPDX-License-Identifier: Apache-2.0
"""Our limit of open files goes up, that of what we start does not."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os, resource
from parprof import resources
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 3000))
resources.allow_many_files()
resources.allow_many_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (3000, 3000)
from parprof.commands.spawn import Child
child = Child(["sh", "-c", "ulimit -Sn"])
child.release()
assert child.wait() == 0
"""


def test_the_limit_of_a_command_is_what_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["200"]), done.stderr
