"""Records every collective of torch.distributed and of vLLM's group coordinator.

A blocking call on CPU tensors is timed on the host; one on CUDA tensors by an event pair; an
asynchronous one is only counted, since its host times say nothing about waiting. vLLM is hooked
below its custom operators, where an eager forward passes whatever carries the bytes (NCCL through
torch, or its own communicators); calls inside calls are recorded once, at the outermost.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exporters import page_layout as layout
from patched_engine import recorder
from patched_engine.hooks.device_events import DeviceEvents
from patched_engine.hooks.groups import GroupTracker, forget_groups, tracker_of
from patched_engine.hooks.wrap import attach, when_imported
from patched_engine.page import Page, Ring

_NONE = layout.BASIS_INDEX["none"]
_HOST = layout.BASIS_INDEX["host"]
_CUDA = layout.BASIS_INDEX["cuda_event"]


@dataclass(frozen=True, slots=True)
class Signature:
    """Where a function of torch.distributed keeps what the record needs (-1: nowhere)."""

    op: str
    tensor: int
    group: int
    async_op: int
    tensor_name: str = ""


# Point-to-point calls are left out: they involve two ranks, and a group has one sequence.
TORCH_FUNCTIONS: dict[str, Signature] = {
    "all_reduce": Signature("all_reduce", 0, 2, 3, "tensor"),
    "all_gather": Signature("all_gather", 1, 2, 3, "tensor"),
    "all_gather_into_tensor": Signature("all_gather", 1, 2, 3, "input_tensor"),
    "all_gather_single": Signature("all_gather", 1, 2, 3, "input_tensor"),
    "all_gather_coalesced": Signature("all_gather", 1, 2, 3, "input_tensor_list"),
    "all_reduce_coalesced": Signature("all_reduce", 0, 2, 3, "tensors"),
    "reduce_scatter": Signature("reduce_scatter", 0, 3, 4, "output"),
    "reduce_scatter_single": Signature("reduce_scatter", 1, 3, 4, "input"),
    "reduce_scatter_tensor": Signature("reduce_scatter", 1, 3, 4, "input"),
    "all_to_all": Signature("all_to_all", 1, 2, 3, "input_tensor_list"),
    "all_to_all_single": Signature("all_to_all", 1, 4, 5, "input"),
    "barrier": Signature("barrier", -1, 0, 1),
    "broadcast": Signature("broadcast", 0, 2, 3, "tensor"),
    "reduce": Signature("reduce", 0, 3, 4, "tensor"),
    "gather": Signature("gather", 0, 3, 4, "tensor"),
    "scatter": Signature("scatter", 0, 3, 4, "tensor"),
}

# Methods of vLLM's GroupCoordinator (0.31 to 0.33): name, operation.
COORDINATOR_METHODS: dict[str, str] = {
    "_all_reduce_out_place": "all_reduce",
    "_all_gather_out_place": "all_gather",
    "_reduce_scatter_out_place": "reduce_scatter",
    "all_gatherv": "all_gather",
    "reduce_scatterv": "reduce_scatter",
    "reduce_scatterv_into_output": "reduce_scatter",
}

_local = threading.local()  # .depth: inside how many recorded calls this thread is
_events: DeviceEvents | None = None
_events_page: Page | None = None


class _Token:
    """What `after` needs of `before`."""

    __slots__ = ("basis", "entry", "pair")

    def __init__(
        self, entry: tuple[Ring, int, int] | None, basis: int, pair: tuple[Any, Any] | None
    ) -> None:
        self.entry = entry
        self.basis = basis
        self.pair = pair


def _device_events() -> DeviceEvents:
    """The pool of this process, polled by the heartbeat of the page that stands."""
    global _events, _events_page
    if _events is None:
        import torch

        _events = DeviceEvents(torch.cuda.Event)
    page = recorder.current()
    if page is not None and page is not _events_page:
        _events_page = page
        page.add_poller(_events.poll)
    return _events


def _start(tracker: GroupTracker | None, op: int, tensor: Any, asynchronous: bool) -> _Token | None:
    """Record the arrival at one outermost collective."""
    if tracker is None:
        return None
    size_bytes = tensor.numel() * tensor.element_size() if tensor is not None else 0
    on_device = tensor is not None and tensor.is_cuda
    pair = None
    if asynchronous:
        basis = _NONE
    elif on_device:
        pair = _start_pair()
        basis = _CUDA if pair is not None else _NONE
    else:
        basis = _HOST
    return _Token(tracker.begin(op, basis, size_bytes), basis, pair)


def _start_pair() -> tuple[Any, Any] | None:
    import torch

    # An event recorded into a graph under capture times nothing at replay.
    if torch.cuda.is_current_stream_capturing():
        return None
    return _device_events().start()


def _finish(token: _Token | None) -> None:
    """Record the departure that `token`'s basis allows."""
    if token is None or token.entry is None:
        return
    ring, offset, sequence = token.entry
    if token.pair is not None:
        _device_events().finish(token.pair, ring, offset, sequence)
    else:
        ring.end(offset)


class _OutermostHook:
    """Calls inside a recorded call are its own business: only the outermost is recorded."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        depth = getattr(_local, "depth", 0)
        _local.depth = depth + 1
        if depth:
            return None
        try:
            return self.start(args, kwargs)
        except BaseException:  # a KeyboardInterrupt too, or this thread would go unrecorded
            _local.depth = depth  # `after` will not be called
            raise

    def after(
        self, token: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        _local.depth -= 1
        _finish(token)

    def start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Token | None:
        raise NotImplementedError


class TorchHook(_OutermostHook):
    """One function of torch.distributed."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._op = layout.OP_INDEX[signature.op]

    def start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Token | None:
        signature = self._signature
        given = len(args)
        group = args[signature.group] if given > signature.group else kwargs.get("group")
        tensor: Any = None
        if signature.tensor >= 0:
            tensor = (
                args[signature.tensor]
                if given > signature.tensor
                else kwargs.get(signature.tensor_name)
            )
            if isinstance(tensor, (list, tuple)):
                tensor = tensor[0] if tensor else None
        asynchronous = (
            args[signature.async_op]
            if given > signature.async_op
            else kwargs.get("async_op", False)
        )
        return _start(tracker_of(group), self._op, tensor, bool(asynchronous))


class CoordinatorHook(_OutermostHook):
    """One method of vLLM's GroupCoordinator: (self, input or list of inputs, ...)."""

    def __init__(self, op: str) -> None:
        self._op = layout.OP_INDEX[op]

    def start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Token | None:
        coordinator = args[0]
        tensor = args[1] if len(args) > 1 else kwargs.get("input_")
        if isinstance(tensor, (list, tuple)):
            tensor = tensor[0] if tensor else None
        return _start(tracker_of(coordinator.device_group), self._op, tensor, asynchronous=False)


class _InitHook:
    """Opens the page of a rank as soon as its default group stands."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        return None

    def after(
        self, token: None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        import torch.distributed as dist

        if dist.is_initialized() and dist.get_world_size() > 1:
            recorder.identify(
                "worker",
                dist.get_rank(),
                torch_rank=dist.get_rank(),
                world_size=dist.get_world_size(),
            )


class _DestroyHook:
    """A destroyed group's sequence ends; the others', the default group's above all, go on."""

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        return None

    def after(
        self, token: None, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        group = args[0] if args else kwargs.get("group")
        forget_groups(group)


def _hook_torch(module: Any) -> None:
    """Hook torch.distributed and the module that defines it: both names are called."""
    import torch.distributed as dist

    for name, signature in TORCH_FUNCTIONS.items():
        attach(module, name, TorchHook(signature))
        if hasattr(module, name) and hasattr(dist, name):
            setattr(dist, name, getattr(module, name))
    attach(module, "init_process_group", _InitHook())
    attach(module, "destroy_process_group", _DestroyHook())
    for name in ("init_process_group", "destroy_process_group"):
        setattr(dist, name, getattr(module, name))


def _hook_coordinator(module: Any) -> None:
    for name, op in COORDINATOR_METHODS.items():
        attach(module.GroupCoordinator, name, CoordinatorHook(op))


def install() -> None:
    """Hook both as soon as they are imported."""
    when_imported("torch.distributed.distributed_c10d", _hook_torch)
    when_imported("vllm.distributed.parallel_state", _hook_coordinator)
