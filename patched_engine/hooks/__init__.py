"""Where the page is written from: hooks on LMCache, torch.distributed and vLLM, never on the lab.

Instrumenting is separate from patching: it changes no result and works on a stock engine.
"""

from __future__ import annotations
