"""Names of the runbook pages of alerts that are no findings; a finding's page is named after it."""

from __future__ import annotations

from typing import Final

EXPORTER_DOWN: Final = "exporter-down"
PAGE_MISSING: Final = "page-missing"
RHO_RISING: Final = "rho-rising"  # which is a finding too
TTFT_GATE: Final = "ttft-gate"
ALERT_PAGES: Final = frozenset((EXPORTER_DOWN, PAGE_MISSING, TTFT_GATE))
