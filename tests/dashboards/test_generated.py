"""The committed files are what the code builds, and scaling touches durations alone."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from dashboards import alertmanager, boards, generate, lint, rule_files
from dashboards.durations import Scale, ScaleError
from dashboards.finding_alerts import ONLY_INFO, SHARD_DOWN, alert_name, finding_alerts
from dashboards.gates import Gate, gate_alerts
from dashboards.model import Healthy, Links
from dashboards.recording import SERIES_A_POD, recordings
from detectors import ALL_RULES
from lab.incidents import INCIDENTS
from runbooks.library import page_names

LINKS = Links("https://runbooks.example.com")
DURATION = re.compile(r"^\d+(ms|s|m|h)$")
IN_QUERY = re.compile(r"(?<=offset )\d+(?:ms|s|m|h)|\[\d+(?:ms|s|m|h)\]|(?<=\], )[\d.]+(?=\))")


def test_the_committed_files_are_what_the_code_builds():
    assert generate.stale(generate.FOLDER, generate.files()) == []


def test_building_is_stable_and_sorted():
    assert generate.files() == generate.files()
    for name, text in generate.files().items():
        if name.endswith(".json"):
            assert (
                text
                == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            )


def test_a_file_that_differs_or_belongs_to_nothing_is_stale(tmp_path):
    wanted = generate.files()
    assert generate.stale(tmp_path, wanted) == sorted(wanted)
    assert generate.write(tmp_path, wanted) == list(wanted)
    assert generate.write(tmp_path, wanted) == []
    (tmp_path / "boards/old.json").write_text("{}")
    (tmp_path / generate.RULES_FILE).write_text("groups: []\n")
    assert generate.stale(tmp_path, wanted) == ["boards/old.json", generate.RULES_FILE]


def test_all_is_as_the_linter_wants_it():
    assert lint.offences(page_names()) == []


def without_durations(value):
    """The same with every duration blanked, whether a field of its own or inside a query."""
    if isinstance(value, dict):
        return {k: without_durations(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_durations(v) for v in value]
    if isinstance(value, str):
        return "D" if DURATION.match(value) else IN_QUERY.sub("D", value)
    return value


@pytest.mark.parametrize("factor", [0.02, 0.5, 3])
def test_a_time_scale_changes_durations_alone(factor):
    shipped = rule_files.build(Scale(), LINKS)
    scaled = rule_files.build(Scale(factor), LINKS)
    assert scaled != shipped
    assert without_durations(scaled) == without_durations(shipped)
    routes = alertmanager.build(Scale(factor)), alertmanager.build(Scale())
    assert without_durations(routes[0]) == without_durations(routes[1])


def test_durations_read_as_prometheus_writes_them():
    assert [Scale().text(s) for s in (300, 3600, 15, 0.5, 90)] == [
        "5m",
        "1h",
        "15s",
        "500ms",
        "90s",
    ]
    assert [Scale(0.02).text(s) for s in (300, 30, 0.01)] == ["6s", "600ms", "1ms"]
    for wrong in (0, -1, 1001, float("nan"), float("inf")):
        with pytest.raises(ScaleError):
            Scale(wrong)


def test_every_finding_has_an_alert_with_its_page():
    by_finding = {alert.runbook: alert for alert in finding_alerts()}
    assert set(by_finding) == {rule.name for rule in ALL_RULES} - {SHARD_DOWN} - ONLY_INFO
    assert set(by_finding) <= set(page_names())
    assert {alert_name(name) for name in by_finding} == {a.name for a in by_finding.values()}


def test_every_alert_leads_to_a_page_that_exists():
    built = rule_files.build(Scale(), LINKS)
    alerts = [rule for group in built["groups"] for rule in group["rules"] if "alert" in rule]
    for alert in alerts:
        if alert["labels"].get("severity") == "none":
            continue
        page = re.fullmatch(
            r"https://runbooks\.example\.com/(.+)\.md", alert["annotations"]["runbook_url"]
        )
        assert page is not None and page[1] in page_names(), alert["alert"]
        assert alert["annotations"]["runbook"] == f"stallscope runbook {page[1]}"


def test_long_storage_costs_at_most_twenty_series_a_pod():
    assert sum(rule.series_a_pod for rule in recordings(Scale())) <= SERIES_A_POD


def test_a_burn_rate_is_for_strict_objectives_only():
    lenient = [a.name for a in gate_alerts(Scale(), (Gate("P90", 0.9, 70.0),))]
    assert "StallscopeTtftP90Missed" in lenient
    assert not any(name.endswith("Burn") for name in lenient)
    strict = list(gate_alerts(Scale(), (Gate("P99", 0.99, 70.0),)))
    burns = [alert for alert in strict if alert.name == "StallscopeTtftP99Burn"]
    assert [a.severity for a in burns] == ["critical", "critical", "warning", "warning"]
    assert "> 0.144" in burns[0].expr and "[5m]" in burns[0].expr and "[1h]" in burns[0].expr


def test_the_rules_are_one_document_of_yaml():
    text = generate.files()[generate.RULES_FILE]
    assert yaml.safe_load(text) == rule_files.build(Scale(), Links(rule_files.RUNBOOK_BASE))


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_a_board_is_laid_out_without_overlap_and_says_what_it_shows(board):
    built = boards.build(board, LINKS)
    assert built["editable"] is False and built["id"] is None
    taken = set()
    for panel in built["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert "**Good:**" in panel["description"] and "`" in panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            for link in panel["links"]:
                assert (
                    link["url"].removeprefix(f"{LINKS.base}/").removesuffix(".md") in page_names()
                )
    ids = [panel["id"] for panel in built["panels"]]
    assert len(set(ids)) == len(ids)


def test_incidents_that_move_a_panel_are_the_labs():
    named = {name for b in boards.BOARDS for panel in b.panels() for name in panel.moves_in}
    assert named <= set(INCIDENTS)


def test_where_values_are_healthy():
    assert Healthy(high=1).holds(1) and not Healthy(high=1).holds(1.1)
    assert Healthy(low=1).holds(1) and not Healthy(low=1).holds(0)
    assert not Healthy(absent=True).holds(1)
    assert Healthy(high=3, absent=True).holds(2)
