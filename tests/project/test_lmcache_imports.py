"""LMCache is installed without its declared dependencies: this is what keeps our own list true."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.project.layout import (
    CONSTRAINTS,
    ENGINE_ROOMS,
    LMCACHE_IMPORTS,
    ROOT,
    SECOND_LMCACHE,
    imported_modules,
    sources,
)

# What the lab and the hooks stand on, whichever of it a given file names. LMCache loads the
# connector only when a resp:// address is met, so it is named here.
FOUNDATION = (
    "lmcache.lmcache_native",
    "lmcache.lmcache_redis",
    "lmcache.v1.cache_engine",
    "lmcache.v1.config",
    "lmcache.v1.gpu_connector.gpu_connectors",
    "lmcache.v1.lookup_client.factory",
    "lmcache.v1.lookup_client.lmcache_async_lookup_client",
    "lmcache.v1.lookup_client.lmcache_lookup_client",
    "lmcache.v1.metadata",
    "lmcache.v1.storage_backend.connector.redis_adapter",
    "lmcache.v1.storage_backend.connector.redis_connector",
    "lmcache.v1.storage_backend.remote_backend",
    "lmcache.v1.storage_backend.storage_manager",
)


def listed() -> dict[str, str]:
    """Import name -> distribution, as requirements/lmcache-imports.txt has them."""
    lines = [line for line in LMCACHE_IMPORTS.read_text().splitlines() if line[:1] not in ("", "#")]
    pairs = [re.fullmatch(r"([\w.-]+) {2}# (\w+)", line) for line in lines]
    assert all(pairs), f"each line reads `distribution  # import_name`: {lines}"
    return {pair[2]: pair[1] for pair in pairs if pair}


def modules_used() -> list[str]:
    """The LMCache modules our code imports, but for those that need a vLLM to import."""
    used = {name for path in sources(*ENGINE_ROOMS) for name in imported_modules(path)}
    ours = {name for name in used if name.startswith("lmcache.")}
    return sorted({*FOUNDATION, *(n for n in ours if not n.startswith("lmcache.integration.vllm"))})


def record(lmcache_folder: Path | None) -> dict[str, object]:
    path = [str(lmcache_folder)] if lmcache_folder else []
    done = subprocess.run(
        [sys.executable, "-W", "ignore", ROOT / "tests/project/record_imports.py", *modules_used()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "LMCACHE_TRACK_USAGE": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("version", ["0.5.5", "0.5.6"])
def test_every_import_is_listed_and_every_listed_one_is_used(version: str) -> None:
    folder = None if version == "0.5.5" else SECOND_LMCACHE
    if folder and not folder.exists():
        pytest.skip(f"{folder.name} is not beside the environment: run `make setup`")
    result = record(folder)
    assert result["failed"] == {}
    assert str(result["lmcache"]).startswith(str(folder or sys.prefix))
    assert result["direct"] == sorted(listed())


def test_every_listed_distribution_is_pinned() -> None:
    pins = CONSTRAINTS.read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in pins}
    assert {canonicalize_name(name) for name in listed().values()} <= pinned
