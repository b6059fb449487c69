"""docs/patches.md says what the registry says, of every patch, and names tests that exist."""

from __future__ import annotations

import re

from patched_engine.patches import PATCHES
from patched_engine.patches.table import NOTES, table
from tests.patched_engine.patches.programs import ROOT

PAGE = ROOT / "docs" / "patches.md"


def test_the_page_has_the_table_of_the_registry():
    text = PAGE.read_text()
    found = re.search(r"<!-- made by .* -->\n(.*?)\n<!-- end -->", text, re.S)
    assert found and found.group(1) == table(PATCHES), "python -m patched_engine.patches.table"


def test_every_patch_is_told_and_its_tests_are_there():
    assert set(NOTES) == {patch.name for patch in PATCHES}
    for note in NOTES.values():
        for path in re.findall(r"tests/[\w/.]+", note.shown_by):
            assert (ROOT / path).exists(), path


def test_the_readme_names_the_page_and_the_switch():
    text = (ROOT / "README.md").read_text()
    assert (
        "docs/patches.md" in text and "STALLSCOPE_PATCHES" in text and "stallscope doctor" in text
    )
