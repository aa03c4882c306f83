"""Errors that users may see. Each message names the remedy.

ParprofError
 +-- UsageError            the command line or configuration is wrong (exit code 2)
 +-- KernelUnsupported     this kernel or machine cannot do it
 +-- PrivilegeError        more privileges are needed
 +-- CommandError          the command to profile cannot be run (exit code 126 or 127, as shells have it)
 +-- TargetError           the process cannot be profiled: gone, a kernel thread, a zombie, not ours
 +-- ProbeAttachError      a uprobe could not be placed
 +-- ProfileFormatError    a profile file cannot be read
 +-- OutputError           a result cannot be written
"""

from __future__ import annotations


class ParprofError(Exception):
    """Base of all errors that are reported as one line on standard error."""

    exit_code = 1


class UsageError(ParprofError):
    """The command line or a configuration value is wrong."""

    exit_code = 2


class KernelUnsupported(ParprofError):
    """The kernel or the machine lacks something that is needed."""


class PrivilegeError(ParprofError):
    """The caller lacks a privilege."""


class TargetError(ParprofError):
    """The process does not exist, ended, or cannot be profiled."""


class CommandError(ParprofError):
    """The command to profile cannot be run."""

    def __init__(self, message: str, *, is_missing: bool) -> None:
        super().__init__(message)
        self.exit_code = 127 if is_missing else 126


class ProbeAttachError(ParprofError):
    """A uprobe could not be attached."""

    is_of_place = False
    """The kernel takes no probe on one of the instructions; those on others may be taken."""


class ProfileFormatError(ParprofError):
    """A profile file is truncated, corrupt or not a profile."""


class OutputError(ParprofError):
    """A result could not be written."""
