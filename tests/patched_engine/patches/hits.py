"""The same prompt loaded again and again, as the engine's adapter does:
`python -m tests.patched_engine.patches.hits PORT sync|async`. Prints what LMCache complained of."""

from __future__ import annotations

import logging
import time
from typing import Any

from tests.patched_engine.patches import engine as e

HITS = 4


class Complaints(logging.Handler):
    """Collects LMCache's warnings of a release too many."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "Double" in text or "invalidated" in text or "negative" in text:
            self.lines.append(text)


def _wait_until_stored(engine: Any) -> None:
    """L2 holds each object until it has it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if all(item.get_ref_count() == 1 for item in e.l1(engine).hot_cache.values()):
            return
        time.sleep(0.01)


def main(arguments: list[str]) -> dict[str, Any]:
    import torch
    from lmcache.v1 import memory_management

    port, is_async = int(arguments[0]), arguments[1] == "async"
    engine, answers = e.build(f"resp://127.0.0.1:{port}", is_async=is_async)
    complaints = Complaints()
    memory_management.logger.addHandler(complaints)
    memory_management.logger.setLevel(logging.WARNING)
    tokens = list(range(e.LENGTH))
    kv = torch.randn(e.LAYERS, e.LENGTH, e.HEAD_SIZE).to(torch.bfloat16)
    engine.store(tokens, kvcaches=kv, req_id="r")
    _wait_until_stored(engine)
    loads = []
    for number in range(HITS):
        request = f"hit {number}"
        if is_async:
            engine.async_lookup_and_prefetch(lookup_id=request, tokens=tokens, pin=True)
            assert answers.wait(request, 5.0) == e.LENGTH
        else:
            assert engine.lookup(tokens=tokens, lookup_id=request, pin=True) == e.LENGTH
        # A part of the prompt is in the engine's own cache already, every other time.
        mask = torch.ones(e.LENGTH, dtype=torch.bool)
        mask[: (number % 2) * e.CHUNK_TOKENS] = False
        into = torch.zeros_like(kv)
        try:
            found = engine.retrieve(tokens, mask, kvcaches=into, req_id=request)
        except TypeError:  # an object of L1 was freed under it: this ends a real engine
            return {"loads": [*loads, False], "complaints": complaints.lines}
        engine.lookup_unpin(request)
        start = (number % 2) * e.CHUNK_TOKENS
        loads.append(
            int(found.sum()) == e.LENGTH - start
            and bool(torch.equal(into[:, start:], kv[:, start:]))
        )
    held = e.l1(engine).hot_cache.values()
    return {
        "loads": loads,
        "complaints": complaints.lines,
        "pins": [item.meta.pin_count for item in held],
        "references": [item.get_ref_count() for item in held],
    }


if __name__ == "__main__":
    e.run(main)
