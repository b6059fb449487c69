"""The post's own inputs, and the one set of free parameters that its runaway was fitted with."""

from __future__ import annotations

from typing import Final

CHUNK_BYTES: Final = 12.4e6
CHUNK_TOKENS: Final = 256
PREFILL_TOKENS_PER_SECOND: Final = 53_000.0
PROMPT_TOKENS: Final = 64 * CHUNK_TOKENS
RANKS: Final = 8
# Bytes/s: what one instance served (0.78 to 0.89), and eight together.
ONE_SHARD_BYTES_PER_SECOND: Final = 0.89e9
EIGHT_SHARDS: Final = 8
EIGHT_SHARDS_BYTES_PER_SECOND: Final = 10.76e9
REQUESTS: Final = 450
SECONDS: Final = 374.0
GIVE_UP_SECONDS: Final = 3.0

# Free, since the post does not say: how much each further waiting request stretches a load, and
# how many waited while that bandwidth was measured. Together they put a load that is alone at 0.74
# s, which is what the shard's thread spent on each prompt of that run: 73 to 74% of its wall.
SLOWDOWN_PER_LOAD: Final = 0.017
LOADS_WHEN_MEASURED: Final = 13
# As many as a prompt has chunks; nothing tells what more would do.
MOST_LOADS: Final = 64
