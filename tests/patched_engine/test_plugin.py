"""The plugin's entry point: nothing without its switches, and never an error into vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def register(code: str, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STALLSCOPE_")}
    result = subprocess.run(
        [sys.executable, "-c", f"from patched_engine.plugin import register\n{code}"],
        cwd=ROOT,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_without_a_switch_it_touches_nothing() -> None:
    code = """
register()
import sys
from patched_engine import status
print([m for m in ("torch", "lmcache", "vllm", "triton") if m in sys.modules])
print(status()["hooks"], status()["faults"])
"""
    assert register(code).splitlines() == ["[]", "{} {}"]


def test_a_folder_installs_the_hooks_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
register(); register()
import torch.distributed
from patched_engine import status
print(status()["hooks"]["torch.distributed.distributed_c10d.all_gather"], status()["faults"])
"""
    assert register(code, STALLSCOPE_DIR=str(tmp_path)) == "attached {}"


def test_a_broken_patch_is_counted_and_not_raised() -> None:
    code = """
import sys
sys.modules["patched_engine.kernels"] = None
register()
from patched_engine import status
print(status()["faults"])
"""
    assert register(code, STALLSCOPE_ACTIVATION_KERNEL="1") == "{'activation kernel': 1}"
