"""Puts the patches in as their targets are imported. Nothing here raises into the engine."""

from __future__ import annotations

import functools
import logging
import os
from importlib import metadata
from typing import Any

from patched_engine import recorder
from patched_engine.hooks.wrap import when_imported
from patched_engine.patches import patch as states
from patched_engine.patches.patch import (
    APPLIED,
    NOT_NEEDED,
    OFF,
    REFUSED,
    VERSIONS,
    WAITING,
    NotNeeded,
    Patch,
    Refused,
)
from patched_engine.patches.switches import VARIABLE, switched_on

logger = logging.getLogger("stallscope")
_MOST_WHY = 160  # characters: the page's facts have little room


def install(patches: tuple[Patch, ...]) -> None:
    """Apply what is switched on, at once or when its target is imported."""
    on, unknown = switched_on([patch.name for patch in patches], os.environ)
    for word in unknown:
        known = ", ".join(patch.name for patch in patches)
        logger.warning(
            "stallscope: %s: no patch %r; there are all, none, %s", VARIABLE, word, known
        )
    for patch in patches:
        if patch.name in on:
            states.note(patch, WAITING, f"{patch.module} is not imported yet")
            when_imported(patch.module, functools.partial(put_in, patch))
        else:
            states.note(patch, OFF, f"switched off by {VARIABLE}")
    _publish()


def put_in(patch: Patch, module: Any) -> None:
    """Check the version and the target's shape, then apply; whatever happens is recorded."""
    try:
        version = lmcache_version()
        if version not in VERSIONS:
            raise Refused(f"LMCache {version} is not known; {' and '.join(VERSIONS)} are")
        patch.check(module)
        patch.apply(module)
    except NotNeeded as why:
        states.note(patch, NOT_NEEDED, str(why))
    except Refused as why:
        states.note(patch, REFUSED, str(why))
        logger.warning("stallscope: patch %s is left out: %s", patch.name, why)
    except Exception as error:
        states.note(patch, REFUSED, f"failed: {error!r}")
        recorder.fault(f"patch {patch.name}", error)
    else:
        states.note(patch, APPLIED)
        logger.info("stallscope: patch %s is in (%s)", patch.name, patch.upstream)
    _publish()


def _publish() -> None:
    """The page's heartbeat carries it on, with the reason where one is of interest."""
    for item in states.states():
        why = f": {item.why}"[:_MOST_WHY] if item.state in (REFUSED, NOT_NEEDED) else ""
        recorder.patch_status[item.patch.name] = item.state + why


def lmcache_version() -> str:
    """The LMCache that this process imports; "" where its version cannot be told."""
    try:
        return metadata.version("lmcache")
    except metadata.PackageNotFoundError:
        return ""
