"""`runbook NAME --run`: each step reads what it says, and turns when its evidence is turned."""

from __future__ import annotations

import json
import re

import pytest

from runbooks import checks
from runbooks.checks import Context, run_page
from runbooks.cli import exit_codes
from runbooks.library import Page, load_page, page_names
from runbooks.steps import PageFault, mends, steps
from tests.runbooks.command_line import stallscope

PAGES = [load_page(name) for name in page_names()]
STEPS = [(page, step) for page in PAGES for step in steps(page)]


def finding(name, **changes):
    return {
        "id": name,
        "severity": "critical",
        "rank": 1,
        "summary": "it is there",
        "evidence": [],
        "cause": "",
        "symptoms": [],
        "values": {"PID": "4711", "SHARD_HOST": "v-1", "SHARD_PORT": "6379"},
        **changes,
    }


class Said:
    """Answers of the commands: of diagnose and trace, of stacks, and of everything else."""

    def __init__(self, findings=(), rules=(), patches=None, frames=(), printed="", code=0):
        self.judged = {
            "findings": list(findings),
            "unseen": [],
            "seen": {"rules": list(rules), "patches": patches or {}},
        }
        threads = [{"name": "MainThread", "frames": [{"function": f} for f in frames]}]
        self.stacks = {"processes": [{"rank": 1, "threads": threads}] if frames else []}
        self.printed, self.code = printed, code
        self.ran = []

    def __call__(self, command):
        self.ran.append(command)
        if command[:2] == ("stallscope", "stacks"):
            return 0, json.dumps(self.stacks)
        if command[0] == "stallscope" and "--json" in command:
            return 0, json.dumps(self.judged)
        return self.code, self.printed


def look(said, **values):
    known = {"PROFILE": "rank0.json", "STALLSCOPE_DIR": "/pages", "POD": "p", "NODE": "n"}
    known |= {"EXPORTER_URL": "http://e", "KEY": "k", "TRACER_PID": "1", **values}
    return Context("/pages", ("redis://v-1:6379",), known, said)


def matching(pattern):
    """A text that the pattern of a step finds."""
    for text in (
        "evicted_keys:17",
        "HW Slowdown : Active",
        "Xid 79",
        "connected_clients:12",
        "native socket of resp",
        "missing_folder",
        "STALLSCOPE_DIR=/x",
        "patched_engine plugin",
        "stallscope: no page: it failed",
        "State:  T (stopped)",
        "OOMKilled Error",
        "nr_throttled 5",
        "gdb",
        "cmdstat_get:calls=9",
        "Connection refused",
        " 17 T do_signal",
        '"save_only_first_rank": false',
        "--bucket 30",
        "in tick recv",
        "received None chunk_count",
        "Double free occurred",
        "PYTHONHASHSEED=0",
        "db0:keys=5",
        "degraded mode",
        "Releasing expired KV blocks",
        "connection refused: failed",
    ):
        if re.search(pattern, text, re.MULTILINE | re.IGNORECASE):
            return text
    raise AssertionError(f"no text here matches {pattern!r}: add one")


def spoken(page, step, is_so):
    """What is seen where the step's evidence speaks for the fault, or against it."""
    own = finding(page.name)
    rules = [page.name, step.argument]
    match step.reads:
        case "finding" | "no-finding":
            wanted = is_so if step.reads == "finding" else not is_so
            listed = [finding(step.argument or page.name)] if wanted else []
            return Said([*listed, *([own] if step.argument else [])], rules)
        case "cause":
            return Said([finding(page.name, cause=step.argument if is_so else "other")], rules)
        case "evidence":
            figure = {"name": step.argument, "limit": 2.0, "value": 3.0 if is_so else 1.0}
            return Said([finding(page.name, evidence=[{**figure, "text": "so much"}])], rules)
        case "patch":
            state = "applied" if is_so else "refused"
            return Said([own], rules, {step.argument: [state]})
        case "stack":
            name = step.argument.lstrip("^(").split("|")[0].rstrip(")")
            return Said([own], rules, frames=[name if is_so else "idle"])
        case "output" | "no-output":
            wanted = is_so if step.reads == "output" else not is_so
            return Said([own], rules, printed=matching(step.argument) if wanted else "~")
    raise AssertionError(step.reads)


@pytest.mark.parametrize(("page", "step"), STEPS, ids=lambda x: getattr(x, "name", str(x)[:30]))
def test_inverting_the_evidence_of_a_step_flips_it(page: Page, step) -> None:
    assert checks.check(step, page, look(spoken(page, step, True))).outcome == "pass"
    assert checks.check(step, page, look(spoken(page, step, False))).outcome == "fail"


@pytest.mark.parametrize(("page", "step"), STEPS, ids=lambda x: getattr(x, "name", str(x)[:30]))
def test_what_cannot_be_seen_decides_nothing(page: Page, step) -> None:
    broken = checks.check(step, page, look(lambda command: (127, "sh: 1: not found")))
    assert broken.outcome == "unknown"
    assert broken.said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_has_steps_and_mitigations_that_hang_together(page: Page) -> None:
    numbers = [step.number for step in steps(page)]
    first = 0 if page.is_finding else 1
    assert numbers == list(range(first, first + len(numbers)))
    assert len([n for n in numbers if n]) >= 1
    assert mends(page)
    for mend in mends(page):
        if mend.condition.startswith("step"):
            assert int(mend.condition.split()[1]) in numbers
        assert "<!--" not in mend.text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_healthy_system_needs_no_mend(page: Page) -> None:
    said = Said([], [page.name], printed="~")
    if not page.is_finding:
        said = spoken(page, steps(page)[0], False)
    done = run_page(page, look(said))
    assert (done.verdict, done.mends) == ("not there", ())


def test_the_mend_of_its_cause_comes_first_and_those_of_others_not_at_all() -> None:
    page = load_page("shard-down")
    for cause, word in (("timeout", "signal"), ("connection_refused", "ended")):
        done = run_page(page, look(Said([finding(page.name, cause=cause)], [page.name])))
        assert done.verdict == "there"
        assert word in done.mends[0].text
        assert [m.condition for m in done.mends[1:]] == ["always", "always"]


def test_a_mend_may_hang_on_a_step() -> None:
    page = load_page("straggler-rank")
    said = Said([finding(page.name)], [page.name], frames=["store"])
    assert "store" in run_page(page, look(said)).mends[0].text
    said = Said([finding(page.name)], [page.name], frames=["idle"])
    assert not any("step 1" in m.condition for m in run_page(page, look(said)).mends)


def test_a_symptom_under_another_finding_is_found() -> None:
    page = load_page("lookup-timeouts")
    cause = finding("stuck-lookup", symptoms=[finding(page.name)])
    assert run_page(page, look(Said([cause], [page.name, "stuck-lookup"]))).verdict == "there"


def test_an_abstaining_rule_is_no_healthy_system() -> None:
    said = Said([], [])
    said.judged["unseen"] = [{"source": "store-skew", "detail": "too few chunks"}]
    done = run_page(load_page("store-skew"), look(said))
    assert (done.verdict, done.results[0].said) == ("cannot tell", "too few chunks")


def test_one_look_serves_all_steps() -> None:
    said = Said([finding("lookup-timeouts")], ["lookup-timeouts", "stuck-lookup"])
    run_page(load_page("lookup-timeouts"), look(said))
    assert len([c for c in said.ran if c[:2] == ("stallscope", "diagnose")]) == 1


def test_a_variable_that_nobody_knows_is_by_hand() -> None:
    page = load_page("shard-down")
    context = Context("/pages", (), {}, Said([finding(page.name)], [page.name]))
    by_hand = run_page(page, context).results[2]
    assert (by_hand.outcome, "$POD" in by_hand.said) == ("unknown", True)


def test_a_profile_is_asked_for() -> None:
    context = Context(None, (), {}, Said())
    done = run_page(load_page("idle-gpu"), context)
    assert (done.verdict, "--set PROFILE" in done.results[0].said) == ("cannot tell", True)


def test_passwords_are_not_shown() -> None:
    assert "secret" not in checks.shown(("stallscope", "--valkey", "redis://u:secret@h:1"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1. What?\n", "does not say what is read"),
        ("1. What?\n   <!-- reads: nonsense x -->\n", "does not say what is read"),
        ("1. What?\n   <!-- reads: cause -->\n", "reads cause of nothing"),
    ],
)
def test_a_page_that_cannot_be_read_says_where(text, why) -> None:
    page = Page("x", "x", {"Diagnosis": text, "Mitigation": "- mend <!-- if: never -->"}, "")
    with pytest.raises(PageFault, match=why):
        steps(page)
    with pytest.raises(PageFault, match="'never' is no condition"):
        mends(page)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--run",), "needs the page's name"),
        (("store-skew", "--from", "/x"), "go with --run"),
        (("store-skew", "--run", "--set", "pod"), "write it like POD="),
    ],
)
def test_bad_input_is_one_line(arguments, why) -> None:
    run = stallscope("runbook", *arguments)
    assert run.code == exit_codes.USAGE
    assert why in run.line()


def test_a_folder_that_is_not_there_cannot_be_told(tmp_path) -> None:
    run = stallscope("runbook", "store-skew", "--run", "--from", tmp_path / "none", "--json")
    assert run.code == exit_codes.UNSEEN
    told = json.loads(run.out)
    assert told["verdict"] == "cannot tell"
    assert "no such folder" in told["steps"][0]["said"]
