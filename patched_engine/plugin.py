"""vLLM's plugin entry point: called in the API server, the engine core and every worker."""

from __future__ import annotations

from patched_engine.instrument import install


def register() -> None:
    """Install the hooks; what this process is, its first hook finds out."""
    install()
