"""The process that `stallscope doctor` starts: imports what the patches wait for, prints the rows.

It makes no engine and opens no page or connection.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import platform
import sys
import warnings
from importlib import metadata
from typing import Any, Final

Row = dict[str, Any]

_OK, _NOTE, _WARNING, _UNSEEN = "ok", "note", "warning", "unseen"
_MP_ADAPTER: Final = "v1/distributed/l2_adapters/resp_l2_adapter.py"
_PLUGIN_GROUP: Final = "vllm.general_plugins"
_PLUGIN: Final = "stallscope"
_VERSIONS: Final = ("lmcache", "vllm", "torch", "stallscope")
_LEVELS: Final = {
    "applied": _OK,
    "not needed": _OK,
    "off": _NOTE,
    "refused": _WARNING,
    "waiting": _UNSEEN,
}


def main() -> None:
    """Print the sections as one line of JSON: nothing else may come out there."""
    out = os.dup(1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    text = json.dumps(sections())
    with os.fdopen(out, "w") as stream:
        stream.write(text + "\n")
    sys.stderr.flush()
    os._exit(0)  # whatever threads LMCache's modules have started


def sections() -> list[dict[str, Any]]:
    """Everything, in the order in which it is shown."""
    import patched_engine
    from patched_engine.hooks import wrap

    patched_engine.install()
    import patched_engine.patches as room

    waited_for = {item.patch.module for item in room.states()} | wrap.awaited
    failed = _import_all(waited_for)
    status = patched_engine.status()
    return [
        {"title": "versions", "rows": _versions()},
        {"title": "patches", "rows": [*_patches(failed), *_switches()]},
        {"title": "client", "rows": [_client(), _mp_mode()]},
        {"title": "hooks", "rows": _hooks(status, failed)},
        {"title": "into vLLM", "rows": [_plugin()]},
    ]


def _import_all(modules: set[str]) -> dict[str, str]:
    """Why each module that could not be imported could not, in one line."""
    failed: dict[str, str] = {}
    for name in sorted(modules):
        package = name.partition(".")[0]
        if package == "vllm":  # seconds of its own, and a platform of its own to look for
            failed[name] = "vLLM is not imported here"
            continue
        try:
            if not _is_there(package):
                failed[name] = f"{package} is not installed here"
                continue
            importlib.import_module(name)
        except BaseException as error:  # a broken package may even exit
            failed[name] = f"{name} cannot be imported: {_in_words(error)}"
    return failed


def _patches(failed: dict[str, str]) -> list[Row]:
    from patched_engine.patches import states

    rows = []
    for item in states():
        why = item.why
        if item.state == "waiting":
            why = failed.get(item.patch.module, why)
        state = "unseen" if item.state == "waiting" else item.state
        rows.append({**item.row(), "state": state, "level": _LEVELS[item.state], "why": why})
    return rows


def _switches() -> list[Row]:
    """Words of the switch that name nothing."""
    from patched_engine.patches import PATCHES
    from patched_engine.patches.switches import VARIABLE, switched_on

    _, unknown = switched_on([patch.name for patch in PATCHES])
    known = ", ".join(patch.name for patch in PATCHES)
    return [
        _row(VARIABLE, "misspelt", _WARNING, f"no patch {word!r}: all, none, {known}")
        for word in unknown
    ]


def _client() -> Row:
    from patched_engine.resp import BuildError, status
    from patched_engine.resp.choose import ENGINE_VARIABLE

    try:
        engine = status()
    except (BuildError, ValueError) as error:
        return _row("RESP client", "refused", _WARNING, f"{ENGINE_VARIABLE}: {error}")
    asked = os.environ.get(ENGINE_VARIABLE, "") == "pure"
    level = _OK if engine.name == "compiled" else _NOTE if asked else _WARNING
    why = engine.reason
    if level == _WARNING:
        why += ": the client in Python alone does the same, slower beside busy Python threads"
    return {**_row("RESP client", engine.name, level, why), "library": engine.library}


def _mp_mode() -> Row:
    name = "LMCache's MP mode"
    spec = importlib.util.find_spec("lmcache")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    if not any(os.path.exists(os.path.join(place, _MP_ADAPTER)) for place in places):
        return _row(name, "not there", _NOTE, "this LMCache has no RESP adapter of its own")
    return _row(
        name,
        "unpatched",
        _NOTE,
        "its server's resp L2 adapter uses LMCache's compiled client, which hangs on a missing key"
        " and loses completions: use the in-process LMCacheConnectorV1",
    )


def _hooks(status: dict[str, Any], failed: dict[str, str]) -> list[Row]:
    from patched_engine.hooks import wrap
    from patched_engine.patches import PATCHES

    listed: dict[str, str] = status["hooks"]
    rows = []
    for name, state in sorted(listed.items()):
        level = _WARNING if state.startswith("failed") else _OK if state == "attached" else _NOTE
        short, _, why = state.partition(": ")
        why = why or ("this version has no such function" if state == "absent" else "")
        rows.append(_row(name, short, level, why))
    patched = {patch.module for patch in PATCHES}  # told there
    for module in sorted(wrap.awaited & failed.keys() - patched):
        is_missing = "not installed" in failed[module] or module.startswith("vllm")
        level = _NOTE if is_missing else _UNSEEN
        rows.append(_row(module, "waiting", level, failed[module]))
    for where, count in sorted(status["faults"].items()):
        rows.append(_row(where, "failed", _WARNING, f"{count} faults, see the log"))
    return rows


def _plugin() -> Row:
    name = "plugin"
    points = {point.name for point in metadata.entry_points(group=_PLUGIN_GROUP)}
    if _PLUGIN not in points:
        return _row(name, "missing", _WARNING, "stallscope is not installed here: pip install it")
    chosen = os.environ.get("VLLM_PLUGINS")
    if chosen is not None and _PLUGIN not in chosen.split(","):
        return _row(
            name,
            "off",
            _WARNING,
            f"VLLM_PLUGINS={chosen!r} leaves it out: add {_PLUGIN}, or unset it",
        )
    if not _is_there("vllm"):
        return _row(name, "registered", _NOTE, "vLLM is not installed here")
    return _row(name, "registered", _OK, "vLLM loads it in each of its processes")


def _versions() -> list[Row]:
    rows = [_row("python", platform.python_version(), _OK)]
    for name in _VERSIONS:
        try:
            rows.append(_row(name, metadata.version(name), _OK))
        except metadata.PackageNotFoundError:
            is_engine = name == "lmcache"
            why = "nothing to patch: run this where the engine runs" if is_engine else ""
            rows.append(_row(name, "not installed", _UNSEEN if is_engine else _NOTE, why))
    return rows


def _row(name: str, state: str, level: str, why: str = "") -> Row:
    return {"name": name, "state": state, "level": level, "why": why}


def _is_there(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
