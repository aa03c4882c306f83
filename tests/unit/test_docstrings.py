# SPDX-License-Identifier: Apache-2.0
"""What docstrings show as examples is what comes out."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import parprof


def test_examples_in_docstrings() -> None:
    names = [module.name for module in pkgutil.walk_packages(parprof.__path__, "parprof.")]
    results = {
        name: doctest.testmod(importlib.import_module(name))
        for name in names
        if not name.endswith("__main__")
    }
    assert not {name: result for name, result in results.items() if result.failed}
    assert sum(result.attempted for result in results.values()) > 150
