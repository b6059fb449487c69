"""Faults of L2 done to a real engine: `python -m tests.patched_engine.patches.faults PORT FAULT...`

Each has a prompt of its own. Prints what the engine made of each, with the patches on or off.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import redis

from lab.engine import poison_freed_buffers
from tests.patched_engine.patches import engine as e

MISSING_CHUNK = 5
ROOM_CHUNKS = 6
LATE_SECONDS = 0.002
DRAIN_SECONDS = 1.0
LOOKUP_GIVEN_SECONDS = 3.0


class LateReturn:
    """Stands for a native client or an engine of ours: `submit...` returns after the completion
    was drained, or after a second if nobody drains it meanwhile."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._drained = threading.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name.startswith("drain"):

            def drain(*args: Any, **kwargs: Any) -> Any:
                items = found(*args, **kwargs)
                if items:
                    self._drained.set()
                return items

            return drain
        if not name.startswith("submit"):
            return found

        def late(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            self._drained.wait(DRAIN_SECONDS)
            time.sleep(LATE_SECONDS)  # from the drained items to the entry that is not there yet
            return result

        return late


class Trial:
    """One engine, one shard, and faults one after another."""

    def __init__(self, port: int, l1_bytes: int) -> None:
        poison_freed_buffers()  # or a load that brings nothing finds an earlier load's bytes
        self.engine, _ = e.build(f"resp://127.0.0.1:{port}", l1_bytes=l1_bytes)
        self.server = redis.Redis(port=port)
        self.prompts = 0

    def prompt(self) -> tuple[list[int], Any, list[str]]:
        """Tokens and KV of a new prompt that another pod has stored; its chunks' names."""
        import torch

        tokens = [self.prompts * 100_000 + i for i in range(e.LENGTH)]
        self.prompts += 1
        kv = torch.randn(e.LAYERS, e.LENGTH, e.HEAD_SIZE).to(torch.bfloat16)
        names = [key.to_string() for key in e.keys_of(self.engine, tokens)]
        self.fill(names, kv)
        return tokens, kv, names

    def fill(self, names: list[str], kv: Any) -> None:
        import torch

        for index, name in enumerate(names):
            chunk = kv[:, index * e.CHUNK_TOKENS : (index + 1) * e.CHUNK_TOKENS].contiguous()
            self.server.set(name, chunk.view(torch.uint8).numpy().tobytes())

    def empty_l1(self) -> None:
        self.engine.storage_manager.clear(["LocalCPUBackend"])

    def cut(self) -> None:
        """The server closes every connection of the engine."""
        own = str(self.server.client_id())
        for client in self.server.client_list():
            if client["id"] != own:
                self.server.client_kill(client["addr"])

    def load(self, fault: str) -> dict[str, Any]:
        """One load with a fault in the middle, and another one after it."""
        tokens, kv, names = self.prompt()
        actions = {
            "missing-key": lambda: self.server.delete(names[MISSING_CHUNK]),
            "missing-first": lambda: self.server.delete(names[0]),
            "wrong-size": lambda: self.server.set(names[MISSING_CHUNK], b"short"),
            "wrong-type": lambda: (
                self.server.delete(names[MISSING_CHUNK]),
                self.server.lpush(names[MISSING_CHUNK], "x"),
            ),
            "cut": self.cut,
        }
        if fault in actions:
            e.before_gets(self.engine, actions[fault])
        first = e.retrieve(self.engine, tokens, kv, f"{fault} first")
        is_right = e.l1_is_right(self.engine, tokens, kv)
        self.empty_l1()
        self.server.delete(*names)
        self.fill(names, kv)
        again = e.retrieve(self.engine, tokens, kv, f"{fault} again")
        self.empty_l1()
        left = e.l1(self.engine).memory_allocator.pin_allocator.total_allocated_size
        return {"first": first, "again": again, "l1_is_right": is_right, "left_bytes": left}

    def lost_completion(self) -> dict[str, Any]:
        """Every submit returns late, so its completion may be drained before it is awaited."""
        tokens, _, _ = self.prompt()
        connection = e.l2(self.engine).connection
        if hasattr(connection, "calls"):
            connection.calls.client._engine = LateReturn(connection.calls.client._engine)
        else:
            client = connection._connector.client
            client._client = LateReturn(client._client)
        found: list[int] = []

        def look_up() -> None:
            found.append(int(self.engine.lookup(tokens=tokens, lookup_id="lost")))

        threading.Thread(target=look_up, daemon=True).start()
        deadline = time.monotonic() + LOOKUP_GIVEN_SECONDS
        while not found and time.monotonic() < deadline:
            time.sleep(0.005)
        return {"found": found[0] if found else None}


def main(arguments: list[str]) -> dict[str, Any]:
    port, faults = int(arguments[0]), arguments[1:]
    l1_bytes = ROOM_CHUNKS * e.CHUNK_BYTES if faults == ["l1-full"] else 64 << 20
    trial = Trial(port, l1_bytes)
    result: dict[str, Any] = {"l2": type(e.l2(trial.engine)).__name__}
    for fault in faults:
        result[fault] = trial.lost_completion() if fault == "lost-completion" else trial.load(fault)
    return result


if __name__ == "__main__":
    # Without the patch it may stand still; with it, only the machine can be slow.
    is_stock = os.environ.get("STALLSCOPE_PATCHES") == "none"
    e.run(main, stuck_seconds=e.STUCK_SECONDS if is_stock else e.BUSY_SECONDS)
