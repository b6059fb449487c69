"""cut-connections: one rank's connections are closed between its EXISTS and its GETs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.incidents.base import Incident
from lab.incidents.native import before_gets, own_addresses

if TYPE_CHECKING:
    import redis

    from lab.worker import Worker


class CutConnections(Incident):
    """A proxy or a firewall drops them during a load. The stock client reports the load as
    complete: what was in its buffers is used as KV."""

    name = "cut-connections"
    summary = "one rank's connections are cut during a load: stock takes garbage for KV"
    finding = "load-mismatch"
    can_start_late = True

    def install(self, worker: Worker) -> None:
        def cut(server: redis.Redis, keys: list[str]) -> None:
            ours = own_addresses(worker.shard_port)
            clients: Any = server.client_list()
            asking = server.client_id()
            for client in clients:
                if client["addr"] in ours and int(client["id"]) != asking:
                    server.client_kill_filter(_id=client["id"])

        before_gets(self, worker, cut)
