"""Sends requests at their own times whatever the answers do (open loop), and names each outcome."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from runbooks.replay.traces import Request, TraceError

if TYPE_CHECKING:
    import aiohttp

_SPIN_S: Final = 0.002  # the last stretch before a send, where a timer's own lateness would show
AHEAD: Final = 64  # bodies built before they are due: a long prompt takes milliseconds
_IDLE_S: Final = 0.02  # time to the next send that is enough to build one more
_ERROR_WINDOW: Final = 50  # finished requests before an error rate means anything


@dataclass(frozen=True, slots=True)
class Result:
    """One request's times in seconds (from the run's start, or None) and how it ended: no text."""

    number: int
    due_s: float
    sent_s: float
    input_tokens: int
    outcome: str
    ttft_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True)
class Options:
    """Where to send and when to give up; `time_scale` 2 is half the pace of the trace."""

    url: str
    model: str
    time_scale: float = 1.0
    timeout_s: float = 300.0
    stop_error_share: float | None = None


@dataclass(slots=True)
class Run:
    """What was sent so far; `stopped` says why the run ended before its trace."""

    results: list[Result]
    outcomes: Counter[str]
    stopped: str | None = None
    sink: Callable[[Result], None] | None = None  # told of each request as it ends

    def add(self, result: Result, options: Options) -> None:
        self.results.append(result)
        self.outcomes[result.outcome] += 1
        if self.sink is not None:
            self.sink(result)
        done = len(self.results)
        failed = done - self.outcomes["ok"]
        limit = options.stop_error_share
        if limit is not None and done >= _ERROR_WINDOW and failed / done > limit:
            self.stopped = f"{failed} of {done} requests failed, more than {limit:.0%}"


def prompt_of(request: Request, block_tokens: int = 512) -> str | list[int]:
    """The kept prompt, or token ids that share a prefix exactly where the trace's hashes do.

    Ids stay within 1000..1999, which any vocabulary of 2,000 has. Without hashes nothing is shared
    by design: every request then starts alike, so pass requests that carry hashes.
    """
    if request.prompt is not None:
        return request.prompt
    ids: list[int] = []
    for place in range(-(-request.input_tokens // block_tokens)):
        block = request.hash_ids[place] if place < len(request.hash_ids) else place
        digits = [1000 + block // 1000**power % 1000 for power in range(4)]
        ids += digits + [1000 + (block + step) % 1000 for step in range(4, block_tokens)]
    return ids[: request.input_tokens]


async def replay(requests: Iterator[Request], options: Options, run: Run) -> None:
    """Send all at their times, wait for all answers; raises TraceError before the first send."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=options.timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        ahead: deque[tuple[Request, bytes]] = deque()
        while len(ahead) < AHEAD and _build(requests, ahead, options):
            pass
        start_s = loop.time()
        number = 0
        pending: set[asyncio.Task[None]] = set()
        try:
            while ahead or _build(requests, ahead, options):
                request, body = ahead.popleft()
                due_s = request.at_s * options.time_scale
                while len(ahead) < AHEAD and start_s + due_s - loop.time() > _IDLE_S:
                    if not _build(requests, ahead, options):
                        break
                    await asyncio.sleep(0)
                if (wait_s := start_s + due_s - loop.time() - _SPIN_S) > 0:
                    await asyncio.sleep(wait_s)
                while loop.time() < start_s + due_s:
                    await asyncio.sleep(0)
                if run.stopped:
                    break
                work = _send(session, number, request, due_s, start_s, body, options, run)
                task = asyncio.create_task(work)
                number += 1
                pending.add(task)
                task.add_done_callback(pending.discard)
            await asyncio.gather(*pending)
        except TraceError as error:  # found under way: what was sent keeps its results
            run.stopped = str(error)
            await asyncio.gather(*pending)
        finally:
            for task in pending:
                task.cancel()


def _build(
    requests: Iterator[Request], ahead: deque[tuple[Request, bytes]], options: Options
) -> bool:
    """Put the next request, ready to send, at the end of `ahead`; False where the trace ends."""
    request = next(requests, None)
    if request is not None:
        ahead.append((request, _body(request, options)))
    return request is not None


def _body(request: Request, options: Options) -> bytes:
    body = {
        "model": options.model,
        "prompt": prompt_of(request),
        "max_tokens": max(1, request.output_tokens),
        "stream": True,
        "temperature": 0,
    }
    return json.dumps(body).encode()


async def _send(
    session: aiohttp.ClientSession,
    number: int,
    request: Request,
    due_s: float,
    start_s: float,
    body: bytes,
    options: Options,
    run: Run,
) -> None:
    import aiohttp

    now = asyncio.get_running_loop().time
    sent_s = now() - start_s
    first_s: list[float] = []
    try:
        outcome = await _exchange(session, options.url, body, first_s)
    except asyncio.CancelledError:  # the run was interrupted: sent, so counted
        outcome = "interrupted"
    except TimeoutError:
        outcome = "timeout"
    except aiohttp.ClientConnectorError:
        outcome = "connection refused"
    except (aiohttp.ClientError, OSError):
        outcome = "connection lost"
    except aiohttp.http_exceptions.HttpProcessingError:  # a line longer than aiohttp's buffer
        outcome = "malformed stream"
    except Exception as error:  # whatever else: counted under its name, never a lost request
        outcome = f"fault {type(error).__name__}"
    ttft_s = first_s[0] - start_s - sent_s if first_s else None
    total_s = now() - start_s - sent_s
    tokens = request.input_tokens
    run.add(Result(number, due_s, sent_s, tokens, outcome, ttft_s, total_s), options)


async def _exchange(
    session: aiohttp.ClientSession, url: str, body: bytes, first_s: list[float]
) -> str:
    now = asyncio.get_running_loop().time
    headers = {"Content-Type": "application/json"}
    async with session.post(url, data=body, headers=headers) as answer:
        if answer.status != 200:
            return f"HTTP {answer.status}"
        async for line in answer.content:
            text = line.strip()
            if not text or text.startswith(b":"):  # SSE: a separator, or a comment to keep alive
                continue
            if not text.startswith(b"data:"):
                return "malformed stream"
            data = text[5:].strip()
            if data == b"[DONE]":
                return "ok" if first_s else "no token"
            try:
                event: Any = json.loads(data)
            except (ValueError, RecursionError):
                return "malformed stream"
            if not isinstance(event, dict):
                return "malformed stream"
            if "error" in event:
                return "error in stream"
            if event.get("choices") and not first_s:
                first_s.append(now())
    return "stream cut short"
