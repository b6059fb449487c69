"""What a shard tells beyond INFO: its IO threads, its command log, whose chunks it holds.

Each is asked by itself: a user that may not run one of these commands loses that signal alone. A
refusal is remembered for the server's life, since each is written to its ACL LOG.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from exporters.snapshot import KeySample

if TYPE_CHECKING:
    import redis

# A SCAN of so many keys and their sizes, once a second: some 0.1 ms of the main thread.
SCAN_KEYS: Final = 64
COMMAND_LOG_SECONDS: Final = 10.0
COMMAND_LOGS: Final = ("slow", "large-request", "large-reply")
OTHER_RANK: Final = "other"
_MOST_RANKS: Final = 64

IO_THREADS: Final = "io_threads"
COMMAND_LOG: Final = "command_log"
KEY_SAMPLE: Final = "key_sample"

_Told = TypeVar("_Told")


class Signals:
    """One shard's signals beyond INFO. One caller at a time."""

    def __init__(self, with_samples: bool) -> None:
        self.denied: set[str] = set()
        self.io_threads: int | None = None
        self.log_entries: dict[str, int] = {}
        self._keys = KeyScan() if with_samples else None
        self._life = ""
        self._asked: set[str] = set()
        self._logs_read_seconds = 0.0

    @property
    def key_sample(self) -> KeySample | None:
        """The last whole scan of the keys; None before the first has ended."""
        return self._keys.whole if self._keys is not None else None

    def read(self, client: redis.Redis, run_id: str, now_seconds: float) -> None:
        """Ask what is due. Raises OSError or RedisError where the server went away."""
        if run_id != self._life:
            self._life, self.io_threads, self.log_entries = run_id, None, {}
            self.denied.clear()
            self._asked.clear()
            self._logs_read_seconds = 0.0
            if self._keys is not None:
                self._keys = KeyScan()
        if IO_THREADS not in self._asked:
            self.io_threads = self._allowed(IO_THREADS, lambda: _io_threads(client))
            self._asked.add(IO_THREADS)
        if self._keys is None:
            return
        if now_seconds - self._logs_read_seconds >= COMMAND_LOG_SECONDS:
            self._logs_read_seconds = now_seconds
            self.log_entries = self._allowed(COMMAND_LOG, lambda: _log_entries(client)) or {}
        keys = self._keys
        self._allowed(KEY_SAMPLE, lambda: keys.step(client, now_seconds))

    def _allowed(self, signal: str, ask: Callable[[], _Told]) -> _Told | None:
        import redis

        if signal in self.denied:
            return None
        try:
            return ask()
        except redis.exceptions.NoPermissionError:
            self.denied.add(signal)
        except (redis.exceptions.ResponseError, ValueError, TypeError, AttributeError):
            pass  # a server that has no such thing
        return None


def _io_threads(client: redis.Redis) -> int | None:
    """The configured IO threads, main thread included."""
    told = client.config_get("io-threads").get("io-threads")
    return int(told) if told is not None else None


def _log_entries(client: Any) -> dict[str, int]:
    """Entries in the log of slow commands, and from Valkey 8.1 on of large ones."""
    import redis

    try:
        return {name: int(client.execute_command("COMMANDLOG LEN", name)) for name in COMMAND_LOGS}
    except redis.exceptions.NoPermissionError:
        raise
    except redis.exceptions.ResponseError:
        return {COMMAND_LOGS[0]: int(client.execute_command("SLOWLOG LEN"))}


class KeyScan:
    """Goes through all keys, a few at a time, and counts them by the rank in their names."""

    def __init__(self) -> None:
        self.whole: KeySample | None = None
        self._cursor = 0
        self._keys: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._began_seconds = 0.0

    def step(self, client: Any, now_seconds: float) -> None:
        """One SCAN and the sizes of what it named. Raises RedisError.

        MEMORY USAGE does not touch a key's place in the eviction order, nor the hits; STRLEN does.
        """
        import redis

        if self._cursor == 0:
            self._began_seconds = now_seconds
            self._keys.clear()
            self._bytes.clear()
        began = time.monotonic()
        cursor, names = client.scan(self._cursor, count=SCAN_KEYS, _type="string")
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.execute_command("MEMORY USAGE", name, "SAMPLES", 0)
        sizes = pipeline.execute(raise_on_error=False)
        for size in sizes:
            if isinstance(size, redis.exceptions.NoPermissionError):
                raise size
        for name, size in zip(names, sizes, strict=True):
            if isinstance(size, int):  # evicted meanwhile: None
                rank = rank_in(name)
                self._keys[rank] += 1
                self._bytes[rank] += size
        self._cursor = int(cursor)
        if self._cursor == 0:
            self.whole = KeySample(
                keys=dict(self._keys),
                bytes=dict(self._bytes),
                took_seconds=now_seconds - self._began_seconds + time.monotonic() - began,
                read_seconds=now_seconds,
            )


def rank_in(name: bytes | str) -> str:
    """The rank that a chunk's key names, OTHER_RANK for what is no chunk's."""
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    # LMCache's chunks are "model@world@rank@hash@dtype"; the model's name may hold an @, and a
    # layer or tags may come behind.
    fields = text.split("@")
    for at in range(1, len(fields) - 3):
        if fields[at].isdigit() and fields[at + 1].isdigit():
            rank = int(fields[at + 1])
            return str(rank) if rank < min(int(fields[at]), _MOST_RANKS) else OTHER_RANK
    return OTHER_RANK


def denied_words(signal: str) -> tuple[str, str]:
    """(what is unseen, which permission shows it) of a denied signal."""
    return _WORDS[signal]


_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    IO_THREADS: ("the number of IO threads", "+config|get"),
    COMMAND_LOG: ("the command log", "+commandlog|len +slowlog|len"),
    KEY_SAMPLE: ("whose chunks are there", "+scan +memory|usage"),
}
