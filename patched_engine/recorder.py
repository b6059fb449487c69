"""The one page of this process, and everything that went wrong on the way to it.

Hooks ask `current()` and write; where it is None (no folder named, folder full, forked child) they
do nothing. Nothing in here raises: what fails is counted in `faults` and logged once.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from exporters import page_layout as layout
from patched_engine import truncation_guard
from patched_engine.locks import ForkSafeLock
from patched_engine.page import Page, sweep_dead_pages

FOLDER_VARIABLE = "STALLSCOPE_DIR"
ENGINE_ID_VARIABLE = "STALLSCOPE_ENGINE_ID"
_HOOK_FAULTS = layout.COUNTER_INDEX["hook_faults"]

logger = logging.getLogger("stallscope")
faults: Counter[str] = Counter()
hook_status: dict[str, str] = {}
patch_status: dict[str, str] = {}

_page: Page | None = None
_identity: dict[str, object] = {}  # who this process is, page or no page
_lock = ForkSafeLock()
_waiting: list[Callable[[Page], None]] = []  # for the page to be opened


def folder() -> Path | None:
    """The pages folder that the environment names, or None: then nothing is recorded."""
    name = os.environ.get(FOLDER_VARIABLE, "")
    return Path(name) if name else None


def current() -> Page | None:
    """This process's page, if it has one."""
    return _page


def fault(where: str, error: BaseException) -> None:
    """Count a fault of ours, log the first of its kind, and carry on."""
    try:
        faults[where] += 1
        if _page is not None:
            _page.add(_HOOK_FAULTS)
        if faults[where] == 1:
            logger.warning("stallscope: %s failed and is counted: %r", where, error)
    except Exception:
        pass  # counting a fault must not become one


def identify(role: str, rank: int | None = None, **facts: object) -> Page | None:
    """Say who this process is: the first call opens its page, later ones add facts.

    A process may hold two roles (vLLM's single-process executor): the page lists both.
    """
    global _page
    try:
        with _lock:
            roles = _identity.get("roles")
            listed = list(roles) if isinstance(roles, list) else []
            named = os.environ.get(ENGINE_ID_VARIABLE, "")
            new: dict[str, object] = {
                "engine_id": _identity.get("engine_id", socket.gethostname()),
                **facts,
                **({"engine_id": named} if named else {}),
                "roles": listed if role in listed else [*listed, role],
            }
            if rank is not None and (role == "worker" or "rank" not in _identity):
                new["rank"] = rank
            _identity.update(new)
            place = folder()
            if place is None:
                return None
            new["hooks"] = dict(hook_status)
            new["patches"] = dict(patch_status)
            if _page is None:
                sweep_dead_pages(place, new)
                _page = Page.create(place, new)
                _page.add_poller(_refresh_hooks)
                for action in _waiting:
                    action(_page)
                atexit.register(_close_at_exit)
            else:
                _page.set_info(new)
            return _page
    except Exception as error:
        fault("page", error)
        return None


def when_paged(action: Callable[[Page], None]) -> None:
    """Run `action(page)` with the page, now or when it is opened; again for a page of a fork."""
    with _lock:
        _waiting.append(action)
        if _page is not None:
            action(_page)


def identity() -> dict[str, object]:
    """Who this process is, as far as its hooks were told: `engine_id`, `roles`, `rank`, facts."""
    with _lock:
        return dict(_identity)


def add_facts(**facts: object) -> None:
    """Add facts to the page's header, if there is one."""
    page = _page
    if page is None:
        return
    try:
        page.set_info(facts)
    except Exception as error:
        fault("page_facts", error)


def _refresh_hooks() -> None:
    """Hooks attach as modules are imported, some after the page was opened: keep the list true."""
    page = _page
    if page is None:
        return
    for name, now in (("hooks", hook_status), ("patches", patch_status)):
        if page.info().get(name) != now:
            page.set_info({name: dict(now)})


def url_without_credentials(url: str) -> str:
    """A URL as it may be shown: user and password removed, placeholders such as {rank} kept."""
    parts = urlsplit(url)
    _, _, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def status() -> dict[str, object]:
    """What is recorded here: the page's path, the hooks and their state, the faults counted."""
    page = _page
    return {
        "page": str(page.path) if page is not None else None,
        "page_truncated": page.truncated if page is not None else False,
        "page_rescues": truncation_guard.rescues,
        "folder": str(folder() or ""),
        "hooks": dict(hook_status),
        "patches": dict(patch_status),
        "faults": dict(faults),
    }


def _close_at_exit() -> None:
    global _page
    page, _page = _page, None
    if page is not None:
        try:
            page.close()
        except Exception as error:
            fault("page_close", error)


def _forget_in_child() -> None:
    global _page
    page, _page = _page, None
    faults.clear()
    _identity.clear()
    if page is not None:
        page.forget_after_fork()


os.register_at_fork(after_in_child=_forget_in_child)
