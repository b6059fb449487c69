"""Lets unmodified LMCache run under vLLM on a CPU: a connector to its paged KV, and ranks.

LMCache ships no connector for CPUs, and counts GPUs to find its local rank. A plugin of vLLM's, so
that it is in every process before LMCache is imported.
"""

from __future__ import annotations

import os
from typing import Any

import wrapt

SWITCH = "STALLSCOPE_TEST_CPU"


def register() -> None:
    if os.environ.get(SWITCH) == "1":
        wrapt.register_post_import_hook(_connector, "lmcache.v1.gpu_connector")
        wrapt.register_post_import_hook(_ranks, "lmcache.integration.vllm.utils")


def _ranks(module: Any) -> None:
    def local_rank_and_world_size(vllm_config: Any) -> tuple[int, int]:
        parallel = vllm_config.parallel_config
        return parallel.rank, parallel.world_size

    module.calculate_local_rank_and_world_size = local_rank_and_world_size


def _connector(module: Any) -> None:
    from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface

    class PagedCPUConnector(GPUConnectorInterface):  # type: ignore[misc]
        """Between vLLM's CPU paged KV, a tensor a layer, and whole chunks of LMCache.

        MLA: a row a token. Otherwise a block is packed for the processor it was written on, so
        whole blocks are moved as they are.
        """

        def __init__(self, metadata: Any) -> None:
            self.is_mla = metadata.use_mla

        def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
            for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
                for chunk, pages, where in self._places(memory_obj, start, end, kwargs):
                    chunk.copy_(pages[where])

        def batched_to_gpu(
            self, memory_objs: Any = None, starts: Any = None, ends: Any = None, **kwargs: Any
        ) -> None:
            for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
                for chunk, pages, where in self._places(memory_obj, start, end, kwargs):
                    pages[where] = chunk

        def _places(self, memory_obj: Any, start: int, end: int, kwargs: Any) -> Any:
            """(the chunk's part of a layer, the layer's pages, which of them) for each layer."""
            layers = kwargs["kvcaches"]
            slots = kwargs["slot_mapping"][start:end].long().cpu()
            flat = memory_obj.tensor.view(len(layers), -1)
            for part, layer in zip(flat, layers, strict=True):
                if self.is_mla:
                    pages, where = layer.view(-1, layer.shape[-1]), slots
                else:
                    block_tokens = layer.shape[2]
                    assert (end - start) % block_tokens == 0
                    pages, where = layer, slots[::block_tokens] // block_tokens
                yield part.view(len(where), *pages.shape[1:]), pages, where

        from_gpu = to_gpu = get_shape = None  # abstract, and not on these paths

    stock = module.CreateGPUConnector

    def create(config: Any, metadata: Any, engine: Any, layout_hints: Any = None) -> Any:
        from lmcache import torch_device_type

        if torch_device_type == "cpu":
            return PagedCPUConnector(metadata)
        return stock(config, metadata, engine, layout_hints=layout_hints)

    module.CreateGPUConnector = create
