"""One rank: a real LMCache engine inside a step loop whose collectives every rank must enter."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from lab import kv
from lab.losses import Losses, native_client_of
from lab.messages import Channel, Loaded, Part, Step, StepDone, step_from
from lab.settings import CHUNK_TOKENS, Settings
from lab.stamps import Stamps

_GATHER_BYTES: Final = 16_384  # one rank's share of a collective's payload


@dataclass(slots=True)
class Prompt:
    """A request that is being prefilled on this rank."""

    tokens: list[int]
    pages: tuple[int, ...]
    digests: list[int]
    slots: torch.Tensor
    hit_tokens: int
    stored_tokens: int
    loaded_tokens: int = 0
    load_seconds: float = 0.0
    l1_chunks: int = 0
    unpinned: bool = False


class Worker:
    """The engine process of one rank.

    `compute_stretch` is how much longer than stated this rank's compute takes: 1.0, or more where
    an incident slows the rank. `go_seconds` is the run's start on CLOCK_MONOTONIC. `report` sends
    an event to the lab's parent.
    """

    def __init__(
        self,
        settings: Settings,
        rank: int,
        engine: Any,
        pages: int,
        folder: Path,
        shard_port: int,
        report: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.settings = settings
        self.rank = rank
        self.engine = engine
        self.shard_port = shard_port
        self.native_client = native_client_of(engine)
        self.losses = Losses(lambda is_forced: self._tell("lost", is_forced=is_forced))
        if self.native_client is not None:
            self.losses.watch(self.native_client)
        self._report = report
        self.go_seconds = 0.0
        self.compute_stretch: Callable[[], float] = lambda: 1.0
        self.stamps = Stamps(folder, rank)
        self.paged = kv.PagedKV(pages, settings.head_size)
        self.expected = kv.ExpectedKV(settings.head_size)
        self.prompts: dict[str, Prompt] = {}
        self._mine = torch.full((_GATHER_BYTES,), rank, dtype=torch.uint8)
        self._all = torch.empty(_GATHER_BYTES * settings.ranks, dtype=torch.uint8)

    def tell_begun(self) -> None:
        """An incident has begun here, now."""
        self._tell("begun")

    def _tell(self, event: str, **facts: Any) -> None:
        self._report(event, {"rank": self.rank, "at_seconds": time.monotonic(), **facts})

    def serve(self, channel: Channel) -> None:
        """Run steps until the scheduler says that the run is over."""
        while True:
            kind, body = channel.receive()
            if kind == "finish":
                return
            if kind == "go":
                self.go_seconds = float(body)
                continue
            step = step_from(body)
            # What the lab itself has to do for a step stands outside of it, on every rank alike.
            for part in step.parts:
                if part.is_first:
                    self._admit(part)
            self.execute_step(step)
            loads = tuple(self._verify(part) for part in step.parts if part.is_first)
            for part in step.parts:
                if part.is_last:
                    self.paged.poison(self.prompts.pop(part.id).pages)
            channel.send("done", asdict(StepDone(self.rank, step.index, loads)))

    def execute_step(self, step: Step) -> None:
        """One engine step: load, compute with its collectives, store, the closing collective.

        The order is the engine's: loads before the forward pass; a gather after each slice of it;
        the store when it is done, inside the step; then the gather of the outputs.
        """
        for part in step.parts:
            if part.is_first and part.hit_tokens:
                self._load(part)
        slices = self.settings.collectives_per_step
        rate = self.settings.scaled_prefill_rate
        slice_seconds = step.compute_tokens / rate / slices
        pieces = [piece for part in step.parts for piece in self._pieces(part)]
        for index in range(slices - 1):
            self._compute(slice_seconds, pieces[index :: slices - 1])
            self.gather()
        for part in step.parts:
            self._store(part)
        self._compute(slice_seconds, ())
        self.gather()

    def gather(self) -> None:
        """A collective that every rank must enter, as attention's all-gather is."""
        self.stamps.arrive()
        dist.all_gather_into_tensor(self._all, self._mine)
        self.stamps.leave()

    def _admit(self, part: Part) -> None:
        tokens = kv.prompt_tokens(part.block_ids, part.length_tokens)
        prompt = Prompt(
            tokens=tokens,
            pages=part.pages,
            digests=kv.chunk_digests(tokens),
            slots=kv.slot_mapping(part.pages, part.length_tokens),
            hit_tokens=part.hit_tokens,
            stored_tokens=part.hit_tokens // CHUNK_TOKENS * CHUNK_TOKENS,
        )
        prompt.l1_chunks = self._chunks_in_l1(tokens[: part.hit_tokens])
        self.prompts[part.id] = prompt

    def _chunks_in_l1(self, tokens: list[int]) -> int:
        """How many of these chunks this rank's own CPU tier holds now.

        The keys are made on every rank, also on one without a storage manager, so that no rank
        is kept longer than another by the lab's bookkeeping.
        """
        keys = [key for _, _, key in self.engine.token_database.process_tokens(tokens)]
        manager = self.engine.storage_manager
        if manager is None:
            return 0
        tier = manager.storage_backends["LocalCPUBackend"]
        held = sum(1 for key in keys if tier.contains(key))
        # A sharded rank holds its own chunks alone; the others hold as many of theirs.
        return held * self.settings.ranks if self.settings.engine == "sharded" else held

    def _load(self, part: Part) -> None:
        prompt = self.prompts[part.id]
        begun = time.monotonic()
        mask = self.engine.retrieve(
            prompt.tokens[: part.hit_tokens],
            torch.ones(part.hit_tokens, dtype=torch.bool),
            kvcaches=self.paged.tensor,
            slot_mapping=prompt.slots[: part.hit_tokens],
            req_id=part.id,
        )
        prompt.load_seconds = time.monotonic() - begun
        prompt.loaded_tokens = int(mask.sum())

    def _pieces(self, part: Part) -> list[tuple[int, int, int, int]]:
        """(page, digest, first, last) for each chunk that this part's tokens touch."""
        prompt = self.prompts[part.id]
        pieces = []
        for chunk in range(part.first_token // CHUNK_TOKENS, -(-part.last_token // CHUNK_TOKENS)):
            start = chunk * CHUNK_TOKENS
            first = max(part.first_token - start, 0)
            last = min(part.last_token - start, CHUNK_TOKENS)
            pieces.append((prompt.pages[chunk], prompt.digests[chunk], first, last))
        return pieces

    def _compute(self, seconds: float, pieces: Any) -> None:
        """Produce the KV of these pieces and take as long as the stated prefill rate says."""
        deadline = time.monotonic() + seconds * self.compute_stretch()
        for page, digest, first, last in pieces:
            self.paged.write(page, self.expected.chunk(digest), first, last)
        if (left := deadline - time.monotonic()) > 0:
            time.sleep(left)

    def _store(self, part: Part) -> None:
        """Hand the step's new full chunks to LMCache, as the engine's adapter does."""
        prompt = self.prompts[part.id]
        self._unpin(part.id, prompt)
        length = part.last_token // CHUNK_TOKENS * CHUNK_TOKENS
        if length <= prompt.stored_tokens:
            return
        mask = torch.ones(length, dtype=torch.bool)
        mask[: prompt.stored_tokens] = False
        self.engine.store(
            prompt.tokens[:length],
            mask=mask,
            kvcaches=self.paged.tensor,
            slot_mapping=prompt.slots[:length],
            offset=prompt.stored_tokens,
            req_id=part.id,
        )
        prompt.stored_tokens = length

    def _unpin(self, request_id: str, prompt: Prompt) -> None:
        """Once a request, let go of what its lookup pinned or prefetched.

        With asynchronous loading a load has let go of it already, and LMCache would free it a
        second time: a chunk that its CPU tier still holds, and the next load of it fails. vLLM's
        connector makes that call; a stock engine with it lives for seconds, so the lab does not.
        """
        released = self.settings.async_loading and prompt.loaded_tokens > 0
        if not prompt.unpinned and not released:
            self.engine.lookup_unpin(request_id)
        prompt.unpinned = True

    def _verify(self, part: Part) -> Loaded:
        """Compare every loaded byte with what these tokens must have."""
        prompt = self.prompts[part.id]
        chunks = prompt.loaded_tokens // CHUNK_TOKENS
        wrong_chunks = sum(
            not self.paged.holds(page, self.expected.chunk(digest))
            for page, digest in zip(prompt.pages[:chunks], prompt.digests[:chunks], strict=True)
        )
        l1_tokens = min(prompt.l1_chunks * CHUNK_TOKENS, prompt.loaded_tokens)
        return Loaded(
            id=part.id,
            loaded_tokens=prompt.loaded_tokens,
            l1_tokens=l1_tokens,
            l2_tokens=prompt.loaded_tokens - l1_tokens,
            seconds=prompt.load_seconds,
            bytes_equal=prompt.loaded_tokens == part.hit_tokens and not wrong_chunks,
            wrong_chunks=wrong_chunks,
        )
