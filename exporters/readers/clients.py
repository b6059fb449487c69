"""How a server sees some of its connections, at a cost that a busy main thread can bear.

CLIENT LIST is work of the main thread for every connection there is (9.5 ms at 3,200). So the whole
list is taken only to learn the ids of the connections in question, and not often; after that the
server is asked for these ids alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from exporters.snapshot import ShardClient

if TYPE_CHECKING:
    import redis

WHOLE_LIST_SECONDS: Final = 10.0


def parse_clients(text: str) -> tuple[ShardClient, ...]:
    """The connections of a CLIENT LIST reply, of any version: fields it lacks count as nothing."""
    found = []
    for line in text.splitlines():
        fields = dict(part.partition("=")[::2] for part in line.split(" "))
        if not fields.get("id") or not fields.get("addr"):
            continue
        commands = fields.get("tot-cmds")
        found.append(
            ShardClient(
                id=int(fields["id"]),
                address=fields["addr"],
                idle_seconds=_number(fields, "idle"),
                query_bytes=_number(fields, "qbuf"),
                argument_bytes=_number(fields, "argv-mem"),
                output_bytes=_number(fields, "obl") + _number(fields, "omem"),
                output_replies=_number(fields, "oll"),
                commands=int(commands) if commands and commands.isdigit() else None,
                last_command=fields.get("cmd", ""),
            )
        )
    return tuple(found)


def _number(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isdigit() else 0


class ClientLister:
    """Remembers the ids of the connections that are asked about. One caller at a time."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._listed_at_seconds: float | None = None

    def list(
        self, client: redis.Redis, addresses: Iterable[str], now_seconds: float
    ) -> tuple[ShardClient, ...]:
        """Those of `addresses` ("host:port") that the server has, as far as their ids are known.

        Raises RedisError."""
        wanted = set(addresses)
        if wanted - self._ids.keys() and self._may_list_all(now_seconds):
            self._listed_at_seconds = now_seconds
            rows = self._ask(client)
            self._ids = {row.address: row.id for row in rows if row.address in wanted}
        else:
            known = [self._ids[address] for address in sorted(wanted & self._ids.keys())]
            rows = self._ask(client, "ID", *known) if known else ()
        return tuple(row for row in rows if row.address in wanted)

    def _may_list_all(self, now_seconds: float) -> bool:
        at = self._listed_at_seconds
        return at is None or now_seconds - at >= WHOLE_LIST_SECONDS

    def _ask(self, client: redis.Redis, *words: str | int) -> tuple[ShardClient, ...]:
        # In two words: the client library would parse the answer to the one-word form.
        reply: object = client.execute_command("CLIENT", "LIST", *words)  # type: ignore[no-untyped-call]
        text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
        return parse_clients(text)
