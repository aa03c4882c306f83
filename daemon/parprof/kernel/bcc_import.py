"""Finds Debian's bcc from any CPython. The only module that imports it, and only in the compiler child.

PyPI's ``bcc`` is an unrelated lattice library: a module without ``BPF`` is never accepted.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType

from parprof.errors import KernelUnsupported

DEBIAN_BCC = Path("/usr/lib/python3/dist-packages/bcc/__init__.py")


def _accept(module: ModuleType | None) -> ModuleType | None:
    return module if module is not None and hasattr(module, "BPF") else None


def import_bcc(debian_bcc: Path = DEBIAN_BCC) -> ModuleType:
    """Return the iovisor bcc package.

    Debian's package is pure Python over ``libbcc.so.0``, so it loads in every CPython; only its own folder is
    used, because the rest of dist-packages is built for Debian's Python alone.

    Raises:
        KernelUnsupported: bcc is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # an invalid escape in bcc 0.26, seen from 3.12 on
        try:
            found = _accept(importlib.import_module("bcc"))
        except ImportError:
            found = None
        if found is not None:
            return found
        stranger = sys.modules.pop("bcc", None)
        spec = None
        if debian_bcc.is_file():
            spec = importlib.util.spec_from_file_location(
                "bcc", debian_bcc, submodule_search_locations=[str(debian_bcc.parent)]
            )
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules["bcc"] = module
            try:
                spec.loader.exec_module(module)
            except (ImportError, OSError) as error:
                sys.modules.pop("bcc", None)
                raise KernelUnsupported(
                    f"Debian's bcc does not load: {error}; apt-get install --reinstall python3-bpfcc libbpfcc"
                ) from error
            if _accept(module):
                return module
    hint = " (the `bcc` found in this environment is PyPI's, a different project)" if stranger else ""
    raise KernelUnsupported(f"bcc is missing{hint}: apt-get install python3-bpfcc libbpfcc")
