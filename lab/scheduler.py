"""The scheduler process: open-loop arrivals, LMCache's lookup client, chunked prefill steps."""

from __future__ import annotations

import random
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from lab.lookups import Lookups
from lab.messages import Channel, Part, Step, done_from, step_body
from lab.settings import CHUNK_TOKENS, Settings
from lab.streams import Request
from patched_engine import requests as request_log

_IDLE_SECONDS: Final = 0.005
# Longer than LMCache's own limit on a blocking GET (10 s), so only what has no limit gets here.
_STALL_SECONDS: Final = 15.0


@dataclass(slots=True)
class Tracked:
    """One request on its way: times on CLOCK_MONOTONIC, tokens by where their KV came from."""

    request: Request
    arrived_seconds: float
    scheduled_seconds: float = 0.0
    finished_seconds: float = 0.0
    lookup_seconds: float = 0.0
    load_seconds: float = 0.0
    compute_seconds: float = 0.0
    hit_tokens: int = 0
    l1_tokens: int = 0
    l2_tokens: int = 0
    loaded_tokens: tuple[int, ...] = ()
    bytes_equal: bool = True
    wrong_chunks: int = 0
    computed_tokens: int = 0
    pages: tuple[int, ...] = field(default=())


class Scheduler:
    """Admits requests in order and drives the ranks one step at a time."""

    def __init__(
        self,
        settings: Settings,
        requests: list[Request],
        client: Any,
        channels: list[Channel],
        pages: int,
        report: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.settings = settings
        self.lookups = Lookups(client)
        self.channels = channels
        self.report = report
        self.todo = deque(requests)
        self.waiting: deque[Tracked] = deque()
        self.running: list[Tracked] = []
        self.finished: list[Tracked] = []
        self.steps = 0
        self.stalled_steps = 0
        self.busy_seconds = 0.0
        self._control = -1
        # Shuffled: the pages of a prompt are not in a row, as in a block pool that has been used.
        self._free_pages = list(range(pages))
        random.Random(f"pages {settings.seed}").shuffle(self._free_pages)

    def run(self, control: int) -> None:
        """Serve until a line arrives on the file descriptor `control`."""
        go_seconds = time.monotonic()
        for channel in self.channels:
            channel.send("go", go_seconds)
        end_seconds = go_seconds + self.settings.seconds
        told_seconds, said_over = 0.0, False
        self._control = control
        while not select.select([control], [], [], 0)[0]:
            now = time.monotonic()
            if now - told_seconds >= 0.5:
                told_seconds = now
                self._tell()
            if now >= end_seconds or self.stalled_steps:
                # Stay: what is read last must be read from live processes.
                if not said_over:
                    said_over = True
                    self._tell()
                    self.report("over", {})
                time.sleep(_IDLE_SECONDS)
                continue
            while self.todo and go_seconds + self.todo[0].arrival_seconds <= now:
                request = self.todo.popleft()
                arrived_seconds = go_seconds + request.arrival_seconds
                self.waiting.append(Tracked(request, arrived_seconds))
                arrived_unix_seconds = time.time() - (now - arrived_seconds)
                request_log.admitted(request.id, request.length_tokens, arrived_unix_seconds)
            step = self._next_step()
            tokens = (
                {part.id: part.last_token - part.first_token for part in step.parts} if step else {}
            )
            request_log.scheduled(tokens, len(self.waiting), len(self.running))
            if step is None:
                time.sleep(_IDLE_SECONDS)
            else:
                self._execute(step)
        if not self.stalled_steps:
            for channel in self.channels:
                channel.send("finish")

    def _tell(self) -> None:
        self.report(
            "progress",
            {
                "finished": len(self.finished),
                "running": len(self.running),
                "waiting": len(self.waiting),
                "steps": self.steps,
                "lookup_timeouts": self.lookups.timeouts,
            },
        )

    def _next_step(self) -> Step | None:
        """Requests in progress first, then new ones while tokens and pages last."""
        budget = self.settings.tokens_per_step
        parts: list[Part] = []
        for tracked in self.running:
            if budget:
                parts.append(self._part(tracked, budget))
                budget -= parts[-1].last_token - parts[-1].first_token
        still_looking: list[Tracked] = []
        while budget and self.waiting:
            tracked = self.waiting[0]
            needed = -(-tracked.request.length_tokens // CHUNK_TOKENS)
            if needed > len(self._free_pages):
                break
            self.waiting.popleft()
            hit = self.lookups.ask(tracked.request)
            if hit is None:  # the next one may be ready before it
                still_looking.append(tracked)
                continue
            tracked.hit_tokens = hit
            tracked.lookup_seconds = self.lookups.take(tracked.request)
            tracked.scheduled_seconds = time.monotonic()
            tracked.pages = tuple(self._free_pages[:needed])
            del self._free_pages[:needed]
            self.running.append(tracked)
            parts.append(self._part(tracked, budget, is_first=True))
            budget -= parts[-1].last_token - parts[-1].first_token
        self.waiting.extendleft(reversed(still_looking))
        return Step(self.steps, tuple(parts)) if parts else None

    def _part(self, tracked: Tracked, budget: int, *, is_first: bool = False) -> Part:
        request = tracked.request
        # A prompt whose KV is all there still computes its last token, for the first output.
        first = min(tracked.hit_tokens + tracked.computed_tokens, request.length_tokens - 1)
        last = min(first + budget, request.length_tokens)
        return Part(
            id=request.id,
            first_token=first,
            last_token=last,
            is_first=is_first,
            is_last=last == request.length_tokens,
            length_tokens=request.length_tokens if is_first else 0,
            hit_tokens=tracked.hit_tokens if is_first else 0,
            block_ids=request.block_ids if is_first else (),
            pages=tracked.pages if is_first else (),
        )

    def _execute(self, step: Step) -> None:
        begun = time.monotonic()
        body = step_body(step)
        # Who is told first changes with each step, or the last in the row would be late at all.
        ranks = len(self.channels)
        for offset in range(ranks):
            self.channels[(step.index + offset) % ranks].send("step", body)
        loads: dict[str, list[Any]] = {}
        deadline = begun + _STALL_SECONDS
        for channel in self.channels:
            if not self._wait_for(channel, deadline):
                self.stalled_steps = 1
                return
            for load in done_from(channel.receive()[1]).loads:
                loads.setdefault(load.id, []).append(load)
        ended = time.monotonic()
        self.steps += 1
        self.busy_seconds += ended - begun
        by_id = {tracked.request.id: tracked for tracked in self.running}
        for part in step.parts:
            tracked = by_id[part.id]
            tracked.computed_tokens += part.last_token - part.first_token
            if part.is_first:
                _note_load(tracked, loads[part.id])
            tracked.compute_seconds += ended - begun - (tracked.load_seconds * part.is_first)
            if part.is_last:
                tracked.finished_seconds = ended
                request_log.first_token(part.id, 0, min(tracked.loaded_tokens, default=0))
                request_log.finished(part.id)
                self.running.remove(tracked)
                self._free_pages.extend(tracked.pages)
                self.finished.append(tracked)

    def _wait_for(self, channel: Channel, deadline_seconds: float) -> bool:
        """Whether this rank answers before the deadline; no longer awaited once the lab stops us.

        The stock client has calls without any timeout: where one loses its completion inside a
        load, the step never ends on any rank.
        """
        left = max(0.0, deadline_seconds - time.monotonic())
        ready = select.select([channel.fileno(), self._control], [], [], left)[0]
        return channel.fileno() in ready

    def result(self) -> dict[str, Any]:
        """What the run's report needs, as JSON values."""
        return {
            "steps": self.steps,
            "busy_seconds": self.busy_seconds,
            "lookups": self.lookups.calls,
            "lookup_timeouts": self.lookups.timeouts,
            "stalled_steps": self.stalled_steps,
            "unfinished": len(self.running) + len(self.waiting),
            "unfinished_arrival_seconds": [
                tracked.request.arrival_seconds for tracked in (*self.running, *self.waiting)
            ],
            "requests": [asdict(tracked) for tracked in self.finished],
        }


def _note_load(tracked: Tracked, loads: list[Any]) -> None:
    """All ranks loaded the same prefix or the load is wrong; rank 0 says from where."""
    tracked.load_seconds = max(load.seconds for load in loads)
    tracked.loaded_tokens = tuple(load.loaded_tokens for load in loads)
    tracked.bytes_equal = all(load.bytes_equal for load in loads)
    tracked.wrong_chunks = sum(load.wrong_chunks for load in loads)
    tracked.l1_tokens, tracked.l2_tokens = loads[0].l1_tokens, loads[0].l2_tokens
