"""LMCache's own methods, run on a rank's own chunks: an engine and a token database that show
nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from patched_engine.sharding.ownership import Chunk, owner


class OwnTokens:
    """A token database of which `process_tokens` yields this rank's chunks alone."""

    def __init__(self, whole: Any, rank: int, world_size: int) -> None:
        self._whole = whole
        self._rank = rank
        self._world_size = world_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def process_tokens(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, int, Any]]:
        """(start, end, key) of each owned chunk, as upstream's."""
        size = self._whole.chunk_size
        for start, end, key in self._whole.process_tokens(*args, **kwargs):
            if owner(start // size, self._world_size) == self._rank:
                yield start, end, key


class OwnView:
    """An engine in everything but its token database. Threads of one engine share it safely."""

    def __init__(self, engine: Any, tokens: OwnTokens, **shown: Any) -> None:
        object.__setattr__(self, "_engine", engine)
        object.__setattr__(self, "token_database", tokens)
        for name, value in shown.items():
            object.__setattr__(self, name, value)

    def for_store(self) -> OwnView:
        """The same, for one store that may fail: its storage manager remembers what it gave."""
        manager = Allocations(self._engine.storage_manager)
        return OwnView(self._engine, self.token_database, storage_manager=manager)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._engine, name, value)


class Allocations:
    """A storage manager that can take back what one store allocated.

    Upstream loses it when the copy from the device or a backend raises.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._given: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        """As upstream's."""
        memory_obj = self._manager.allocate(*args, **kwargs)
        if memory_obj is not None:
            self._given.append(memory_obj)
        return memory_obj

    def give_back(self) -> None:
        """Drop the store's own reference to each, which it drops itself where nothing raises."""
        for memory_obj in self._given:
            memory_obj.ref_count_down()
        self._given = []


def chunks_of(token_database: Any, **asked: Any) -> list[Chunk]:
    """Every chunk of a prompt that the database sees; `asked` goes to process_tokens."""
    size = token_database.chunk_size
    return [
        Chunk(start // size, start, end, key)
        for start, end, key in token_database.process_tokens(**asked)
    ]


def name_as_rank0(token_database: Any, metadata: Any) -> None:
    """Have keys carry the names that stock rank 0 gives them, so that every pod finds them."""
    named = copy.copy(metadata)
    named.worker_id = 0
    token_database.metadata = named
    token_database.save_only_first_rank = True
