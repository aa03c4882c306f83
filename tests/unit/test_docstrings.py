# SPDX-License-Identifier: Apache-2.0
"""What docstrings show as examples is what comes out."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import parprof


def test_examples_in_docstrings() -> None:
    names = [module.name for module in pkgutil.walk_packages(parprof.__path__, "parprof.")]
    runner = doctest.DocTestRunner()
    for name in names:
        if not name.endswith("__main__"):
            for test in doctest.DocTestFinder().find(importlib.import_module(name), name):
                if (
                    test.examples
                ):  # to run one, doctest looks at all source files: not for 6,000 that have none
                    runner.run(test)
    assert runner.failures == 0
    assert runner.tries > 150
