"""The composition root: the only place that joins readers, rules and servers into a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from detectors import ALL_RULES
from exporters.evaluator import Evaluator
from exporters.readers.shard_access import access_from
from exporters.snapshot import Snapshot


def live_evaluator(
    pages_dir: Path | None,
    valkey_urls: Sequence[str],
    with_samples: bool = False,
    looks: Sequence[Callable[[Snapshot], Snapshot]] = (),
) -> Evaluator:
    """An evaluator of what happens now, with every rule; None for a folder that is not asked for.

    `with_samples` for who watches on: what the shards tell a little at a time. Sources that cannot
    be read raise nothing: the ticks say so under `snapshot.unseen`. `looks` add stacks and logs to
    each picture. Raises AccessError.
    """
    return Evaluator(
        pages_dir=pages_dir,
        valkey_urls=valkey_urls,
        rules=ALL_RULES,
        access=access_from(os.environ),
        with_samples=with_samples,
        looks=looks,
    )
