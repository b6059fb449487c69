"""Trackers of process groups: which end when one is destroyed, and what an interrupt leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from patched_engine.hooks import collectives, groups


@pytest.fixture
def trackers() -> Iterator[dict[Any, Any]]:
    before = dict(groups._trackers)
    groups._trackers.clear()
    world = groups.GroupTracker("0", (0, 1, 2))
    sub = groups.GroupTracker("1", (0, 1))
    groups._trackers.update({None: world, "world": world, "sub": sub})
    yield groups._trackers
    groups._trackers.clear()
    groups._trackers.update(before)


def test_a_destroyed_subgroup_leaves_the_default_group(trackers: dict[Any, Any]) -> None:
    groups.forget_groups("sub")
    assert set(trackers) == {None, "world"}


@pytest.mark.parametrize("group", [None, "world"])
def test_the_default_group_ends_them_all(trackers: dict[Any, Any], group: str | None) -> None:
    groups.forget_groups(group)
    assert trackers == {}


def test_an_interrupt_in_a_hook_does_not_silence_its_thread() -> None:
    class Interrupted(collectives._OutermostHook):
        def start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            raise KeyboardInterrupt

    hook = Interrupted()
    for _ in range(2):  # a depth that stayed would make the second call look like an inner one
        with pytest.raises(KeyboardInterrupt):
            hook.before((), {})
