"""A patch goes in where it was written for, and nowhere else; it says which it was."""

from __future__ import annotations

import types

import pytest

from patched_engine.patches import installing, patch, prefetch_keys
from patched_engine.patches.patch import Patch, Refused, code_names, require
from patched_engine.patches.switches import switched_on

NAMES = ("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "on", "unknown"),
    [
        ("", {"a", "b", "c"}, []),
        ("all", {"a", "b", "c"}, []),
        ("none", set(), []),
        ("a", {"a"}, []),
        ("a, b", {"a", "b"}, []),
        ("-a", {"b", "c"}, []),
        ("all,-a,-b", {"c"}, []),
        ("none,a", {"a"}, []),
        ("aa", set(), ["aa"]),
        ("a,bb", {"a"}, ["bb"]),
        ("-bb", {"a", "b", "c"}, ["-bb"]),
    ],
)
def test_switches(text, on, unknown):
    assert switched_on(NAMES, {"STALLSCOPE_PATCHES": text}) == (on, unknown)


@pytest.fixture
def trial(monkeypatch):
    """`put_in` on a module of the test's, for an LMCache of the version it says."""
    monkeypatch.setattr(patch, "_states", {})

    def put_in(version="0.5.5", check=lambda module: None, apply=lambda module: None):
        monkeypatch.setattr(installing, "lmcache_version", lambda: version)
        one = Patch("one", "LMCache #1", "a fix", "module", ("module.f",), check, apply)
        installing.put_in(one, types.SimpleNamespace())
        return patch.states()[0]

    return put_in


def test_applied(trial):
    done = []
    state = trial(apply=done.append)
    assert state.state == patch.APPLIED and len(done) == 1


@pytest.mark.parametrize("version", ["0.5.4", "0.5.7", "0.6.0", ""])
def test_an_unknown_version_is_left_alone(trial, version):
    done = []
    state = trial(version, apply=done.append)
    assert state.state == patch.REFUSED and not done
    assert state.why == f"LMCache {version} is not known; 0.5.5 and 0.5.6 are"


def test_a_version_with_the_fix_is_left_alone(trial):
    def check(module):
        raise patch.NotNeeded("it has the fix")

    done = []
    state = trial(check=check, apply=done.append)
    assert (state.state, state.why) == (patch.NOT_NEEDED, "it has the fix") and not done


def test_another_shape_is_left_alone(trial):
    def check(module):
        require(module, "f", set())

    state = trial(check=check)
    assert state.state == patch.REFUSED and "f is not there" in state.why


def test_a_failing_patch_is_counted_and_raises_nothing(trial):
    def apply(module):
        raise RuntimeError("no")

    state = trial(apply=apply)
    assert state.state == patch.REFUSED and "RuntimeError" in state.why


class Backend:
    async def batched_async_contains(self, lookup_id, keys, pin=False):
        if self._mla_worker_id_as0_mode:
            keys = [key.with_new_worker_id(0) for key in keys]
        return len(keys)

    async def batched_get_non_blocking(self, lookup_id, keys, transfer_spec=None):
        return [key.with_new_worker_id(0) for key in keys]


def test_a_get_that_rewrites_its_keys_needs_no_patch():
    with pytest.raises(patch.NotNeeded):
        prefetch_keys.check(types.SimpleNamespace(RemoteBackend=Backend))


def test_require_names_what_is_missing():
    def target(keys):
        return [key.name for key in keys]

    owner = types.SimpleNamespace(target=target, __name__="owner")
    assert require(owner, "target", {"name"}, ("keys",)) is target
    with pytest.raises(Refused, match="does not mention other"):
        require(owner, "target", {"other"})
    with pytest.raises(Refused, match="takes no size"):
        require(owner, "target", set(), ("size",))
    assert "name" in code_names(target)
