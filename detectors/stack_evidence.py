"""What the stacks of a rank say of an operation that its page shows as pending."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final, Literal

from detectors import thresholds as t
from exporters.snapshot import (
    Engine,
    Evidence,
    Finding,
    Pending,
    Process,
    Snapshot,
    ThreadStack,
)

# The functions of LMCache 0.5.5 and 0.5.6, and of the client that stands in for theirs, that a
# thread is inside of while it waits for this kind of answer: last part of the qualified name.
_CALLS: Final = {
    "exists": frozenset({"batch_exists_sync", "exists_sync", "batched_contains", "contains"}),
    "get": frozenset({"batch_get_sync", "batched_get_blocking", "get_blocking", "batched_get"}),
}
_VALUES: Final = {"waits": 1.0, "runs": 0.0, "nobody": 0.0, "unseen": float("nan")}


@dataclass(frozen=True, slots=True)
class StackSide:
    """What a rank's threads do about one entry.

    "waits": one stands in that call and waits. "runs": one is in it and on a CPU. "nobody": one
    would have to be in it, and none is. Of a whole engine, "waits" is that no worker moved, "runs"
    that one did. "unseen": stacks were asked for and not had, or say nothing here; "" where they
    were not asked for.
    """

    state: Literal["waits", "runs", "nobody", "unseen", ""]
    text: str = ""


def stack_side(snapshot: Snapshot, process: Process, entry: Pending) -> StackSide:
    """How the process's own stack stands to an entry of its pending table."""
    if not snapshot.stacks:
        return StackSide("")
    stack = next(
        (
            s
            for s in snapshot.stacks
            if s.page == process.page and s.engine_id == process.engine_id and s.page
        ),
        None,
    )
    if stack is None:
        return StackSide("unseen", "the stack of this rank could not be read")
    if stack.torn:
        return StackSide("unseen", "the stack of this rank is torn: it ran on while it was read")
    calls = _CALLS.get(entry.kind, frozenset())
    inside = [thread for thread in stack.threads if _call(thread, calls)]
    for thread in inside:
        if not thread.active:
            text = f"{_name(thread)} waits inside {_call(thread, calls)} ({_innermost(thread)})"
            return StackSide("waits", text)
    if inside:
        thread = inside[0]
        text = f"{_name(thread)} is inside {_call(thread, calls)} and runs ({_innermost(thread)})"
        return StackSide("runs", text)
    if _must_wait(process, entry):
        text = (
            f"none of its {len(stack.threads)} threads is inside a call that waits for this "
            f"{entry.kind.upper()}"
        )
        return StackSide("nobody", text)
    return StackSide("unseen", "no thread has to wait for this one, so the stack says nothing")


def engine_side(engine: Engine, snapshot: Snapshot) -> StackSide:
    """Whether the main threads of an engine's workers stood where they were in earlier pictures.

    Without the innermost call, which a loop that waits may change, and without line numbers. A rank
    that waits for the GPU may spin: being on a CPU says nothing here.
    """
    if not snapshot.stacks:
        return StackSide("")
    moved = []
    compared = 0
    for rank, process in sorted(engine.workers().items()):
        now = _main(snapshot, process)
        before = [_main(picture, process) for picture in snapshot.earlier]
        chains = [chain for chain in (now, *before) if chain]
        if now and len(chains) > 1:
            compared += 1
            if any(chain != now for chain in chains):
                moved.append(rank)
    if moved:
        names = ", ".join(map(str, moved))
        return StackSide("runs", f"the main thread of rank {names} went on between the pictures")
    if not compared or compared < len(engine.workers()):
        return StackSide(
            "unseen",
            f"the main threads of {compared} of {len(engine.workers())} workers were seen twice",
        )
    return StackSide("waits", f"the main threads of all {compared} workers stood still meanwhile")


def _main(picture: Snapshot, process: Process) -> tuple[tuple[str, str], ...]:
    """The calls of a process's main thread but for the innermost, () where they were not read."""
    for stack in picture.stacks:
        if stack.page == process.page and stack.engine_id == process.engine_id and not stack.torn:
            for thread in stack.threads:
                if thread.name == "MainThread":
                    return tuple((f.function, f.file) for f in thread.frames[1:])
    return ()


def weighed(finding: Finding, side: StackSide) -> Finding:
    """The finding with what the stacks say: surer by half of what it lacked, or half as sure."""
    if not side.state:
        return finding
    evidence = Evidence("stack_waits", _VALUES[side.state], None, "", side.text)
    confidence = finding.confidence
    if side.state == "waits":
        confidence = 1 - (1 - confidence) * t.STACK_CONFIDENCE_FACTOR
    elif side.state in ("runs", "nobody"):
        confidence *= t.STACK_CONFIDENCE_FACTOR
    return dataclasses.replace(
        finding, confidence=confidence, evidence=(*finding.evidence, evidence)
    )


def _must_wait(process: Process, entry: Pending) -> bool:
    """Whether some thread stands in the call for as long as the entry is pending: with synchronous
    loading a lookup's for ever, a load's until its timeout. Stores and coroutines hold none."""
    if process.info.get("async_loading"):
        return False
    return entry.kind == "exists" or (
        entry.kind == "get" and 0 < entry.age_seconds < entry.timeout_seconds
    )


def _call(thread: ThreadStack, calls: frozenset[str]) -> str:
    """The innermost of these functions that the thread is inside of, "" for none."""
    names = (frame.function.rpartition(".")[2] for frame in thread.frames)
    return next((name for name in names if name in calls), "")


def _name(thread: ThreadStack) -> str:
    return thread.name or f"thread {thread.os_thread_id}"


def _innermost(thread: ThreadStack) -> str:
    frame = thread.frames[0]
    return f"{frame.function}, {frame.file}:{frame.line}"
