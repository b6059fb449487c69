"""Each smaller fix with its switch on, and what fails with it off."""

from __future__ import annotations

import pytest

from tests.patched_engine.patches import programs
from tests.patched_engine.patches.engine import LENGTH
from tests.servers import valkey_server

BOTH = pytest.mark.parametrize("version", ["0.5.5", "0.5.6"])
FIXES = ("executor", "prefetch-keys", "rank-url", "refusals")


def run(tmp_path, version, patches, *fixes):
    with valkey_server() as port:
        found = programs.run(
            "smaller", port, *fixes, folder=tmp_path, version=version, patches=patches
        )
    assert found is not None and found["faults"] == {}
    return found, port


@BOTH
def test_with_the_patches(tmp_path, version):
    found, port = run(tmp_path, version, "all", *FIXES)
    # No job, slow, failed or cancelled, ends one of the executor's workers.
    assert found["executor"]["after"] == {"slow": 42, "failing": 42, "cancelled": 42}
    # A prefetching GET asks for the keys that were found.
    prefetched = found["prefetch-keys"]
    assert prefetched["answered"] == prefetched["loaded"] == LENGTH and prefetched["equal"]
    # The rank is filled in, and nothing else is; what the user wrote stays.
    url = found["rank-url"]
    assert url["resp"] == f"resp://127.0.1.3:{port}"
    assert url["config"] == f"resp://127.0.1.{{rank}}:{port}"
    assert url["other"] == "lm://cache-2:65432"
    assert "unknown placeholder {tenant}: only {rank} is filled in" in url["unknown"]
    assert "unknown placeholder {rank:1" in url["brace"]
    # Settings that cannot work end the start.
    assert "unknown placeholder {tenant}" in found["refusals"]["raised"]


@BOTH
def test_without_them(tmp_path, version):
    found, _ = run(tmp_path, version, "none", *FIXES)
    assert set(found["patches"].values()) == {"off"}
    assert found["executor"]["after"]["slow"] is None  # every worker is gone
    assert found["prefetch-keys"]["answered"] is None  # and the scheduler waits out its timeout
    assert found["rank-url"]["other"] == "lm://cache-{rank}:65432"
    assert found["refusals"]["raised"] is None


def test_the_prefetch_keys_alone_mend_lmcaches_own_backend(tmp_path):
    found, _ = run(tmp_path, "0.5.5", "prefetch-keys", "prefetch-keys")
    assert found["prefetch-keys"]["answered"] == found["prefetch-keys"]["loaded"] == LENGTH


def test_the_refusal_alone_ends_a_degraded_start(tmp_path):
    found, _ = run(tmp_path, "0.5.5", "-refusals", "refusals")
    assert found["refusals"] == {"raised": None, "degraded": True}
