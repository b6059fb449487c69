"""The calls that LMCache's traffic makes on the client: the one place where hooks can see them."""

from __future__ import annotations

from collections.abc import Sequence

from patched_engine.resp.batches import BytesLike
from patched_engine.resp.client import Future, RespClient, Results
from patched_engine.resp.deadlines import Deadlines
from patched_engine.resp.engine import Kind


class RespCalls:
    """Batches of LMCache's keys; each key has its own result, whatever became of the others.

    `lookup` bounds EXISTS, `load` GET and DEL, `store` SET: the last has no bound on a whole
    batch, since a batch of SETs may wait behind others and nobody waits for it.
    """

    def __init__(
        self, client: RespClient, lookup: Deadlines, load: Deadlines, store: Deadlines
    ) -> None:
        self.client = client
        self._lookup = lookup
        self._load = load
        self._store = store

    async def batch_get(self, keys: Sequence[str], buffers: Sequence[BytesLike]) -> Results:
        """Each value into its buffer, awaited."""
        return await self.client.asubmit(Kind.GET, keys, buffers, deadlines=self._load)

    def batch_get_sync(self, keys: Sequence[str], buffers: Sequence[BytesLike]) -> Results:
        """The same, blocking this thread."""
        return self.client.call(Kind.GET, keys, buffers, deadlines=self._load)

    def batch_set(self, keys: Sequence[str], buffers: Sequence[BytesLike]) -> Future[Results]:
        """Each buffer under its key, in the background."""
        return self.client.submit(Kind.SET, keys, buffers, deadlines=self._store)

    async def batch_exists(self, keys: Sequence[str]) -> Results:
        """Which keys are there, awaited."""
        return await self.client.asubmit(Kind.EXISTS, keys, deadlines=self._lookup)

    def batch_exists_sync(self, keys: Sequence[str]) -> Results:
        """The same, blocking this thread."""
        return self.client.call(Kind.EXISTS, keys, deadlines=self._lookup)

    def batch_delete_sync(self, keys: Sequence[str]) -> Results:
        """Delete keys, blocking this thread."""
        return self.client.call(Kind.DEL, keys, deadlines=self._load)


def count_present(results: Results) -> int:
    """How many of the first keys are there: a miss or an error ends the prefix."""
    for index, result in enumerate(results):
        if not result.ok:
            return index
    return len(results)
