"""Takes each finished operation off the engine's thread, for a thread of ours to make a span of.

The engine's part is one append to a bounded queue. Making a span (tens of microseconds) and sending
it happen behind that queue. OpenTelemetry is imported while the engine is being built (0.2 s of CPU
with gRPC): an import beside the first requests would hold the interpreter against them, and stock
LMCache's client loses a completion where its submitting thread is held up. Nothing is imported,
started or queued unless OTEL_EXPORTER_OTLP_ENDPOINT is set.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from patched_engine import recorder

if TYPE_CHECKING:
    from patched_engine.telemetry.otlp import Sender

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
DEFAULT_MOST_QUEUED = 2048  # the SDK's own default
DRAIN_INTERVAL_SECONDS = 0.25
EXIT_SECONDS = 0.8  # for the last spans to leave
ABORT_SECONDS = 0.2  # for a call under way to notice that it was cut off


class Operation(NamedTuple):
    """One store, load, lookup or prefetch as it ended."""

    kind: str
    start_ns: int  # CLOCK_MONOTONIC
    end_ns: int
    rank: int | None  # None: the scheduler's
    request_id: str
    asked_tokens: int
    tokens: int  # stored, loaded or found
    chunks: int
    size_bytes: int
    tier: str  # of `page_layout.TIERS`
    l2_chunks: int = 0  # how many of the chunks the store's server had
    error: str = ""  # the exception's type, "timeout", or nothing


def wanted() -> bool:
    """Whether the environment asks for spans. The three variables mean what they do to the SDK."""
    return bool(
        os.environ.get(ENDPOINT_VARIABLE)
        and os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
        and os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() != "none"
    )


class Outbox:
    """The queue between the engine and the exporter, and the thread that empties it."""

    def __init__(self) -> None:
        self.most_queued = _most_queued()
        self.dropped = 0  # operations that found the queue full
        self._waiting: deque[Operation] = deque()
        self._sender: Sender | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def put(self, operation: Operation) -> None:
        """Queue one; drop and count it where the queue is full. Never raises or waits."""
        try:
            if self._thread is None:  # a forked child, whose first operation this is
                self.start()
            if len(self._waiting) >= self.most_queued:
                self.dropped += 1
            else:
                self._waiting.append(operation)
        except Exception as error:
            recorder.fault("spans", error)

    def start(self) -> None:
        """Start the thread; once."""
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="stallscope-spans", daemon=True)
                thread.start()
                self._thread = thread
                atexit.register(self.close)
                # A child of multiprocessing, as vLLM's workers are, may end without `atexit`.
                multiprocessing.util.Finalize(None, self.close, exitpriority=0)

    def _run(self) -> None:
        global outbox
        try:
            from patched_engine.telemetry.otlp import Sender

            self._sender = Sender(recorder.identity(), self.most_queued)
        except Exception as error:  # what the environment asks for cannot be had
            recorder.fault("spans", error)
            self._waiting.clear()
            if outbox is self:
                outbox = None  # hooks pay nothing from here on
            return
        while not self._stop.wait(DRAIN_INTERVAL_SECONDS):
            self._drain(self._sender)
        self._drain(self._sender)
        self._sender.close()

    def _drain(self, sender: Sender) -> None:
        offset_ns = time.time_ns() - time.monotonic_ns()  # now: the wall clock may be stepped
        while self._waiting and sender.has_room():
            try:
                sender.send(self._waiting.popleft(), offset_ns)
            except Exception as error:
                recorder.fault("span", error)
            time.sleep(0)  # lets an engine's thread have the interpreter between any two spans

    def counts(self) -> dict[str, int]:
        """Spans sent, lost on the way, dropped at the queue, and still waiting."""
        sender = self._sender
        return {
            "sent": sender.sent if sender is not None else 0,
            "lost": sender.lost if sender is not None else 0,
            "dropped": self.dropped,
            "waiting": len(self._waiting) + (sender.waiting if sender is not None else 0),
        }

    def close(self) -> None:
        """Send what is left and end, within EXIT_SECONDS + ABORT_SECONDS; the rest is lost."""
        thread = self._thread
        if thread is None or self._stop.is_set():
            return
        self._stop.set()
        try:
            thread.join(EXIT_SECONDS)
            if thread.is_alive() and self._sender is not None:
                self._sender.abort()
                thread.join(ABORT_SECONDS)
        except Exception as error:
            recorder.fault("spans", error)


outbox: Outbox | None = None
# A forked child lets go of its parent's outbox but must not free it: the SDK's processor in it has
# a hook at fork that fails on a processor that is gone.
_of_parents: list[Outbox] = []


def start() -> None:
    """Make the outbox and its thread, if the environment asks for spans. Never raises.

    Without the exporter's package that is one fault, and no spans.
    """
    global outbox
    try:
        if outbox is None and wanted():
            from patched_engine.telemetry import otlp

            otlp.import_exporter()
            made = Outbox()
            made.start()
            outbox = made
    except Exception as error:
        recorder.fault("spans", error)


def finished(operation: Operation) -> None:
    """Hand over one finished operation. Never raises or waits."""
    box = outbox
    if box is not None:
        box.put(operation)


def counts() -> dict[str, int]:
    """What became of this process's spans; nothing where there are none."""
    box = outbox
    return box.counts() if box is not None else {}


def _most_queued() -> int:
    """The bound of each queue; the SDK's variable, read as the SDK does."""
    try:
        return max(1, int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", DEFAULT_MOST_QUEUED)))
    except ValueError:
        return DEFAULT_MOST_QUEUED


def _renew_in_child() -> None:
    global outbox
    if outbox is not None:
        _of_parents.append(outbox)
        outbox = Outbox()  # its thread starts with the first operation


os.register_at_fork(after_in_child=_renew_in_child)
