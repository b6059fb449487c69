"""The "GPU" side of the small engines in tests: LMCache's connector over one KV tensor."""

from __future__ import annotations

from typing import Any


def kv_connector() -> Any:
    """Copies between chunks and `kvcaches`, bfloat16 [layers, tokens, head]. Its stores raise once
    `is_broken` is set. Made in a function: importing LMCache is for the process that has an engine.
    """
    from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface

    class Connector(GPUConnectorInterface):
        is_broken = False

        def batched_from_gpu(self, memory_objs, starts, ends, **kwargs):  # type: ignore[no-untyped-def]
            if self.is_broken:
                raise ZeroDivisionError("a device that fails")
            for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
                memory_obj.tensor[0].copy_(kwargs["kvcaches"][:, start:end])

        def batched_to_gpu(self, memory_objs=None, starts=None, ends=None, **kwargs):  # type: ignore[no-untyped-def]
            for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
                kwargs["kvcaches"][:, start:end] = memory_obj.tensor[0]

        from_gpu = to_gpu = get_shape = None  # abstract, and not on these paths

    return Connector()
