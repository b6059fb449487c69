"""The samples of one engine's cost model; what it cannot say has none."""

from __future__ import annotations

from collections.abc import Iterator

from exporters import catalog, model
from exporters.sample import Sample
from exporters.snapshot import Engine


def model_samples(engine: Engine) -> Iterator[Sample]:
    """All of one engine."""
    labels, found = (engine.engine_id,), engine.model
    yield Sample(catalog.MODEL_COLD_TOKENS, labels, found.cold_tokens)
    yield Sample(catalog.MODEL_COLD_SECONDS, labels, found.cold_seconds)
    if found.token_bytes:
        yield Sample(catalog.MODEL_TOKEN_BYTES, labels, found.token_bytes)
        if found.cold_seconds:
            rate = found.cold_tokens / found.cold_seconds
            line = model.break_even_bytes_per_second(found.token_bytes, rate)
            yield Sample(catalog.MODEL_BREAK_EVEN, labels, line)
    rho = None if found.unseen else model.rho_of(found.points)
    yield Sample(catalog.MODEL_EVALUABLE, labels, float(rho is not None))
    if rho is not None:
        yield Sample(catalog.MODEL_OFFERED, labels, rho.offered_per_second)
        yield Sample(catalog.MODEL_SERVICE, labels, rho.service_seconds)
        yield Sample(catalog.MODEL_RHO, labels, rho.rho)
