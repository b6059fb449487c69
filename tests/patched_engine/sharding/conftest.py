"""Nurseries are dear (an import of LMCache): one a version and a switch for all tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.patched_engine.patches import programs
from tests.patched_engine.sharding.pod import Nursery

MakeNursery = Callable[..., Nursery]


@pytest.fixture(scope="session")
def nursery_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeNursery]:
    made: dict[tuple[str, str], Nursery] = {}

    def get(version: str = "0.5.5", patches: str = programs.ALL) -> Nursery:
        programs.lmcache_path(version)  # skips where that LMCache is not installed
        if (version, patches) not in made:
            made[version, patches] = Nursery(tmp_path_factory.mktemp("pods"), version, patches)
        return made[version, patches]

    yield get
    for nursery in made.values():
        nursery.end()
