"""Ask every shard whether it answers, all at once, so that a dead one delays nobody.

Beyond INFO a shard is asked only what a rule wants to know about something suspicious.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from exporters import reasons
from exporters.readers.clients import ClientLister
from exporters.readers.shard_access import Access
from exporters.readers.shard_connection import (
    ASK_TIMEOUT_SECONDS,
    DETAILS,
    MENDS,
    connect,
    reason_of,
)
from exporters.readers.shard_signals import Signals, denied_words
from exporters.readers.shard_url import (
    ShardUrl,
    ShardUrlError,
    is_same_server,
    parse,
    without_credentials,
)
from exporters.snapshot import Shard, ShardClient, ShardQuestion, Unseen

if TYPE_CHECKING:
    import redis

# The first tick waits for every answer, so that one look says it all; later ticks hold the pages'
# rhythm and take an answer that is late with the next tick.
FIRST_WAIT_SECONDS: Final = 1.5
LATER_WAIT_SECONDS: Final = 0.2
MOST_ASK_TIMEOUTS: Final = 2.0  # one to connect and one to be answered
CLIENT_NAME: Final = "stallscope"
MOST_KEYS: Final = 512  # of one question: an EXISTS each, well under a millisecond in all


class ShardAsker:
    """One shard: at most one question under way, in a thread of its own."""

    def __init__(self, url: ShardUrl, access: Access, with_samples: bool) -> None:
        self.url = url
        self._access = access
        self._signals = Signals(with_samples)
        self._client: redis.Redis | None = None
        self._lister = ClientLister()
        self._lock = threading.Lock()
        self._answer: Shard | None = None
        self._thread: threading.Thread | None = None
        self._asked_at_seconds = 0.0
        self._is_nameless = False

    def ask(self, question: ShardQuestion | None = None) -> threading.Thread:
        """Begin a question unless one is under way; returns its thread."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._asked_at_seconds = time.monotonic()
            # A daemon: name resolution has no timeout and must not hold the process at its end.
            thread = threading.Thread(
                target=self._run, args=(question,), name="stallscope-shard", daemon=True
            )
            self._thread = thread
            thread.start()
        return thread

    def answer(self) -> Shard:
        """The newest answer; a question under way for too long is itself one."""
        with self._lock:
            answer = self._answer
        thread = self._thread
        waited_seconds = time.monotonic() - self._asked_at_seconds
        if (
            thread is not None
            and thread.is_alive()
            and (answer is None or (answer.up and waited_seconds >= ASK_TIMEOUT_SECONDS))
        ):
            return Shard(self.url.shown, up=False, reason=reasons.TIMEOUT)
        assert answer is not None  # the thread ended, and it always leaves one
        return answer

    def close(self) -> None:
        client = self._client
        if client is not None:
            client.close()

    def _run(self, question: ShardQuestion | None) -> None:
        answer = self._info()
        if answer.up and question is not None:
            answer = dataclasses.replace(
                answer, clients=self._clients(question), keys=self._keys(question)
            )
        with self._lock:
            self._answer = answer

    def _clients(self, question: ShardQuestion) -> tuple[ShardClient, ...] | None:
        import redis

        assert self._client is not None  # INFO was answered
        try:
            return self._lister.list(self._client, question.connections, time.monotonic())
        except (redis.exceptions.RedisError, OSError, ValueError):
            return None  # a user without CLIENT, or a server that went away: unseen

    def _keys(self, question: ShardQuestion) -> Mapping[str, bool]:
        """Which keys are there. EXISTS does not touch a key's place in the eviction order."""
        import redis

        assert self._client is not None  # INFO was answered
        keys = question.keys[:MOST_KEYS]
        if not keys:
            return {}
        try:
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.exists(key)
            found = pipeline.execute()
        except (redis.exceptions.RedisError, OSError, ValueError):
            return {}
        return {key: bool(there) for key, there in zip(keys, found, strict=True)}

    def _info(self) -> Shard:
        import redis

        shown = self.url.shown
        began_seconds = time.monotonic()
        try:
            info = self._sections()
            read_seconds = time.monotonic()
        except redis.exceptions.RedisError as error:
            return Shard(shown, up=False, reason=reason_of(error))
        except Exception as error:  # whatever an answer that is no INFO does to the client
            is_network = isinstance(error, OSError)
            return Shard(
                shown, up=False, reason=reasons.UNREACHABLE if is_network else reasons.NOT_VALKEY
            )
        if not isinstance(info, dict) or not ("redis_version" in info or "valkey_version" in info):
            return Shard(shown, up=False, reason=reasons.NOT_VALKEY)
        if refused := _refused_kind(info):
            return Shard(shown, up=False, reason=refused)
        # Each read has its limit, yet an answer that drips in is as old as its first byte.
        took_seconds = read_seconds - began_seconds
        if took_seconds > MOST_ASK_TIMEOUTS * ASK_TIMEOUT_SECONDS:
            return Shard(shown, up=False, reason=reasons.TIMEOUT)
        assert self._client is not None  # INFO was answered
        # It may go away after INFO: asked again with the next.
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            self._signals.read(self._client, str(info.get("run_id", "")), read_seconds)
        return Shard(
            shown,
            up=True,
            info=info,
            read_seconds=read_seconds,
            took_seconds=took_seconds,
            io_threads=self._signals.io_threads,
            log_entries=dict(self._signals.log_entries),
            key_sample=self._signals.key_sample,
            denied=tuple(sorted(self._signals.denied)),
        )

    def _sections(self) -> object:
        """INFO, all sections in one answer: naming several is an error before 7.0."""
        import redis

        if self._client is None:
            self._client = connect(self.url, self._access, CLIENT_NAME)
        try:
            return self._client.info("all")
        except redis.exceptions.NoPermissionError:
            if self._is_nameless:
                raise
        # A user that may not name its connection may still ask.
        self._is_nameless = True
        self._client.close()
        self._client = connect(self.url, self._access, None)
        return self._client.info("all")


class Shards:
    """All shards that were asked for. `read` never raises."""

    def __init__(
        self, urls: Sequence[str], access: Access | None = None, with_samples: bool = False
    ) -> None:
        """`with_samples`: also the command log and whose chunks are there, a little each time."""
        access = access or Access()
        self._with_samples = with_samples
        self._askers: dict[str, ShardAsker] = {}
        self._bad: list[Unseen] = []
        self._first = True
        for text in urls:
            try:
                url = parse(text)
            except ShardUrlError as error:
                shown = without_credentials(text)
                self._bad.append(Unseen(shown, reasons.BAD_URL, str(error)))
                continue
            self._askers.setdefault(url.shown, ShardAsker(url, access, with_samples))

    def url_of(self, template: str, rank: int | None) -> str:
        """The shown URL of the shard that an engine's own URL names; "" if it is not asked."""
        return next(
            (
                shown
                for shown, asker in self._askers.items()
                if is_same_server(template, rank, asker.url)
            ),
            "",
        )

    def begin(self, questions: Iterable[ShardQuestion] = ()) -> list[threading.Thread]:
        """Ask every shard, and some of them more than INFO; `read` takes the answers."""
        if self._askers and self._first:
            # Before a shard's time runs: on a busy machine this takes longer than its answer may.
            import redis  # noqa: F401
        more = _merged(questions)
        return [asker.ask(more.get(shown)) for shown, asker in self._askers.items()]

    def read(self, threads: Sequence[threading.Thread]) -> tuple[tuple[Shard, ...], list[Unseen]]:
        """The shards and what of them is unseen, after at most FIRST_WAIT_SECONDS."""
        wait_seconds = FIRST_WAIT_SECONDS if self._first else LATER_WAIT_SECONDS
        self._first = False
        deadline = time.monotonic() + wait_seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        shards = tuple(asker.answer() for asker in self._askers.values())
        unseen = [
            Unseen(s.url, s.reason, f"{s.url}: {DETAILS[s.reason]}", MENDS[s.reason])
            for s in shards
            if not s.up
        ]
        if self._with_samples:
            unseen += [_denied(s.url, signal) for s in shards if s.up for signal in s.denied]
        return shards, [*self._bad, *unseen]

    def close(self) -> None:
        for asker in self._askers.values():
            asker.close()


def _merged(questions: Iterable[ShardQuestion]) -> dict[str, ShardQuestion]:
    """One question a shard, nothing in it twice."""
    merged: dict[str, ShardQuestion] = {}
    for question in questions:
        before = merged.get(question.url, ShardQuestion(question.url, ()))
        merged[question.url] = ShardQuestion(
            question.url,
            tuple(dict.fromkeys((*before.connections, *question.connections))),
            tuple(dict.fromkeys((*before.keys, *question.keys))),
        )
    return merged


def _denied(url: str, signal: str) -> Unseen:
    what, permission = denied_words(signal)
    return Unseen(
        f"{url} {signal}",
        reasons.NOPERM,
        f"{url}: {what} cannot be seen: our user may not ask",
        f"give it {permission} (stallscope exporter --acl prints the whole user)",
    )


def _refused_kind(info: Mapping[str, object]) -> str:
    """Why a server of this kind is not taken, "" where it is."""
    mode = info.get("redis_mode", info.get("server_mode"))
    if mode == "sentinel":
        return reasons.SENTINEL
    return reasons.CLUSTER if mode == "cluster" or info.get("cluster_enabled") == 1 else ""
