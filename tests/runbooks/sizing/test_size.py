"""`stallscope size` as a user runs it, and what its inputs refuse."""

from __future__ import annotations

import dataclasses
import json

import pytest

from exporters.snapshot import EngineModel, Operation, Snapshot
from runbooks.cli import exit_codes, main
from runbooks.sizing import inputs, live, plan, post
from runbooks.sizing.inputs import Value
from tests.detectors.pictures import engine, worker

SEEDS = "8"


def size(capsys, *arguments):
    """Exit code, standard output, standard error."""
    code = main.main(["size", "--seeds", SEEDS, *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def document(capsys, *arguments):
    code, out, err = size(capsys, "--json", *arguments)
    assert err == ""
    found = json.loads(out)
    assert found["exit_code"] == code
    return found


def test_the_posts_engine_with_one_shard(capsys):
    found = document(capsys)
    assert found["exit_code"] == exit_codes.CRITICAL
    assert found["break_even_bytes_per_second"] == pytest.approx(2.6e9, rel=0.02)
    chosen = found["chosen"]
    assert round(chosen["load_seconds"], 1) == 0.9
    assert round(chosen["rho"], 2) == 1.07
    assert not chosen["pays_off"]
    step = chosen["queues"]["in-step"]
    assert step["p99_seconds"]["low"] < step["p99_seconds"]["median"] < step["p99_seconds"]["high"]
    assert (found["least_shards_to_pay_off"], found["least_shards_for_rho"]) == (4, 2)


def test_the_posts_engine_with_eight(capsys):
    found = document(capsys, "--shards", "8")
    assert found["exit_code"] == exit_codes.OK
    assert round(found["chosen"]["load_seconds"] * 1e3) == 74
    assert round(found["chosen"]["rho"], 2) == 0.09
    assert found["chosen"]["pays_off"]
    assert found["chosen"]["queues"]["background"]["gave_up_share"]["median"] == 0


def test_every_input_names_its_source(capsys):
    found = document(capsys, "--rate", "0.5", "--shard-gbps", "1.5")["inputs"]
    assert found["rate"] == {"value": 0.5, "unit": "1/s", "source": "--rate"}
    assert found["prefill-rate"]["source"] == "the post"
    # A rate of one's own is not the post's, which was measured under load.
    assert found["loads-when-measured"]["value"] == 1
    assert set(found) == set(inputs.BY_FLAG)
    assert all(value["source"] for value in found.values())


def test_a_tier_below_break_even_that_keeps_up_is_a_warning(capsys):
    code, out, _ = size(capsys, "--rate", "0.1")
    assert code == exit_codes.WARNING
    assert out.startswith("NOT WORTH IT")
    assert "rho is 0.09 with loads inside the step, below the 0.6" in " ".join(out.split())


def test_a_faster_engine_needs_more_of_the_tier(capsys):
    slow = document(capsys, "--prefill-rate", "10000")
    assert slow["chosen"]["pays_off"]
    fast = document(capsys, "--prefill-rate", "1000000")
    assert fast["least_shards_to_pay_off"] is None


def test_the_text_is_for_a_person(capsys):
    code, out, err = size(capsys, "--shards", "8")
    assert (code, err) == (exit_codes.OK, "")
    assert max(map(len, out.splitlines())) <= 80 + 10  # a source may be longer
    for piece in (
        "PAYS OFF",
        "inputs",
        "by number of shards",
        "*8",
        "the post",
        "eight runs of ten",
    ):
        assert piece in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rate", "0"], "--rate must be a number above 0 up to 1e+06, not 0"),
        (["--rate", "nan"], "--rate must be a number above 0"),
        (["--rate", "inf"], "--rate must be a number above 0"),
        (["--rate", "x"], "--rate must be a number, not 'x'"),
        (["--ranks", "2.5"], "--ranks must be a whole number, not '2.5'"),
        (["--ranks", "100000"], "--ranks must be a whole number above 0 up to 1024"),
        (["--shards", "9"], "--shards 9 is more than the 8 ranks"),
        (["--prompt-tokens", "100"], "has no whole chunk of 256"),
        (["--slowdown", "-1"], "--slowdown must be a number from 0"),
        (["--seeds", "0"], "--seeds must be a whole number from 1 to 1000, not 0"),
        (["--requests", "20000", "--seeds", "1000"], "must be at most 400,000"),
        (["--plot", "x.gif"], "the name must end in .svg, .png or .pdf"),
        (["--plot", "/nowhere/x.svg"], "cannot be written: No such file or directory"),
        (["--from", "/nowhere"], "there is no folder /nowhere"),
        (["--from", "http://localhost:1"], "http://localhost:1"),
        (["--form", "x"], "there is no --form; did you mean --from?"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, says):
    code, out, err = size(capsys, *arguments)
    assert (code, out) == (exit_codes.USAGE, "")
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_a_plot_is_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    for name, begins in (("size.svg", b"<?xml"), ("size.png", b"\x89PNG")):
        code, _, err = size(capsys, "--requests", "60", "--plot", str(tmp_path / name))
        assert (code, err) == (exit_codes.CRITICAL, "")
        assert (tmp_path / name).read_bytes().startswith(begins)
    text = (tmp_path / "size.svg").read_text()
    for piece in ("break-even 2.57", "in-step, p99", "background, p50", "rho of 1 shard", "now"):
        assert piece in text


def test_no_folder_of_a_running_engine_is_said(capsys, tmp_path):
    code, out, _ = size(capsys, "--from", str(tmp_path))
    assert code == exit_codes.CRITICAL  # of the post's values, which the text says they are
    assert "value stands: no engine runs that has its pages in" in " ".join(out.split())
    code, _, _ = size(capsys, "--from", str(tmp_path), "--shards", "8")
    assert code == exit_codes.UNSEEN  # the post's values are no all-clear for this engine


def load(at):
    return Operation("load", at, at + 0.1, 4096, 16, 1, 0, "l2")


def live_engine(**changes):
    """An engine of two ranks with a shard each, ten minutes old."""
    info = {
        "chunk_tokens": 256,
        "shard_url": "resp://v-{rank}:1",
        "timeouts": {"lookup_seconds": 2.0},
    }
    counters = {"step_nanoseconds": 20 * 10**9, **changes.pop("counters", {})}
    operations = changes.pop("operations", tuple(load(float(i)) for i in range(6)))
    workers = tuple(
        worker(r, 2, info=info, counters=counters, operations=operations) for r in range(2)
    )
    scheduler = worker(
        0,
        2,
        page="s.page",
        roles=("scheduler",),
        started_seconds=0.0,
        counters={
            "requests_admitted": 120,
            "requests_hit_none": 100,
            "prompt_tokens": 100 * 8192,
            "scheduled_prefill_tokens": 500_000,
            **changes,
        },
    )
    made = dataclasses.replace(
        engine(2, processes=(*workers, scheduler)), model=EngineModel(token_bytes=48_000.0)
    )
    return made, Snapshot(600.0, 1.7e9, engines=(made,))


def test_a_running_engine_gives_its_inputs():
    found, missing = live.of_engine(*live_engine())
    assert missing == []
    assert found == {
        "ranks": 2,
        "shards": 2,
        "chunk-tokens": 256,
        "chunk-bytes": 48_000 * 256,
        "give-up": 2.0,
        "rate": 0.2,
        "prompt-tokens": 8192,
        "prefill-rate": 25_000,
        "shard-gbps": pytest.approx(4096 * 48_000 / 0.1 / 2 / 1e9),
    }
    values = {flag: Value(value, "pages") for flag, value in found.items()}
    made = plan.make(inputs.gather({"rate": 1.0}, values), 2)
    assert made.inputs["rate"].source == "--rate"  # a flag goes first
    assert made.inputs["ranks"].source == "pages"


@pytest.mark.parametrize(
    ("changes", "flag", "says"),
    [
        ({"requests_admitted": 29}, "rate", "lambda: 29 requests in 600 s"),
        ({"requests_hit_none": 3}, "prompt-tokens", "3 are done"),
        ({"counters": {"load_calls": 1}}, "prefill-rate", "loads and prefills cannot be told"),
        ({"counters": {"step_nanoseconds": 5}}, "prefill-rate", "hardly computed"),
        ({"operations": (load(1.0),)}, "shard-gbps", "1 loads of 16 chunks and more were alone"),
    ],
)
def test_what_is_not_seen_is_said_and_not_guessed(changes, flag, says):
    found, missing = live.of_engine(*live_engine(**changes))
    assert flag not in found
    [line] = missing
    assert says in line


def test_more_than_eight_shards_of_the_post_are_eighths_of_its_eight():
    found = inputs.gather({"ranks": 16}, {})
    each, loads, basis = plan.shard_rate(found, 16)
    assert (each * 8, loads) == (post.EIGHT_SHARDS_BYTES_PER_SECOND, 1)
    assert "post" in basis
    assert plan.shard_rate(found, 7)[0] == post.ONE_SHARD_BYTES_PER_SECOND
