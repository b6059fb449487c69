"""The samples of the cost model, of an engine and of a shard; what it cannot say has none."""

from __future__ import annotations

from collections.abc import Iterator

from exporters import catalog, model
from exporters.sample import Sample
from exporters.saturation import between, command_sums, recent
from exporters.snapshot import Engine, Shard, Snapshot


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


def shard_model_samples(snapshot: Snapshot, shard: Shard) -> Iterator[Sample]:
    """S of a shard: time of its main thread for each GET, between the bounds of its saturation,
    which is its rho: what is offered waits in connections, where a server does not count it."""
    found = recent(snapshot, shard)
    now = command_sums(shard.info).get(("get", "calls"))
    if found is None or now is None:
        return
    for picture in snapshot.earlier:
        before = picture.shard(shard.url)
        if before is None or between(before, shard) != found:
            continue
        gets = now - command_sums(before.info).get(("get", "calls"), 0.0)
        if gets >= model.LEAST_REQUESTS:
            for bound, share in (("lower", found.lower), ("upper", found.upper)):
                value = share * found.wall_seconds / gets
                yield Sample(catalog.MODEL_SHARD_SERVICE, (shard.url, bound), value)
        return
