"""Whether this engine is to be sharded, whether it can be, and what that changes in its settings.

Configured as in the post: extra_config {"pcp_shard_store": true}, with {rank} in remote_url where
each rank has a shard of its own. (LMCache #5545, #5548, #5553.)
"""

from __future__ import annotations

from typing import Any, Final

SWITCH: Final = "pcp_shard_store"
MAX_PROMPT: Final = "pcp_shard_max_prompt_tokens"
_APPLIED: Final = "stallscope.sharded"
_TRUE: Final = (True, "true", "True", "1", 1)


class ShardingRefused(ValueError):
    """A sharded store that cannot work: what is in its way and what to set, in one line."""


def is_wanted(config: Any) -> bool:
    """Whether the configuration asks for the sharded store."""
    return config.get_extra_config_value(SWITCH, False) in _TRUE


def check(config: Any, metadata: Any) -> None:
    """Raises ShardingRefused for the first setting that a sharded store cannot work with."""
    for is_in_the_way, why in (
        (
            not metadata.use_mla,
            "the model has no MLA: only with MLA does every rank hold the whole KV",
        ),
        (metadata.world_size < 2, "there is one rank: nothing to shard; switch it off"),
        (config.use_layerwise, "use_layerwise is on: switch it off"),
        (config.enable_blending, "enable_blending is on: switch it off"),
        (config.enable_p2p, "enable_p2p is on: switch it off"),
        (config.enable_pd, "enable_pd is on: switch it off"),
        (
            config.enable_scheduler_bypass_lookup,
            "enable_scheduler_bypass_lookup is on: the scheduler has no shard; switch it off",
        ),
        (
            config.save_unfull_chunk,
            "save_unfull_chunk is on: a round is of whole chunks; switch it off",
        ),
        (
            bool(config.external_lookup_client),
            "external_lookup_client is set: every rank must answer lookups itself; unset it",
        ),
    ):
        if is_in_the_way:
            raise ShardingRefused(f"{SWITCH}: {why}")


def check_parallel(world_size: int, pcp_size: int) -> None:
    """Raises ShardingRefused where ranks are split by anything but prefill context.

    `world_size` counts the engine's workers, `pcp_size` those that share the whole KV.
    """
    if pcp_size != world_size:
        raise ShardingRefused(
            f"{SWITCH}: {world_size} workers in groups of {pcp_size} for prefill context: tensor"
            " and pipeline parallelism must be 1"
        )


def check_room(config: Any, metadata: Any, max_prompt_tokens: int) -> None:
    """Raises ShardingRefused where one rank's L1 cannot hold its share of the longest prompt.

    Call it after `apply`. 0 tokens: not known, so nothing is said.
    """
    chunks = max_prompt_tokens // metadata.chunk_size
    share = -(-chunks // metadata.world_size)
    needed = share * chunk_bytes(metadata)
    room = int(config.max_local_cpu_size * (1 << 30))
    if needed > room:
        gib = 1 << 30
        raise ShardingRefused(
            f"{SWITCH}: max_local_cpu_size leaves {room / gib:.2f} GiB a rank, and the {share}"
            f" chunks of a {max_prompt_tokens}-token prompt that each rank loads need"
            f" {needed / gib:.2f}: give the pod {needed * metadata.world_size / gib:.2f} or more"
        )


def max_prompt_tokens(config: Any) -> int:
    """The longest prompt that the settings name, 0 if they name none."""
    return int(config.get_extra_config_value(MAX_PROMPT, 0) or 0)


def apply(config: Any, world_size: int) -> None:
    """Change the settings in place, once: every rank stores and answers, and has 1/W of L1."""
    if config.extra_config.get(_APPLIED):
        return
    config.extra_config[_APPLIED] = True
    # Keys carry worker 0's name from the start, so nothing may rewrite them or drop a PUT.
    config.extra_config["save_only_first_rank"] = False
    config.extra_config["remote_enable_mla_worker_id_as0"] = False
    config.lookup_server_worker_ids = list(range(world_size))
    config.max_local_cpu_size = config.max_local_cpu_size / world_size


def chunk_bytes(metadata: Any) -> int:
    """Bytes of one whole chunk."""
    pairs = zip(metadata.get_shapes(), metadata.get_dtypes(), strict=True)
    return sum(int(shape.numel()) * int(dtype.itemsize) for shape, dtype in pairs)
