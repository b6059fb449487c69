"""What the stacks of a rank say of an operation that its page shows as pending."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final, Literal

from detectors import thresholds as t
from exporters.snapshot import Evidence, Finding, Pending, Process, Snapshot, ThreadStack

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
    would have to be in it, and none is. "unseen": stacks were asked for and not had, or say
    nothing here; "" where they were not asked for.
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
