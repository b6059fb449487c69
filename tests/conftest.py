"""What every test starts from."""

from __future__ import annotations

import os

# Engines in tests are the shipped ones; a test of the patches switches on what it is about.
os.environ["STALLSCOPE_PATCHES"] = "none"
