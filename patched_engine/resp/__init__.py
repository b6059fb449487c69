"""A RESP client that cannot hang, lose or lie, for LMCache's data under its `resp://` setting."""

from __future__ import annotations

from patched_engine.resp.build import BuildError
from patched_engine.resp.choose import EngineStatus, status
from patched_engine.resp.client import RespClient
from patched_engine.resp.connection import ConnectError
from patched_engine.resp.deadlines import NO_DEADLINES, Deadlines
from patched_engine.resp.engine import Kind
from patched_engine.resp.results import KeyResult, Outcome
from patched_engine.resp.url import Endpoint, EndpointError, Tls, parse_endpoint

__all__ = [
    "NO_DEADLINES",
    "BuildError",
    "ConnectError",
    "Deadlines",
    "Endpoint",
    "EndpointError",
    "EngineStatus",
    "KeyResult",
    "Kind",
    "Outcome",
    "RespClient",
    "Tls",
    "parse_endpoint",
    "status",
]
