"""Requests leave at their own times; each way an endpoint fails has its name."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

pytest.importorskip("aiohttp", reason="needs aiohttp")

from runbooks.replay import sender
from runbooks.replay.traces import Request, TraceError

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
_TOKEN = b'data: {"choices": [{"text": "x"}]}\n\n'
_DONE = b"data: [DONE]\n\n"


def _run(
    answer: bytes | None, requests: Iterable[Request], stop_error_share: float | None = None
) -> sender.Run:
    """Replay against a server that sends `answer` and closes; None: it never says a word."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await asyncio.sleep(3)
        else:
            writer.write(answer)
            await writer.drain()
        writer.close()

    async def main() -> sender.Run:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1/completions"
        options = sender.Options(url, "m", timeout_s=0.5, stop_error_share=stop_error_share)
        run = sender.Run([], Counter())
        try:
            await asyncio.wait_for(sender.replay(iter(requests), options, run), 10)
        finally:
            server.close()
        return run

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (_HEAD + _TOKEN + _DONE, "ok"),
        (_HEAD + b": alive\n\n" + _TOKEN + _DONE, "ok"),
        (_HEAD + _DONE, "no token"),
        (_HEAD + _TOKEN, "stream cut short"),
        (_HEAD + b"data: {nope\n\n", "malformed stream"),
        (_HEAD + b"<html>\n", "malformed stream"),
        (_HEAD + b'data: {"error": {}}\n\n', "error in stream"),
        (_HEAD + b"data: " + b"x" * (1 << 20), "malformed stream"),
        (b"HTTP/1.1 429 Slow down\r\nContent-Length: 0\r\n\r\n", "HTTP 429"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "HTTP 500"),
        (b"", "connection lost"),
        (None, "timeout"),
    ],
)
def test_each_end_has_its_name(answer: bytes | None, outcome: str) -> None:
    run = _run(answer, [Request(0, 4, 1, (7,))])
    assert run.outcomes == {outcome: 1}


def test_a_server_that_is_gone() -> None:
    run = sender.Run([], Counter())
    options = sender.Options("http://127.0.0.1:1/v1/completions", "m")
    asyncio.run(sender.replay(iter([Request(0, 4, 1)]), options, run))
    assert run.outcomes == {"connection refused": 1}


def test_sends_do_not_wait_for_answers() -> None:
    run = _run(None, [Request(place / 50, 4, 1) for place in range(10)])
    late_s = [result.sent_s - result.due_s for result in run.results]
    assert len(late_s) == 10
    assert all(0 <= late < 0.1 for late in late_s)


def test_too_many_errors_stop_the_run() -> None:
    run = _run(b"", [Request(place / 200, 4, 1) for place in range(120)], 0.5)
    assert run.stopped
    assert len(run.results) < 120


def test_prefixes_are_shared_where_hashes_are() -> None:
    first = sender.prompt_of(Request(0, 1200, 1, (0, 5, 1006)))
    second = sender.prompt_of(Request(0, 1200, 1, (0, 5, 6)))
    assert len(first) == 1200
    assert first[:1024] == second[:1024]
    assert first[1024:1028] != second[1024:1028]


def test_a_fault_late_in_the_trace_keeps_what_was_sent() -> None:
    def trace() -> Iterator[Request]:
        for place in range(70):
            yield Request(place / 100, 4, 1)
        raise TraceError("t:71: bad")

    run = _run(b"", trace())
    assert run.stopped == "t:71: bad"
    assert run.results
