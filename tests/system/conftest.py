from __future__ import annotations

from collections.abc import Iterator

import pytest

from booted import Machine, boot, reason_to_skip


@pytest.fixture(scope="session")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    log = tmp_path_factory.mktemp("log") / "boot.log"
    with boot(tmp_path_factory.mktemp("machine"), log) as machine:
        yield machine
