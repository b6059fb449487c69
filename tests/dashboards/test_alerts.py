"""promtool runs the shipped rules over histories: each alert fires, and each stays silent."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import yaml

from dashboards import generate
from dashboards.durations import Scale
from dashboards.gates import Gate, gate_alerts
from dashboards.model import Links
from dashboards.rule_files import RUNBOOK_BASE, build
from tests.dashboards import alert_cases
from tests.dashboards.alert_cases import STEP_SECONDS, Case
from tests.prometheus_binary import programs

RULES = generate.FOLDER / generate.RULES_FILE
# Cases by the group of rules they try; each run evaluates that group, and what it reads, alone.
BY_GROUP = {
    "stallscope-findings": (alert_cases.finding_cases(), 15),
    "stallscope-gates": (alert_cases.gate_cases(), 150),
    "stallscope-fleet": (alert_cases.fleet_cases(), 30),
}
CASES = [case for cases, _ in BY_GROUP.values() for case in cases]
FINDING_ALERTS = {case.alert for case in BY_GROUP["stallscope-findings"][0]}
RECORDING = "stallscope-recording"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}


def firing(labels: dict[str, str]) -> str:
    inside = ", ".join(f'{k}="{v}"' for k, v in sorted(labels.items()))
    return f"ALERTS{{{inside}}}"


def as_test(case: Case) -> dict:
    """What promtool is given. ALERTS, unlike its own kind of test, leaves the annotations out."""
    asked = f'ALERTS{{alertname="{case.alert}", alertstate="firing"}}'
    common = {"alertname": case.alert, "alertstate": "firing"}
    expected = [{"labels": firing({**common, **x}), "value": 1} for x in case.firing]
    return {
        "name": f"{case.alert}: {case.why}",
        "interval": f"{STEP_SECONDS}s",
        "input_series": [{"series": k, "values": v} for k, v in case.series.items()],
        "promql_expr_test": [
            {"expr": asked, "eval_time": f"{case.minute * 60:g}s", "exp_samples": expected}
        ],
    }


def merged(cases: list[Case]) -> list[dict]:
    """Cases of unlike alerts whose series do not meet are one history: promtool is quicker so."""
    found: dict[tuple[str, ...], dict] = {}
    for case in cases:
        test = as_test(case)
        names = {row["series"] for row in test["input_series"]}
        key = (case.why,) if case.alert in FINDING_ALERTS else (case.alert, case.why)
        into = found.setdefault(key, {**test, "input_series": [], "promql_expr_test": []})
        assert not names & {row["series"] for row in into["input_series"]}
        into["input_series"] += test["input_series"]
        into["promql_expr_test"] += test["promql_expr_test"]
    return list(found.values())


def only(folder, *names: str):
    """A rule file with these groups of the shipped one."""
    path = folder / f"{names[-1]}.yaml"
    chosen = [{k: v for k, v in g.items() if k != "interval"} for g in GROUPS if g["name"] in names]
    path.write_text(json.dumps({"groups": chosen}))
    return path


def promtool(
    folder, rules, tests: list[dict], seconds: int = 15
) -> subprocess.CompletedProcess[str]:
    path = folder / "tests.yaml"
    order = [group["name"] for group in yaml.safe_load(rules.read_text())["groups"]]
    path.write_text(
        json.dumps(
            {
                "rule_files": [str(rules)],
                "evaluation_interval": f"{seconds}s",
                "group_eval_order": order,
                "tests": tests,
            }
        )
    )
    asked = [programs()[1], "test", "rules", str(path)]
    return subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("group", BY_GROUP)
def test_every_alert_fires_and_stays_silent_where_it_must(tmp_path, group):
    cases, seconds = BY_GROUP[group]
    rules = only(tmp_path, *([] if group == "stallscope-findings" else [RECORDING]), group)
    done = promtool(tmp_path, rules, merged(cases), seconds)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_of_either_kind():
    for name in ALERTS:
        mine = [case for case in CASES if case.alert == name]
        assert any(case.firing for case in mine), name
        assert any(not case.firing for case in mine) or name == "StallscopeWatchdog", name


def test_a_wrong_expectation_fails(tmp_path):
    case = CASES[0]
    silent = Case(case.alert, case.why, case.series, case.minute)
    done = promtool(tmp_path, RULES, [as_test(silent)])
    assert done.returncode == 1 and "FAILED" in done.stdout + done.stderr


def test_promtool_accepts_the_rules_at_every_scale(tmp_path):
    for factor in (1, 0.02, 3):
        path = tmp_path / f"{factor}.yaml"
        path.write_text(json.dumps(build(Scale(factor), Links(RUNBOOK_BASE))))
        done = subprocess.run(
            [programs()[1], "check", "rules", "--lint=all", "--lint-fatal", str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_annotations_as_a_person_reads_them(tmp_path):
    case = next(c for c in CASES if c.alert == "StallscopeStragglerRank" and c.firing)
    series = [{"series": k, "values": v} for k, v in case.series.items()]
    alert = {
        "eval_time": "3m",
        "alertname": case.alert,
        "exp_alerts": [
            {
                "exp_labels": case.firing[0],
                "exp_annotations": {
                    "summary": "straggler-rank on engine e, rank 3",
                    "description": "The exporter finds straggler-rank (critical) on engine e, rank "
                    "3 in n. In the pod, `stallscope diagnose` shows the evidence and the next "
                    "command.",
                    "runbook": "stallscope runbook straggler-rank",
                    "runbook_url": f"{RUNBOOK_BASE}/straggler-rank.md",
                },
            }
        ],
    }
    tests = [{"interval": "30s", "input_series": series, "alert_rule_test": [alert]}]
    done = promtool(tmp_path, RULES, tests)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_burn_rate_of_a_strict_gate_fires(tmp_path):
    """No shipped gate is strict enough for one; a site's own may be."""
    rules = [a.build(Scale(), "") for a in gate_alerts(Scale(), (Gate("P99", 0.99, 30.0),))]
    burns = [rule for rule in rules if rule["alert"] == "StallscopeTtftP99Burn"]
    path = tmp_path / "burn.yaml"
    path.write_text(json.dumps({"groups": [{"name": GROUPS[0]["name"], "rules": burns}]}))
    labels = {**alert_cases.PAGE, "window": "1h"}
    fast = Case("StallscopeTtftP99Burn", "20% over", alert_cases.ttft(2, 0, 10, 9), 61, [labels])
    slow = Case("StallscopeTtftP99Burn", "none over", alert_cases.ttft(0, 0, 10, 9), 61)
    for case in (fast, slow):
        test = as_test(case)
        asked = test["promql_expr_test"][0]
        asked["expr"] = asked["expr"].replace("}", ', window="1h"}')
        done = promtool(tmp_path, path, [test])
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ALERTS)
def test_a_template_names_only_labels_that_its_alert_has(name):
    rule = ALERTS[name]
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    mine = [case for case in CASES if case.alert == name and case.firing]
    assert used <= set(mine[0].firing[0]), name
