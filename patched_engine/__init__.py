"""What runs inside the vLLM processes: hooks that write the page, patches that remove a stall."""

from __future__ import annotations

from patched_engine.instrument import install, status
from patched_engine.request_log import requests

__all__ = ["install", "requests", "status"]
