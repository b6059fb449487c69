"""Ask every shard whether it answers, all at once, so that a dead one delays nobody.

Beyond INFO a shard is asked only what a rule wants to know about something suspicious.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from exporters import reasons
from exporters.readers.clients import ClientLister
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

ASK_TIMEOUT_SECONDS: Final = 1.0
# The first tick waits for every answer, so that one look says it all; later ticks hold the pages'
# rhythm and take an answer that is late with the next tick.
FIRST_WAIT_SECONDS: Final = 1.5
LATER_WAIT_SECONDS: Final = 0.2
CLIENT_NAME: Final = "stallscope"
MOST_KEYS: Final = 512  # of one question: an EXISTS each, well under a millisecond in all

_MENDS: Final[Mapping[str, str]] = {
    reasons.CONNECTION_REFUSED: "start the server, or correct the port",
    reasons.UNREACHABLE: "check the host name and the network",
    reasons.TIMEOUT: "look at that host: the server is frozen, overloaded or cut off",
    reasons.AUTH: "give a user that may run PING and INFO",
    reasons.NOT_VALKEY: "something else listens there: correct the URL",
}


class ShardAsker:
    """One shard: at most one question under way, in a thread of its own."""

    def __init__(self, url: ShardUrl) -> None:
        self.url = url
        self._client: redis.Redis | None = None
        self._lister = ClientLister()
        self._lock = threading.Lock()
        self._answer: Shard | None = None
        self._thread: threading.Thread | None = None
        self._asked_at_seconds = 0.0
        self._is_nameless = False
        self._io_threads: dict[str, int | None] = {}  # of the server's present life, by run id

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
        return Shard(
            shown,
            up=True,
            info=info,
            read_seconds=read_seconds,
            io_threads=self._io_threads_of(str(info.get("run_id", ""))),
        )

    def _sections(self) -> object:
        """INFO, all sections in one answer: naming several is an error before 7.0."""
        import redis

        if self._client is None:
            self._client = _client(self.url, CLIENT_NAME)
        try:
            return self._client.info("all")
        except redis.exceptions.NoPermissionError:
            if self._is_nameless:
                raise
        # A user that may not name its connection may still ask.
        self._is_nameless = True
        self._client.close()
        self._client = _client(self.url, None)
        return self._client.info("all")

    def _io_threads_of(self, run_id: str) -> int | None:
        """The configured IO threads, None where it is not told. Asked once in a server's life: it
        is fixed there, and a refusal is written to the server's ACL LOG each time."""
        import redis

        assert self._client is not None  # INFO was answered
        if run_id not in self._io_threads:
            try:
                told = self._client.config_get("io-threads").get("io-threads")
                self._io_threads = {run_id: int(told) if told is not None else None}
            except (redis.exceptions.ResponseError, ValueError, AttributeError, TypeError):
                self._io_threads = {run_id: None}
            except (redis.exceptions.RedisError, OSError):
                return None  # went away after INFO: asked again with the next
        return self._io_threads[run_id]


class Shards:
    """All shards that were asked for. `read` never raises."""

    def __init__(self, urls: Sequence[str]) -> None:
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
            self._askers.setdefault(url.shown, ShardAsker(url))

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
            Unseen(s.url, s.reason, f"{s.url}: {_DETAILS[s.reason]}", _MENDS[s.reason])
            for s in shards
            if not s.up
        ]
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


_DETAILS: Final[Mapping[str, str]] = {
    reasons.CONNECTION_REFUSED: "nothing listens there",
    reasons.UNREACHABLE: "cannot be reached",
    reasons.TIMEOUT: f"no answer within {ASK_TIMEOUT_SECONDS:g} s",
    reasons.AUTH: "refuses our credentials or our commands",
    reasons.NOT_VALKEY: "does not answer as Valkey does",
}


def reason_of(error: Exception) -> str:
    """The enumerated reason of a client library's error."""
    import redis

    exceptions = redis.exceptions
    if isinstance(error, exceptions.TimeoutError):
        return reasons.TIMEOUT
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
        return reasons.AUTH
    if isinstance(error, exceptions.ResponseError):
        text = str(error)
        if text.startswith("LOADING") or "max number of clients" in text:
            return reasons.UNREACHABLE  # Valkey, but not for us now
        return reasons.AUTH if text.startswith(("NOAUTH", "WRONGPASS")) else reasons.NOT_VALKEY
    if isinstance(error, exceptions.InvalidResponse):
        return reasons.NOT_VALKEY
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < 8:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    if any(isinstance(e, ConnectionRefusedError) for e in chain):
        return reasons.CONNECTION_REFUSED
    if any(isinstance(e, TimeoutError) for e in chain):
        return reasons.TIMEOUT
    if any(isinstance(e, exceptions.InvalidResponse) for e in chain):
        return reasons.NOT_VALKEY
    # Without an error of the network it was what came back that the client could not take,
    # unless the server just hung up (it is full, or wants TLS).
    hung_up = any(isinstance(e, OSError) for e in chain) or "closed" in str(error).lower()
    return reasons.UNREACHABLE if hung_up else reasons.NOT_VALKEY


def _client(url: ShardUrl, name: str | None) -> redis.Redis:
    """A client of one connection that tries once: the next tick is the retry."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    shared: dict[str, object] = {
        "username": url.username,
        "password": url.password,
        "socket_timeout": ASK_TIMEOUT_SECONDS,
        "socket_connect_timeout": ASK_TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "client_name": name,
        "max_connections": 1,
    }
    if url.unix_path:
        return redis.Redis(unix_socket_path=url.unix_path, **shared)  # type: ignore[arg-type]
    return redis.Redis(host=url.host, port=url.port, ssl=url.tls, **shared)  # type: ignore[arg-type]
