"""The unwinder's store on real maps: chunks are there before they are needed, and go when nobody needs them."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from parprof.kernel import bpf
from parprof.kernel.objects import load_object
from parprof.kernel.sizes import map_sizes
from parprof.kernel.store import CHUNK_WORDS, SPARE_CHUNKS, WORD, Store, StoreFull

pytestmark = pytest.mark.beside

CHUNK_BYTES = CHUNK_WORDS * WORD
MOST = 16


@pytest.fixture
def store() -> Iterator[Store]:
    with closing(load_object(map_sizes(2, 999))) as loaded:
        with closing(Store(loaded.maps["store"], loaded.definitions["store_chunk"], MOST)) as made:
            yield made


def wait_for(store: Store, chunks: int) -> None:
    end = time.monotonic() + 10
    while store.size_bytes != chunks * CHUNK_BYTES:
        assert time.monotonic() < end, f"{store.size_bytes / CHUNK_BYTES} chunks"
        time.sleep(0.005)


def test_chunks_are_made_ahead(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for(store, SPARE_CHUNKS)
    made: list[str] = []
    create = bpf.map_create
    monkeypatch.setattr(bpf, "map_create", lambda *args: made.append(str(args)) or create(*args))
    monkeypatch.setattr(store, "_prepare", lambda: None)
    start = store.allocate(SPARE_CHUNKS * CHUNK_WORDS - 8)
    assert made == [], "nobody has to wait for the kernel"
    store.write(start, struct.pack("<Q", 7) * 8)


def test_as_many_are_spare_as_before_after_some_were_used(store: Store) -> None:
    wait_for(store, SPARE_CHUNKS)
    start = store.allocate(2 * CHUNK_WORDS + 1)
    wait_for(store, 3 + SPARE_CHUNKS)
    store.free(start, 2 * CHUNK_WORDS + 1)
    time.sleep(0.1)  # it rests
    store.free(store.allocate(1), 1)
    assert store.size_bytes <= (1 + SPARE_CHUNKS) * CHUNK_BYTES


def test_a_store_that_is_full(store: Store) -> None:
    start = store.allocate(MOST * CHUNK_WORDS)
    assert start == 0
    wait_for(store, MOST)
    with pytest.raises(StoreFull):
        store.allocate(1)


def test_a_store_that_is_closed_while_it_makes_chunks() -> None:
    with closing(load_object(map_sizes(2, 999))) as loaded:
        store = Store(loaded.maps["store"], loaded.definitions["store_chunk"], MOST)
        store.close()
        assert store._thread is not None
        store._thread.join(5)
        assert store.size_bytes == 0
