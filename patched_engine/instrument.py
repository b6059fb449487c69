"""Installs the hooks in this process, if the environment asks for a page, for spans or for ranges.

That is STALLSCOPE_DIR, OTEL_EXPORTER_OTLP_ENDPOINT or a profiler's NVTX_INJECTION64_PATH. Without
any of them nothing happens. Each works without the others.
"""

from __future__ import annotations

import threading

from patched_engine import recorder, telemetry
from patched_engine.telemetry import spans

_installed = False
_lock = threading.Lock()


def install() -> bool:
    """Hook LMCache, torch.distributed and vLLM, those loaded and those yet to be imported.

    Returns whether the hooks are in. Safe to call again; never raises: a fault is counted in
    `status()["faults"]` and the engine runs on.
    """
    global _installed
    with _lock:
        if _installed:
            return True
        has_folder = recorder.folder() is not None
        if not has_folder and not telemetry.wanted():
            return False
        try:
            from patched_engine.hooks import (
                collectives,
                lmcache_async,
                lmcache_client,
                lmcache_engine,
                native_client,
                steps,
            )

            for module in (lmcache_engine, lmcache_client, lmcache_async):
                module.install()
            if has_folder:  # these write to the page and nothing else
                for module in (collectives, native_client, steps):
                    module.install()
            _installed = True
        except Exception as error:
            recorder.fault("install", error)
        return _installed


def status() -> dict[str, object]:
    """What is recorded in this process: page, hooks and their state, spans, faults by place."""
    return {**recorder.status(), "spans": spans.counts()}
