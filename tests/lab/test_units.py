"""The lab's parts that need no engine: streams, expected bytes, stamps, settings, incidents."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest

from lab import incidents, report, streams, text, valkey
from lab.incidents import INCIDENTS
from lab.lookups import Lookups
from lab.losses import PendingTable
from lab.processes import Household, StopSignals
from lab.run import Outcome
from lab.settings import Settings, SettingsError
from lab.stamps import Stamps, join, read_arrived_ns


def test_streams_are_the_seeds_and_open_loop() -> None:
    settings = Settings(seconds=60, seed=4)
    first, again = streams.load(settings), streams.load(settings)
    assert first == again
    assert first != streams.load(Settings(seconds=60, seed=5))
    arrivals = [request.arrival_seconds for request in first]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] < 60
    stretched = streams.load(Settings(seconds=60, seed=4, time_scale=2.0))
    assert [r.arrival_seconds for r in stretched] == [2 * a for a in arrivals][: len(stretched)]


@pytest.mark.parametrize("hit_rate", [0.0, 0.3, 0.9])
def test_the_synthetic_stream_repeats_what_it_says(hit_rate: float) -> None:
    requests = streams.load(Settings(seconds=600, hit_rate=hit_rate))
    seen: set[int] = set()
    repeated = total = 0
    for request in requests:
        repeated += sum(512 for block in request.block_ids if block in seen)
        total += request.length_tokens
        seen.update(request.block_ids)
    assert repeated / total == pytest.approx(hit_rate, abs=0.05)


def test_mooncake_rows(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 3000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 2]},
        {"timestamp": 9000, "input_length": 512, "output_length": 5, "hash_ids": [0]},
    ]
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    settings = Settings(requests_file=str(path), seconds=4, time_scale=0.5)
    first, second = streams.load(settings)
    assert (first.length_tokens, first.block_ids) == (700, (0, 1))
    assert second.arrival_seconds == 1.5


@pytest.mark.parametrize(
    ("content", "said"),
    [('{"timestamp": 0}', "line 1"), ("not json", "line 1"), ("", "no request arrives")],
)
def test_a_file_that_holds_no_requests(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(content)
    with pytest.raises(SettingsError, match=said):
        streams.load(Settings(requests_file=str(path)))


def test_a_missing_file() -> None:
    with pytest.raises(SettingsError, match="No such file"):
        streams.load(Settings(requests_file="/nowhere/at/all"))


def test_settings_survive_the_way_to_a_process() -> None:
    settings = Settings(ranks=3, incident="slow-rank", seconds=1.5)
    assert Settings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"ranks": 1}, "--ranks"),
        ({"ranks": 9}, "--ranks"),
        ({"shards": 0}, "--shards"),
        ({"seconds": 0.0}, "--seconds"),
        ({"hit_rate": 1.5}, "--hit-rate"),
        ({"chunk_bytes": 1000}, "--chunk-bytes"),
        ({"l1_bytes": 1 << 20}, "--l1-memory"),
        ({"prefill_rate": -1.0}, "--prefill-rate"),
        ({"prompt_tokens_low": 10, "prompt_tokens_high": 5}, "--prompt-tokens"),
        ({"time_scale": 0.0}, "--time-scale"),
    ],
)
def test_values_that_cannot_be_run(changed: dict[str, Any], flag: str) -> None:
    with pytest.raises(SettingsError, match=flag):
        Settings(**changed).check()


def test_rates_are_scaled_by_the_ranks() -> None:
    assert Settings(ranks=8).scaled_prefill_rate == 53_000
    assert Settings(ranks=2).scaled_prefill_rate == 13_250
    assert Settings(ranks=2, prefill_rate=7.0).scaled_prefill_rate == 7.0


def test_stamps_charge_the_last_to_arrive() -> None:
    # Rank 1 is 3 s late once, rank 0 1 s late once.
    joined = join([[0, 21_000_000_000], [3_000_000_000, 20_000_000_000], [0, 20_000_000_000]])
    assert joined.collectives == 2
    assert joined.wait_seconds == (3.0, 1.0, 4.0)
    assert joined.charged_seconds == (2.0, 6.0, 0.0)
    assert joined.last_count == (1, 1, 0)


def test_stamps_are_on_file_at_once(tmp_path: Path) -> None:
    stamps = Stamps(tmp_path, 3)
    for _ in range(2):
        stamps.arrive()
        stamps.leave()
    stamps.arrive()  # entered and never left
    arrived = read_arrived_ns(tmp_path, 3)
    assert len(arrived) == 2
    assert arrived[0] < arrived[1]
    assert read_arrived_ns(tmp_path, 4) == []


def test_incidents_act_on_a_rank_of_the_seed() -> None:
    slow = INCIDENTS["slow-rank"]
    ranks = collections.Counter(slow.rank(Settings(seed=seed)) for seed in range(200))
    assert set(ranks) == {0, 1, 2, 3}
    assert slow.rank(Settings(seed=7)) == slow.rank(Settings(seed=7))
    assert INCIDENTS["rank0-store"].rank(Settings(seed=7)) == 0
    for name, incident in INCIDENTS.items():
        assert incident.name == name
        assert incident.summary
        assert incident.finding
    assert incidents.get("") is None


@pytest.mark.parametrize(
    ("hit", "loaded", "equal", "answer"),
    [
        (512, (512, 512), True, True),
        (512, (512, 256), True, False),
        (512, (512, 512), False, False),
        (0, (0, 0), True, False),
    ],
)
def test_bytes_equal(hit: int, loaded: tuple[int, ...], equal: bool, answer: bool) -> None:
    row = {"hit_tokens": hit, "loaded_tokens": loaded, "bytes_equal": equal}
    assert report.bytes_equal([row]) is answer
    assert report.bytes_equal([]) is False


def test_valkey_chooses_again_when_its_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as taken, StopSignals() as stop, Household() as household:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.getsockname()[1]]
        free_port = valkey.free_port
        monkeypatch.setattr(
            valkey, "free_port", lambda hosts: ports.pop() if ports else free_port(hosts)
        )
        server = valkey.start(household, stop, valkey.find_server(""), 0, 64 << 20)
        assert server.port != taken.getsockname()[1]
        with server.client() as client:
            assert client.config_get("maxmemory*")["maxmemory-policy"] == "allkeys-lru"
            assert client.config_get("save")["save"] == ""
    assert not household.folder.exists()


def test_a_server_that_does_not_start() -> None:
    with (
        StopSignals() as stop,
        Household() as household,
        pytest.raises(valkey.ValkeyError, match="does not start"),
    ):
        valkey.start(household, stop, "/bin/false", 0, 64 << 20)


def test_a_run_without_a_page_has_seen_nothing_rather_than_found_nothing(tmp_path: Path) -> None:
    from detectors import ALL_RULES
    from exporters.evaluator import Evaluator

    evaluator = Evaluator(tmp_path, rules=ALL_RULES)
    outcome = Outcome(Settings(), [], str(tmp_path), evaluation=evaluator.tick(), wall_seconds=1.0)
    evaluator.close()
    outcome.scheduler = dict.fromkeys(
        ("unfinished", "lookups", "lookup_timeouts", "stalled_steps", "steps", "busy_seconds"), 0
    ) | {"requests": [], "unfinished_arrival_seconds": []}
    outcome.arrived_ns = [[]] * 4
    built = report.build(outcome)
    assert built["findings"] == []
    assert built["unseen"] == [f"no page in {tmp_path}"]
    assert "nothing found, but not all was seen" in text.render(built)


def test_a_completion_that_nobody_waits_for_is_a_lost_one() -> None:
    lost: list[int] = []
    table = PendingTable({1: ("future", "batch_exists", ())}, lambda: lost.append(1))
    table[2] = ("future", "batch_get", ())
    assert table.pop(2, None)[1] == "batch_get"
    assert (table.pop(1, None)[1], table.exists_calls, lost) == ("batch_exists", 1, [])
    assert table.pop(3, None) is None
    assert (table.exists_calls, lost) == (2, [1])


class Answers:
    """A lookup client that answers as LMCache's do, in this order."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)
        self.cleared: list[str] = []
        self.aborted_lookups: set[str] = set()

    def lookup_cache(self, lookup_id: str) -> int | None:
        return self.answers.pop(0)

    def lookup(self, tokens: list[int], lookup_id: str) -> int | None:
        return self.answers.pop(0)

    def clear_lookup_status(self, lookup_id: str) -> None:
        self.cleared.append(lookup_id)


def test_an_asynchronous_lookup_is_asked_until_it_answers() -> None:
    request = streams.Request("s0", 0.0, 1024, (1, 2))
    client = Answers(-1, None, None, 512)
    lookups = Lookups(client)
    assert [lookups.ask(request) for _ in range(3)] == [None, None, 512]
    assert lookups.take(request) >= 0
    assert (lookups.calls, lookups.timeouts, client.cleared) == (1, 0, ["s0"])


def test_a_lookup_that_was_given_up_counts_as_a_timeout() -> None:
    request = streams.Request("s0", 0.0, 1024, (1, 2))
    client = Answers(-1, None, 0)
    client.aborted_lookups.add("s0")
    lookups = Lookups(client)
    assert [lookups.ask(request) for _ in range(2)] == [None, 0]
    assert (lookups.calls, lookups.timeouts) == (1, 1)


def test_an_unknown_server() -> None:
    with pytest.raises(SettingsError, match="no such program"):
        valkey.find_server("/nowhere/valkey-server")


def test_an_incident_that_never_began_is_said_to_be_none() -> None:
    said = text.stock_faults(
        {
            "incident": "missing-key",
            "incident_seconds": None,
            "lookups": 0,
            "stock_faults": {"lost_completions": 0, "lookup_timeouts": 0, "stalled_steps": 0},
        }
    )
    assert len(said) == 1
    assert "missing-key never began" in said[0]
