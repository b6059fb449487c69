"""Installs the hooks in this process; nothing happens unless STALLSCOPE_DIR names a folder."""

from __future__ import annotations

import threading

from patched_engine import recorder

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
        if recorder.folder() is None:
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

            for module in (
                collectives,
                lmcache_engine,
                lmcache_client,
                lmcache_async,
                native_client,
                steps,
            ):
                module.install()
            _installed = True
        except Exception as error:
            recorder.fault("install", error)
        return _installed


def status() -> dict[str, object]:
    """What is recorded in this process: page, hooks and their state, faults by place."""
    return recorder.status()
