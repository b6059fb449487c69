"""What of a running engine can be seen from here, and how to see the rest: rows of `doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exporters.readers.page import plain
from exporters.readers.ptrace_rights import hindrance
from exporters.readers.py_spy import find_py_spy
from exporters.snapshot import Process
from runbooks.checkup import Row, Section

TITLE = "from here"


def section(processes: Sequence[Process], pids: Sequence[int]) -> Section:
    """Stacks, names of chunks, shards; `pids` are the processes' as they are seen from here."""
    rows = [_stacks(pids), *_names(processes), *_shards(processes)]
    return Section(TITLE, tuple(rows))


def _stacks(pids: Sequence[int]) -> Row:
    if find_py_spy() is None:
        why = "py-spy is not beside this Python nor on the PATH: pip install py-spy"
        return Row("stacks", "unseen", "unseen", why)
    if not pids:
        why = "no process of the pages is seen from here; run it in the engine's container"
        return Row("stacks", "unseen", "unseen", why)
    for pid in pids:
        if (found := hindrance(pid)) is not None:
            return Row("stacks", "unseen", "unseen", f"{found.detail}; {found.mend}")
    return Row("stacks", "can be read", "ok", f"of {len(pids)} processes")


def _names(processes: Sequence[Process]) -> Iterator[Row]:
    """Of each engine: one fingerprint, or two caches that nobody shares."""
    by_engine: dict[str, set[str]] = {}
    for process in processes:
        fingerprint = process.info.get("key_fingerprint")
        if isinstance(fingerprint, str) and fingerprint:
            by_engine.setdefault(process.engine_id, set()).add(fingerprint)
    names = {name for found in by_engine.values() for name in found}
    if not names:
        why = "no engine has built its cache yet, so that nothing is named"
        yield Row("chunk names", "not yet", "note", why)
    elif len(names) == 1:
        yield Row("chunk names", "agree", "ok", f"{plain(names.pop())} everywhere")
    else:
        listed = ", ".join(
            plain(f"{engine}: {'/'.join(sorted(found))}")
            for engine, found in sorted(by_engine.items())
        )
        why = f"{listed}; one PYTHONHASHSEED for all: stallscope runbook key-namespace-split"
        yield Row("chunk names", "differ", "warning", why)


def _shards(processes: Sequence[Process]) -> Iterator[Row]:
    """Where the pages say that chunks are kept, as --valkey wants it."""
    urls = dict.fromkeys(
        str(url).replace("{rank}", str(process.rank))
        for process in sorted(processes, key=lambda p: -1 if p.rank is None else p.rank)
        if process.rank is not None and (url := process.info.get("shard_url"))
    )
    if urls:
        given = " ".join(f"--valkey {plain(url)}" for url in urls)
        yield Row("shards", f"{len(urls)} in the pages", "note", f"give them to diagnose: {given}")
