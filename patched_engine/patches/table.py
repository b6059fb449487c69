"""The table of docs/patches.md, from the registry: `python -m patched_engine.patches.table`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from patched_engine.patches.patch import VERSIONS, Patch

_PATCH_TESTS: Final = "tests/patched_engine/patches"


@dataclass(frozen=True, slots=True)
class Note:
    """What a user sees without the patch, and the tests that fail with its switch off."""

    without: str
    shown_by: str


NOTES: Final = {
    "rank-url": Note(
        "the text `{rank}` is taken for part of a host's name: the engine runs on without L2, and"
        " only a log line tells",
        f"{_PATCH_TESTS}/test_smaller_fixes.py",
    ),
    "prefetch-keys": Note(
        "with asynchronous loading and an MLA model, each lookup on a rank other than 0 finds its"
        " chunks, asks for keys that do not exist, and the scheduler waits out"
        " `lookup_timeout_ms` (3 s)",
        f"{_PATCH_TESTS}/test_smaller_fixes.py",
    ),
    "executor": Note(
        "after four slow, failed or cancelled jobs every GET, PUT and EXISTS of that engine waits"
        " for ever",
        f"{_PATCH_TESTS}/test_smaller_fixes.py",
    ),
    "resp-backend": Note(
        "a chunk that is evicted between lookup and load stops its connection for good; about once"
        " in some thousand lookups an answer is lost; a connection that was cut brings what was in"
        " the buffer as KV and is never made again",
        f"{_PATCH_TESTS}/test_resp_backend.py, {_PATCH_TESTS}/test_lifecycle.py,"
        " tests/lab/test_patched_chaos.py",
    ),
    "release-once": Note(
        "a load releases its chunks and the end of its request releases them again: on 0.5.5 with"
        " asynchronous loading the next hit of that prompt in L1 ends the engine, otherwise chunks"
        " that others still use can be evicted",
        f"{_PATCH_TESTS}/test_release_once.py",
    ),
    "sharded-store": Note(
        "one rank stores every byte of an MLA model while the others wait for it, or each stores"
        " its own copy of all",
        "tests/patched_engine/sharding",
    ),
    "longest-prompt": Note(
        "a sharded engine starts with an L1 that a long prompt does not fit: each such prompt is"
        " then loaded in part",
        "tests/vllm/test_pcp.py",
    ),
    "refusals": Note(
        "a setting that cannot work leaves the engine running without its cache, each request"
        " waiting out the lookup timeout",
        f"{_PATCH_TESTS}/test_smaller_fixes.py",
    ),
}

_HEAD: Final = ("switch", "upstream", "without it", "touches", "shown by")


def table(patches: tuple[Patch, ...]) -> str:
    """One row a patch, in Markdown. Raises KeyError for a patch without a note."""
    rows = [_HEAD, ("---",) * len(_HEAD)]
    for patch in patches:
        note = NOTES[patch.name]
        touched = ", ".join(f"`{name}`" for name in patch.touches)
        rows.append((f"`{patch.name}`", patch.upstream, note.without, touched, note.shown_by))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(
        [f"LMCache {' and '.join(VERSIONS)}; on any other each refuses itself.", "", *lines]
    )


if __name__ == "__main__":
    from patched_engine.patches import PATCHES

    print(table(PATCHES))
