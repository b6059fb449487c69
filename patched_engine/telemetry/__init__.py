"""What one operation of the engine looks like to a profiler (NVTX) and to a tracer (OpenTelemetry).

Beside the page and independent of it: either works where the other could not be had. A hook asks
`ranges.domain` and `spans.outbox`; where both are None nothing is imported and nothing is done.
"""

from __future__ import annotations

from patched_engine.telemetry import ranges, spans


def wanted() -> bool:
    """Whether the environment asks for ranges or spans: then the hooks are worth installing."""
    return spans.wanted() or ranges.wanted()


def start() -> None:
    """Called once it is known who this process is, before its engine serves. Never raises."""
    ranges.start()
    spans.start()
