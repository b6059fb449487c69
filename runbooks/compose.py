"""The composition root: the only place that joins readers, rules and servers into a whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from detectors import ALL_RULES
from exporters.evaluator import Evaluator


def live_evaluator(pages_dir: Path | None, valkey_urls: Sequence[str]) -> Evaluator:
    """An evaluator of what happens now, with every rule; None for a folder that is not asked for.

    Never raises for a source that cannot be read: its ticks say so under `snapshot.unseen`.
    """
    return Evaluator(pages_dir=pages_dir, valkey_urls=valkey_urls, rules=ALL_RULES)
