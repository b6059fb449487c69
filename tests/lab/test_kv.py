"""The expected KV, the poison, and the connector between paged KV and LMCache's buffers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lmcache")

from lab import kv  # noqa: E402
from lab.settings import LAYERS  # noqa: E402
from tests.lab.runs import ROOT  # noqa: E402

HEAD_SIZE = 16


def test_tokens_come_from_the_block_ids_alone() -> None:
    prompt = kv.prompt_tokens([5, 9], 700)
    assert len(prompt) == 700
    assert prompt == kv.prompt_tokens([5, 9, 11], 700)
    assert prompt[:512] == kv.prompt_tokens([5, 1], 512)
    assert kv.block_tokens(5) != kv.block_tokens(9)
    assert all(0 <= token < 50_000 for token in prompt)


def test_a_chunk_depends_on_all_tokens_before_it() -> None:
    one, other = kv.prompt_tokens([1, 3], 1024), kv.prompt_tokens([2, 3], 1024)
    first, second = kv.chunk_digests(one), kv.chunk_digests(other)
    assert len(first) == 4
    # The last two chunks hold the same tokens after different ones.
    assert not set(first) & set(second)
    assert first[:2] == kv.chunk_digests(one[:512])


def test_paged_kv_tells_one_wrong_bit() -> None:
    paged, expected = kv.PagedKV(3, HEAD_SIZE), kv.ExpectedKV(HEAD_SIZE)
    chunk = expected.chunk(12_345)
    assert not paged.holds(1, chunk)
    paged.write(1, chunk, 0, 100)
    assert not paged.holds(1, chunk)
    paged.write(1, chunk, 100, 256)
    assert paged.holds(1, chunk)
    assert not paged.holds(1, expected.chunk(12_346))
    paged.tensor.view(torch.int16)[7, 511, HEAD_SIZE - 1] ^= 1
    assert not paged.holds(1, chunk)
    paged.write(1, chunk, 0, 256)
    paged.poison([1])
    assert not paged.holds(1, chunk)


def test_the_connector_copies_both_ways() -> None:
    from lab.connector import PagedCPUConnector

    class Buffer:
        def __init__(self) -> None:
            self.tensor = torch.zeros(1, LAYERS, 256, HEAD_SIZE, dtype=torch.bfloat16)

    connector = PagedCPUConnector(HEAD_SIZE, chunk_copy_seconds=0.0)
    paged, expected = kv.PagedKV(4, HEAD_SIZE), kv.ExpectedKV(HEAD_SIZE)
    for page, digest in ((2, 10), (0, 20)):
        paged.write(page, expected.chunk(digest), 0, 256)
    buffers: list[Any] = [Buffer(), Buffer()]
    slots = kv.slot_mapping((2, 0), 512)
    connector.batched_from_gpu(
        buffers, [0, 256], [256, 512], kvcaches=paged.tensor, slot_mapping=slots
    )
    elsewhere = kv.slot_mapping((1, 3), 512)
    connector.batched_to_gpu(
        buffers, [0, 256], [256, 512], kvcaches=paged.tensor, slot_mapping=elsewhere
    )
    assert paged.holds(1, expected.chunk(10))
    assert paged.holds(3, expected.chunk(20))
    # Slots in any order go one by one.
    scattered = torch.arange(1023, 767, -1)
    connector.to_gpu(buffers[0], 0, 256, kvcaches=paged.tensor, slot_mapping=scattered)
    loaded, held = paged.tensor[:, scattered], buffers[0].tensor[0]
    assert torch.equal(loaded.view(torch.int16), held.view(torch.int16))


POISON = """
import torch
from lab.engine import poison_freed_buffers
from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator

def counts():
    pool = torch.zeros(1 << 20, dtype=torch.uint8)
    allocator = TensorMemoryAllocator(pool)
    one, two = (allocator.allocate(torch.Size([4096]), torch.uint8) for _ in range(2))
    one.tensor.fill_(7), two.tensor.fill_(8)
    one.ref_count_down()
    allocator.batched_free([two])
    return [int((pool == value).sum()) for value in (7, 8, 0xA5)]

print(counts())
poison_freed_buffers()
print(counts())
"""


@pytest.mark.parametrize("version", ["0.5.5", "0.5.6"])
def test_freed_l1_buffers_are_poisoned(version: str) -> None:
    path = [str(ROOT)]
    other = Path(sys.prefix) / f"lmcache-{version}"
    if other.is_dir():
        path.insert(0, str(other))
    answer = subprocess.run(
        [sys.executable, "-c", POISON],
        env={"PYTHONPATH": ":".join(path), "LMCACHE_TRACK_USAGE": "false"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    stock, poisoned = answer.stdout.strip().splitlines()[-2:]
    assert stock == "[4096, 4096, 0]"  # the stale bytes that a load may find
    assert poisoned == "[0, 0, 8192]"
