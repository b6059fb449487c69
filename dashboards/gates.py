"""The limits on time to first token that a service is held to, and the alerts on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dashboards import foreign
from dashboards.durations import Scale
from dashboards.pages import TTFT_GATE as RUNBOOK
from dashboards.promql import pick
from dashboards.recording import (
    LONG_SECONDS,
    MODEL,
    SHORT_SECONDS,
    TTFT_LIMITS_SECONDS,
    le,
    share_over,
    ttft_count,
    ttft_mean,
    ttft_over,
)
from dashboards.rule_model import Alert, AlertSeverity

LEAST_REQUESTS: Final = 50
_KEEP_SECONDS: Final = 300
# From here on an error budget is small enough for a burn rate to mean something: at an objective
# of 90% even all requests over the limit burn ten times the budget, below the factors in use.
BURN_OBJECTIVE: Final = 0.98


@dataclass(frozen=True, slots=True)
class Gate:
    """A share `objective` of the requests must have their first token within a limit."""

    name: str
    objective: float
    limit_seconds: float

    @property
    def allowed_share(self) -> float:
        return round(1 - self.objective, 9)


# The limits of the post's benchmark: P50 under 30 s, P90 under 70 s, and the mean under 30 s.
GATES: Final = (Gate("P50", 0.5, 30.0), Gate("P90", 0.9, 70.0))
MEAN_LIMIT_SECONDS: Final = 30.0
# Windows for a 30-day budget, in use since Sloth: (factor, short window, long window, severity).
_BURN_WINDOWS: Final[tuple[tuple[float, float, float, AlertSeverity], ...]] = (
    (14.4, 300, 3_600, "critical"),
    (6.0, 1_800, 21_600, "critical"),
    (3.0, 7_200, 86_400, "warning"),
    (1.0, 21_600, 259_200, "warning"),
)


def gate_alerts(scale: Scale, gates: tuple[Gate, ...] = GATES) -> Iterator[Alert]:
    """Shares over a limit on both windows together, the mean, and buckets that are missing."""
    enough = f"({ttft_count(LONG_SECONDS)} >= {LEAST_REQUESTS})"
    for gate in gates:
        if gate.objective >= BURN_OBJECTIVE:
            yield from _burn_rates(gate, scale)
            continue
        allowed = f"{gate.allowed_share:g}"
        yield Alert(
            name=f"StallscopeTtft{gate.name}Missed",
            expr=(
                f"{ttft_over(gate.limit_seconds, SHORT_SECONDS)} > {allowed} and "
                f"{ttft_over(gate.limit_seconds, LONG_SECONDS)} > {allowed} and {enough}"
            ),
            for_seconds=0,  # an hour of requests has decided it already
            keep_seconds=_KEEP_SECONDS,
            severity="critical",
            summary=f"TTFT {gate.name} of {{{{ $labels.model_name }}}} over "
            f"{gate.limit_seconds:g} s",
            description=(
                "{{ $value | humanizePercentage }} of the requests of the last 5 minutes, and too "
                f"many of the last hour, waited longer than {gate.limit_seconds:g} s for their "
                f"first token; {gate.allowed_share:.0%} may. The findings beside this alert say "
                "what stalls."
            ),
            runbook=RUNBOOK,
        )
    yield Alert(
        name="StallscopeTtftMeanMissed",
        expr=(
            f"{ttft_mean(SHORT_SECONDS)} > {MEAN_LIMIT_SECONDS:g} and "
            f"{ttft_mean(LONG_SECONDS)} > {MEAN_LIMIT_SECONDS:g} and {enough}"
        ),
        for_seconds=0,
        keep_seconds=_KEEP_SECONDS,
        severity="critical",
        summary=f"Mean TTFT of {{{{ $labels.model_name }}}} over {MEAN_LIMIT_SECONDS:g} s",
        description=(
            "The mean time to first token is {{ $value | humanizeDuration }} over 5 minutes, and "
            f"over {MEAN_LIMIT_SECONDS:g} s over the last hour."
        ),
        runbook=RUNBOOK,
    )
    for limit in TTFT_LIMITS_SECONDS:
        yield Alert(
            name="StallscopeGateBlind",
            expr=(
                f"count by ({MODEL}) ({foreign.TTFT_COUNT} unless ignoring (le) "
                f"{pick(foreign.TTFT_BUCKET, le(limit))})"
            ),
            for_seconds=600,
            keep_seconds=0,
            severity="warning",
            summary=f"No TTFT bucket at {limit:g} s for {{{{ $labels.model_name }}}}",
            description=(
                f"{{{{ $value }}}} engines of {{{{ $labels.model_name }}}} have no TTFT bucket at "
                f"{limit:g} s, so their requests are in no gate on it. Give vLLM buckets that "
                "include it."
            ),
            runbook=RUNBOOK,
            labels={"limit": f"{limit:g}s"},
        )


def _burn_rates(gate: Gate, scale: Scale) -> Iterator[Alert]:
    """Both windows burn the error budget faster than a factor. One that no share of requests can
    reach is left out."""
    for factor, short_seconds, long_seconds, severity in _BURN_WINDOWS:
        share = factor * gate.allowed_share
        if share >= 1:
            continue
        parts = []
        for seconds in (short_seconds, long_seconds):
            window = scale.text(seconds)
            parts.append(f"{share_over(gate.limit_seconds, window)} > {share:g}")
        yield Alert(
            name=f"StallscopeTtft{gate.name}Burn",
            expr=" and ".join(f"({part})" for part in parts),
            for_seconds=0,
            keep_seconds=_KEEP_SECONDS,
            severity=severity,
            summary=f"TTFT {gate.name} of {{{{ $labels.model_name }}}} burns its budget",
            description=(
                f"Requests over {gate.limit_seconds:g} s use up the error budget {factor:g} times "
                "as fast as it comes in."
            ),
            runbook=RUNBOOK,
            labels={"window": Scale().text(long_seconds)},
        )
