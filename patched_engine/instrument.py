"""Installs patches and hooks in this process.

Patches go in unless STALLSCOPE_PATCHES says otherwise. Hooks go in if the environment asks for a
page, for spans or for ranges: STALLSCOPE_DIR, OTEL_EXPORTER_OTLP_ENDPOINT or a profiler's
NVTX_INJECTION64_PATH. Each works without the others.
"""

from __future__ import annotations

from patched_engine import recorder, telemetry
from patched_engine.locks import ForkSafeLock
from patched_engine.telemetry import spans

_installed = False
_patched = False
_lock = ForkSafeLock()


def install() -> bool:
    """Patch LMCache; hook LMCache, torch.distributed and vLLM, loaded or yet to be imported.

    Returns whether the hooks are in. Safe to call again; never raises: a fault is counted in
    `status()["faults"]` and the engine runs on.
    """
    global _installed
    with _lock:
        _install_patches()
        if _installed:
            return True
        has_folder = recorder.folder() is not None
        if not has_folder and not telemetry.wanted():
            return False
        try:
            from patched_engine.hooks import (
                collectives,
                lateness,
                lmcache_async,
                lmcache_client,
                lmcache_engine,
                log_lines,
                native_client,
                resp_client,
                sharding,
                steps,
                vllm_requests,
            )

            for module in (lmcache_engine, lmcache_client, lmcache_async, sharding):
                module.install()
            resp_client.install_backend()
            if has_folder:  # these write to the page and nothing else
                for module in (
                    collectives,
                    lateness,
                    log_lines,
                    native_client,
                    resp_client,
                    steps,
                    vllm_requests,
                ):
                    module.install()
            _installed = True
        except Exception as error:
            recorder.fault("install", error)
        return _installed


def _install_patches() -> None:
    """Once, and before the hooks: those then see what the patches put in place."""
    global _patched
    if _patched:
        return
    _patched = True
    try:
        from patched_engine import patches

        patches.install()
    except Exception as error:
        recorder.fault("patches", error)


def status() -> dict[str, object]:
    """What is in this process: page, hooks and patches with their state, spans, faults by place."""
    return {**recorder.status(), "spans": spans.counts()}
