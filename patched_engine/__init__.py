"""What runs inside the vLLM processes: hooks that write the page, patches that remove a stall."""

from __future__ import annotations

from patched_engine.instrument import install, status

__all__ = ["install", "status"]
