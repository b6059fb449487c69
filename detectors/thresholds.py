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

# What does not move must be seen so in several pictures: one may fall between request and reply.
PICTURES: Final = 3
# A second, less the jitter of a tick that is due each second.
PICTURE_SPACING_SECONDS: Final = 0.95

# An operation beyond its own timeout may still be answered; half as long again, it never was.
STUCK_TIMEOUTS: Final = 1.5
# For a timeout that the page does not know: the longest of LMCache's defaults.
UNKNOWN_TIMEOUT_SECONDS: Final = 10.0
# CLIENT LIST counts whole seconds of idleness, and the request left a moment after it was noted.
IDLE_SLACK_SECONDS: Final = 2
# From this age a GET's keys are looked for: a healthy one has long been answered, or is about to.
GET_SUSPECT_SECONDS: Final = 0.5

# A server that evicts stands at its limit, less the last thing it made room for and the buffers of
# clients that have gone since.
MEMORY_FULL_SHARE: Final = 0.9

# A timed-out call ends within the reply path's jitter of its timeout; the flanks, together so many
# times as wide (5% to 15% off), show how many calls would be as long by chance.
PLATEAU_WIDTH: Final = 0.05
PLATEAU_FLANKS: Final = 2
PLATEAU_DENSITY: Final = 5.0
PLATEAU_LOOKUPS: Final = 3
PLATEAU_WINDOW_SECONDS: Final = 60.0
# When the last one is so many timeouts ago, it is over.
PLATEAU_RECENT_TIMEOUTS: Final = 5
# Half of all lookups waiting out their timeout: the cache is as good as off, and worse than none.
PLATEAU_CRITICAL_SHARE: Final = 0.5

# A profile's rank is late when its share of the others' wait, and of the last places in the
# collectives that hold that wait, pass the shares and the chance above; a profile is one window.
# A kernel below this share of the GPU's time is not worth a person's.
KERNEL_TIME_SHARE: Final = 0.05
# CTAs without work cost a launch each: at half of them the kernel's time is mostly that.
IDLE_CTA_SHARE: Final = 0.5
# A kernel whose bytes are known and that moves them at less than a tenth of the memory's rate.
KERNEL_BANDWIDTH_SHARE: Final = 0.1
# The post's loaded ranks were 82% and 98% busy: below 70%, time is lost outside of the GPU.
IDLE_GPU_SHARE: Final = 0.3
# A shorter record may be one step's pause.
IDLE_GPU_MIN_SECONDS: Final = 0.1
# A stack that shows what the page says takes away half of the doubt; one that shows otherwise, half
# of the trust, as an unseen server side does.
STACK_CONFIDENCE_FACTOR: Final = 0.5

# What moves is taken between the oldest picture kept and this one, never over less than this.
MOVED_SECONDS: Final = 1.9

# Of the main thread: at 0.85 a queue of GETs waits five times as long as each takes. A moment at
# the limit is a burst; a person's look lasts 2 s, and only the whole of it counts.
SATURATED_SHARE: Final = 0.85
SATURATED_CANNOT_TELL: Final = 0.95
SATURATED_WINDOW_SECONDS: Final = 8.0
SATURATED_BRIEF_SHARE: Final = 0.97

# A shard that began within the hour, and after the others, with less than half of their keys.
COLD_UPTIME_SECONDS: Final = 3600
# Servers that are started together come up within seconds of each other.
COLD_YOUNGER_SECONDS: Final = 10
COLD_KEYS_SHARE: Final = 0.5
COLD_LEAST_KEYS: Final = 64  # of the others' median: with fewer nobody has a cache yet

# A shard's keys against an equal share of all; chunks per rank as for a skew of stores.
SHARD_SKEW_RATIO: Final = 1.5

# Of the newest lookups, those whose prefix one rank alone cut, and what it cost. Not more of them:
# what was asked before a shard lost anything would dilute it.
ORPHAN_WINDOW_SECONDS: Final = 60.0
ORPHAN_LOOKUPS: Final = 10
ORPHAN_SHARE: Final = 0.3
ORPHAN_CHUNKS_PER_RANK: Final = 4

# CPU taken away: by the quota, or by whoever shares the core. On a busy host every rank waits for
# one at times; what tells is that this rank waits more than the others, and that they wait for it.
THROTTLED_SHARE: Final = 0.10
RUNQUEUE_SHARE: Final = 0.20
RUNQUEUE_RATIO: Final = 2.0

# Pages of an engine that died longer ago are left over, and nobody's alarm.
ENGINE_DEAD_SECONDS: Final = 3600.0
# A heart beats once a second: of two that stopped closer together nobody went first.
BEATS_APART_SECONDS: Final = 2.0

# Two ranks in different operations at one place of the order hang at once, or mix their data.
MISMATCHED_COLLECTIVES: Final = 1

# No step of a prompt for so long, though there are requests: longer than any step of the post.
PROGRESS_SECONDS: Final = 30.0
# Where steps are long: so many mean steps, which is some 5 times the slowest of a hundred.
PROGRESS_MEAN_STEPS: Final = 15.0

# First tokens that come late because of the queue: what is computed is a third of the wait at most.
# Late is the post's gate on the mean: a queue that a burst leaves for some seconds is none.
QUEUE_SHARE: Final = 0.7
QUEUE_TTFT_SECONDS: Final = 30.0
QUEUE_FIRST_TOKENS: Final = 3
QUEUE_WAITING: Final = 3

# Prefetches of the last minute that ended after their lookup was given up.
GIVE_UP_WINDOW_SECONDS: Final = 60.0
GIVE_UP_PREFETCHES: Final = 3
GIVE_UP_SHARE: Final = 0.1

# The engine's utilisation: up to 0.6 a queue of hits waits less than a load on average. It is the
# trend that warns: even the slower bound of its slope reaches 1 within half an hour, for 3 minutes.
RHO_WARNING: Final = 0.6
RHO_WINDOW_SECONDS: Final = 900.0
RHO_SHORT_WINDOW_SECONDS: Final = 300.0  # a long calm before hides what began some minutes ago
RHO_TO_ONE_SECONDS: Final = 1800.0
RHO_HELD_SECONDS: Final = 180.0
RHO_CONFIDENCE: Final = 0.90

# What the tier gives one prompt is read off large loads that were alone, and several of them.
BREAK_EVEN_CHUNKS: Final = 16
BREAK_EVEN_LOADS: Final = 5
