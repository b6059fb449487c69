"""What one lab run is made of: every knob, checked once, and carried to each process as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final

CHUNK_TOKENS: Final = 256
BLOCK_TOKENS: Final = 512  # the block of a Mooncake file's hash_ids, and of our own stream
LAYERS: Final = 8
ELEMENT_BYTES: Final = 2  # bfloat16
CHUNK_BYTES_STEP: Final = CHUNK_TOKENS * LAYERS * ELEMENT_BYTES
POST_PREFILL_RATE: Final = 53_000.0  # tokens/s of the post's eight ranks
POST_RANKS: Final = 8
FULL_REQUEST_RATE: Final = 2.6  # of our own stream on eight ranks; ours, not the post's
POST_CHUNK_BYTES: Final = 12_400_000
POST_COPY_RATE: Final = 12.3e9  # bytes/s: the post's rank 0 wrote 19.1 GB in the 1.55 s it was late
LMCACHE_VERSIONS: Final = ("0.5.5", "0.5.6")
ENGINES: Final = ("stock", "patched", "sharded")
# LMCache's native client loses a completion when its event loop runs between a submit and the line
# after it. A thread that waits for the interpreter asks for it after this time (Python: 5 ms), and
# the kernel's batch policy keeps waking threads from preempting a submitting one: together they
# make the stock fault rare enough to look at others. `plain_scheduling` leaves both as they come.
QUIET_SWITCH_SECONDS: Final = 1e-4
LOOKUP_TIMEOUT_SECONDS: Final = 3.0


class SettingsError(ValueError):
    """A value that cannot be run, in one line for the person who typed it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. Sizes are bytes, times seconds, rates per second of the run's own clock.

    `time_scale` stretches or shrinks the arrival times of the request stream: 0.5 sends the same
    requests twice as fast. `l1_bytes` is one rank's CPU tier, `shard_bytes` one server's maxmemory.
    """

    incident: str = ""
    incident_after_seconds: float = 0.0
    engine: str = "stock"
    lmcache: str = "0.5.5"
    ranks: int = 4
    shards: int = 1
    seconds: float = 30.0
    seed: int = 0
    requests_file: str = ""
    hit_rate: float = 0.5
    prompt_tokens_low: int = 8_192
    prompt_tokens_high: int = 24_576
    request_rate: float = 0.0
    time_scale: float = 1.0
    prefill_rate: float = 0.0
    tokens_per_step: int = 8_192
    collectives_per_step: int = 4
    chunk_bytes: int = 1 << 17
    copy_rate: float = 0.0
    l1_bytes: int = 24 << 20
    shard_bytes: int = 1 << 30
    resp_threads: int = 1
    async_loading: bool = False
    plain_scheduling: bool = False
    valkey_server: str = ""
    pages: str = ""
    keep: str = ""

    @property
    def scaled_prefill_rate(self) -> float:
        """Tokens/s of the whole engine: as given, or the post's rate for this many ranks."""
        return self.prefill_rate or POST_PREFILL_RATE * self.ranks / POST_RANKS

    @property
    def chunk_copy_seconds(self) -> float:
        """How long one chunk takes between device and host at the stated rate.

        The rate is for a chunk of the post's size, whatever part of it `chunk_bytes` keeps, as the
        prefill rate is for the post's model.
        """
        return POST_CHUNK_BYTES / self.scaled_copy_rate

    @property
    def scaled_copy_rate(self) -> float:
        """Bytes/s between one rank's device and its host.

        Scaled like the prefill rate, so that storing and computing keep the proportion that made
        the post's rank 0 late, whatever the number of ranks.
        """
        return self.copy_rate or POST_COPY_RATE * self.ranks / POST_RANKS

    @property
    def head_size(self) -> int:
        """Elements of one token's latent vector in one layer."""
        return self.chunk_bytes // CHUNK_BYTES_STEP

    @property
    def scaled_request_rate(self) -> float:
        """Requests/s of our own stream: as given, or what keeps this many ranks busy, not full."""
        return self.request_rate or FULL_REQUEST_RATE * self.ranks / POST_RANKS

    @property
    def has_shard_a_rank(self) -> bool:
        """Whether {rank} in the shard URL gives each rank its own."""
        return self.engine == "sharded" and self.shards > 1

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Settings:
        values: dict[str, Any] = json.loads(text)
        return Settings(**values)

    def check(self) -> None:
        """Raises SettingsError naming the first value that cannot be run."""
        for flag, value, low, high in (
            ("--ranks", self.ranks, 2, 8),
            ("--shards", self.shards, 1, 8),
            ("--seconds", self.seconds, 1, 86_400),
            ("--incident-after", self.incident_after_seconds, 0, 86_400),
            ("--hit-rate", self.hit_rate, 0, 1),
            ("--time-scale", self.time_scale, 0.001, 1_000),
            ("--tokens-per-step", self.tokens_per_step, CHUNK_TOKENS, 1 << 20),
            ("--collectives-per-step", self.collectives_per_step, 2, 64),
            ("--prompt-tokens", self.prompt_tokens_low, CHUNK_TOKENS, 1 << 20),
            ("--prompt-tokens", self.prompt_tokens_high, self.prompt_tokens_low, 1 << 20),
            ("--resp-threads", self.resp_threads, 1, 64),
        ):
            if not low <= value <= high:
                raise SettingsError(
                    f"{flag} must be between {low:.9g} and {high:.9g}, not {value:.9g}"
                )
        if self.prefill_rate and not 1 <= self.prefill_rate <= 1e9:
            raise SettingsError(f"--prefill-rate must be 1 or more, not {self.prefill_rate:g}")
        if self.request_rate and not 0.01 <= self.request_rate <= 1_000:
            raise SettingsError(f"--rate must be between 0.01 and 1000, not {self.request_rate:g}")
        if self.copy_rate and not 1e6 <= self.copy_rate <= 1e15:
            raise SettingsError(f"--copy-rate must be 1e6 or more, not {self.copy_rate:g}")
        if self.chunk_bytes % CHUNK_BYTES_STEP or not 0 < self.chunk_bytes <= 64 << 20:
            raise SettingsError(
                f"--chunk-bytes must be a multiple of {CHUNK_BYTES_STEP} "
                f"({LAYERS} layers of {CHUNK_TOKENS} bfloat16 tokens) up to {64 << 20}, "
                f"not {self.chunk_bytes}"
            )
        if self.engine == "sharded" and self.shards not in (1, self.ranks):
            raise SettingsError(
                f"--engine sharded has one shard or one a rank: --shards 1 or {self.ranks}, "
                f"not {self.shards}"
            )
        if self.shard_bytes < 16 << 20:
            raise SettingsError("--shard-memory must be 16 MiB or more")
        if self.l1_bytes < 16 * self.chunk_bytes:
            raise SettingsError(
                f"--l1-memory must hold 16 chunks ({16 * self.chunk_bytes >> 20} MiB), "
                f"not {self.l1_bytes >> 20} MiB"
            )
