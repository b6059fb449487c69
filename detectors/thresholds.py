"""Every limit that a rule holds a figure against, with the reason for its value."""

from __future__ import annotations

from typing import Final

# A rank is named late over a window long enough to outlast one slow prompt, three windows running
# so that a burst at the edge of one does not decide.
STRAGGLER_WINDOW_SECONDS: Final = 30
STRAGGLER_WINDOWS: Final = 3
STRAGGLER_COLLECTIVES: Final = 50
# By chance a rank is last in 1/W; with two ranks a share of 0.6 is an everyday imbalance.
STRAGGLER_LAST_SHARE: Final = 0.6
STRAGGLER_LAST_SHARE_TWO_RANKS: Final = 0.8
STRAGGLER_P_VALUE: Final = 1e-3

# What the group loses must be worth a person's time, whatever the shares say.
LOST_WALL_SHARE: Final = 0.05
LOST_WALL_SHARE_CRITICAL: Final = 0.10

SKEW_WINDOW_SECONDS: Final = 60
SKEW_MIN_WALL_SECONDS: Final = 10  # below this one slow step is 5% of the wall
SKEW_CHUNKS_PER_RANK: Final = 16
SKEW_RATIO: Final = 1.5

# A rank without a page is silent only when others wait for it this long; else it is just unseen.
MISSING_WAIT_SECONDS: Final = 3.0
# One that runs may be inside a long load; LMCache's own limit for a blocking call is 10 s.
ABSENT_WAIT_SECONDS: Final = 10.0
