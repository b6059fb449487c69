"""What a sharded store cannot work with is refused at start, by name, with what to set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from patched_engine.sharding import settings
from patched_engine.sharding.settings import SWITCH, ShardingRefused

pytest.importorskip("torch")
pytest.importorskip("lmcache")


def config(**chosen: Any) -> Any:
    from lmcache.v1.config import LMCacheEngineConfig

    extra = {SWITCH: True, **chosen.pop("extra", {})}
    return LMCacheEngineConfig.from_defaults(
        **{"chunk_size": 256, "save_unfull_chunk": False, **chosen}, extra_config=extra
    )


def metadata(**chosen: Any) -> Any:
    import torch
    from lmcache.v1.metadata import LMCacheMetadata

    facts: dict[str, Any] = {
        "model_name": "a-model",
        "world_size": 8,
        "local_world_size": 8,
        "worker_id": 0,
        "local_worker_id": 0,
        "kv_dtype": torch.bfloat16,
        "kv_shape": (2, 1, 256, 1, 64),
        "use_mla": True,
        "role": "worker",
    }
    return LMCacheMetadata(**{**facts, **chosen})


@pytest.mark.parametrize("value", [True, "true", "True", 1, "1"])
def test_it_is_wanted_where_the_switch_is_on(value):
    assert settings.is_wanted(config(extra={SWITCH: value}))


@pytest.mark.parametrize("value", [False, "false", "no", 0, None, "", "yes please"])
def test_it_is_not_wanted_otherwise(value):
    assert not settings.is_wanted(config(extra={SWITCH: value}))


def test_what_the_post_has_is_taken():
    settings.check(config(), metadata())
    settings.check(config(enable_async_loading=True), metadata())
    settings.check_parallel(8, 8)


@pytest.mark.parametrize(
    ("chosen", "facts", "says"),
    [
        ({}, {"use_mla": False}, "no MLA"),
        ({}, {"world_size": 1}, "one rank"),
        ({"use_layerwise": True}, {}, "use_layerwise is on: switch it off"),
        ({"enable_blending": True}, {}, "enable_blending is on: switch it off"),
        ({"enable_p2p": True}, {}, "enable_p2p is on: switch it off"),
        ({"enable_pd": True}, {}, "enable_pd is on: switch it off"),
        ({"enable_scheduler_bypass_lookup": True}, {}, "enable_scheduler_bypass_lookup is on"),
        ({"save_unfull_chunk": True}, {}, "save_unfull_chunk is on"),
        ({"external_lookup_client": "mooncakestore://x"}, {}, "external_lookup_client is set"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else None,
)
def test_each_setting_that_is_in_the_way_is_named(chosen, facts, says):
    with pytest.raises(ShardingRefused) as refused:
        settings.check(SimpleNamespace(**{**vars_of(config()), **chosen}), metadata(**facts))
    line = str(refused.value)
    assert line.startswith(f"{SWITCH}: ") and says in line and "\n" not in line


def vars_of(made: Any) -> dict[str, Any]:
    """A configuration's settings; LMCache's own would refuse or change some when they are set."""
    names = (
        "use_layerwise",
        "enable_blending",
        "enable_p2p",
        "enable_pd",
        "enable_scheduler_bypass_lookup",
        "save_unfull_chunk",
        "external_lookup_client",
    )
    return {name: getattr(made, name) for name in names}


@pytest.mark.parametrize(("workers", "pcp"), [(8, 4), (2, 1), (16, 8), (4, 8)])
def test_other_parallelism_is_refused(workers, pcp):
    with pytest.raises(ShardingRefused, match=f"{workers} workers in groups of {pcp}.*must be 1"):
        settings.check_parallel(workers, pcp)


def test_each_rank_takes_its_part_of_the_pods_memory_once():
    made = config(max_local_cpu_size=80.0)
    settings.apply(made, 8)
    settings.apply(made, 8)
    assert made.max_local_cpu_size == 10.0
    assert made.get_lookup_server_worker_ids(True, 8) == list(range(8))
    for name in ("save_only_first_rank", "remote_enable_mla_worker_id_as0"):
        assert made.get_extra_config_value(name, True) is False


def test_an_l1_below_one_lookups_need_is_refused():
    chunk = settings.chunk_bytes(metadata())
    assert chunk == 2 * 256 * 64 * 2
    share = 3  # chunks of each of 8 ranks, of a prompt of 17 to 24
    for prompt, fits in ((24 * 256, True), (24 * 256 + 255, True), (25 * 256, False), (0, True)):
        made = config(max_local_cpu_size=8 * share * chunk / (1 << 30))
        settings.apply(made, 8)
        if fits:
            settings.check_room(made, metadata(), prompt)
        else:
            with pytest.raises(ShardingRefused, match=r"max_local_cpu_size leaves.*give the pod"):
                settings.check_room(made, metadata(), prompt)


def test_the_longest_prompt_is_what_is_set():
    assert settings.max_prompt_tokens(config()) == 0
    assert settings.max_prompt_tokens(config(extra={settings.MAX_PROMPT: "200000"})) == 200_000
