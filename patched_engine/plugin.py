"""vLLM's plugin entry point: called in the API server, the engine core and every worker."""

from __future__ import annotations

import os

from patched_engine import recorder
from patched_engine.instrument import install


def register() -> None:
    """Install the hooks, and the patches that their switches ask for. Never raises.

    What this process is, its first hook finds out.
    """
    install()
    try:
        _replace_activation()
    except Exception as error:
        recorder.fault("activation kernel", error)


def _replace_activation() -> None:
    """Put the activation kernel in as soon as vLLM's own is there, if its switch is on."""
    from patched_engine.kernels import vllm_activation

    if os.environ.get(vllm_activation.SWITCH) != "1":
        return
    from patched_engine.hooks.wrap import when_imported

    when_imported(vllm_activation.HOME, lambda _module: vllm_activation.apply())
