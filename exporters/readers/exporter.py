"""Asks an exporter for its newest evaluation (/snapshot), the one its findings series show."""

from __future__ import annotations

from exporters.readers.shard_url import without_credentials
from exporters.readers.web import WebError, get_json
from exporters.snapshot import Evaluation
from exporters.snapshot_json import SnapshotError, from_json


def fetch(url: str) -> Evaluation:
    """Its newest evaluation. Raises WebError; its code is 404 where it is no exporter of ours."""
    try:
        return from_json(get_json(url, "/snapshot"))
    except SnapshotError as error:
        raise WebError(f"{without_credentials(url)}: its snapshot {error}") from error
