"""The alerts in PromQL proper, live: what one exporter and one vLLM say, and what is missing."""

from __future__ import annotations

import contextlib
import time

import pytest

from dashboards import preview
from dashboards.board_gates import GATES_BOARD
from dashboards.model import Panel
from tests.dashboards.soak.monitored import Prometheus, exporter, prometheus
from tests.dashboards.soak.scraped import served
from tests.prometheus_binary import programs
from tests.servers import free_port, valkey_server

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

VLLM = 'model_name="glm",engine="0"'
POD = "prefill-0"
RATE = 20  # requests a second: 50 of them in the hour of this scale, which is 72 s


class Vllm:
    """A vLLM whose requests take as long as is set."""

    def __init__(self, over_30: float, mean_seconds: float, bounds: tuple[str, ...]) -> None:
        self.over_30, self.mean_seconds, self.bounds = over_30, mean_seconds, bounds
        self.began = time.monotonic()

    def text(self) -> str:
        count = int((time.monotonic() - self.began) * RATE)
        within = {"30.0": count - int(count * self.over_30), "70.0": count, "+Inf": count}
        if self.over_30 > 0.5:
            within["70.0"] = within["30.0"]
        name = "vllm:time_to_first_token_seconds"
        rows = [f'{name}_bucket{{le="{le}",{VLLM}}} {within[le]}' for le in self.bounds]
        rows += [
            f"{name}_count{{{VLLM}}} {count}",
            f"{name}_sum{{{VLLM}}} {count * self.mean_seconds}",
            f"vllm:num_requests_running{{{VLLM}}} 1",
        ]
        return f"# TYPE {name} histogram\n" + "\n".join(rows) + "\n"


BOUNDS = ("30.0", "70.0", "+Inf")
GATES = {"StallscopeTtftP50Missed", "StallscopeTtftP90Missed", "StallscopeTtftMeanMissed"}


def unhealthy(server: Prometheus, panel: Panel) -> list[float]:
    """The values of a panel outside of its healthy range."""
    drawn = preview.ask(preview.Prometheus(server.url), panel, time.time(), 30, "6s", {})
    assert panel.healthy is not None and drawn.values(), panel.title
    return [value for value in drawn.values() if not panel.healthy.holds(value)]


def fired(server: Prometheus) -> set[str]:
    return {name for name, _ in server.fired()}


def test_gates_fire_while_requests_wait_and_not_while_they_do_not(tmp_path):
    slow, well = Vllm(0.9, 45, BOUNDS), Vllm(0.02, 8, BOUNDS)
    with contextlib.ExitStack() as stack:
        for name, state in (("slow", slow), ("well", well)):
            target = stack.enter_context(served(state.text, "vllm/vllm", POD))
            folder = tmp_path / name
            server = stack.enter_context(prometheus(programs()[0], folder, [target]))
            if name == "slow":
                for alert in GATES:
                    server.wait_for(alert, 60)
                slow_server = server
        time.sleep(40)
        assert fired(server) & GATES == set()
        for panel in GATES_BOARD.rows[0].panels:
            assert unhealthy(slow_server, panel) and not unhealthy(server, panel), panel.title
        assert "StallscopeGateBlind" not in fired(server) | fired(slow_server)
        assert server.unhealthy_rules() == slow_server.unhealthy_rules() == []


def test_a_histogram_without_the_limits_is_blind(tmp_path):
    state = Vllm(0.9, 8, ("+Inf",))
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(served(state.text, "vllm/vllm", POD))
        server = stack.enter_context(prometheus(programs()[0], tmp_path / "p", [target]))
        server.wait_for("StallscopeGateBlind", 40)
        assert fired(server) & GATES == set()


def test_a_pod_without_a_page_and_an_exporter_that_ends(tmp_path):
    """The exporter runs, and its folder of pages stays empty."""
    pages = tmp_path / "pages"
    pages.mkdir()
    state = Vllm(0.0, 1, BOUNDS)
    with contextlib.ExitStack() as stack:
        vllm = stack.enter_context(served(state.text, "vllm/vllm", POD))
        found = stack.enter_context(exporter(pages, [], POD))
        targets = [vllm, found.target]
        server = stack.enter_context(prometheus(programs()[0], tmp_path / "p", targets))
        labels = server.wait_for("StallscopePageMissing", 40)
        assert labels["pod"] == POD
        assert not fired(server) & {"StallscopeExporterDown", "StallscopeExporterAbsent"}
        found.process.kill()
        server.wait_for("StallscopeExporterDown", 40)
        server.wait_for("StallscopeExporterAbsent", 60)


def test_an_exporter_that_no_longer_ticks(tmp_path):
    text = "stallscope_ticks_total 5\nstallscope_tick_age_seconds 60\n"
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(served(lambda: text, "vllm/stallscope", POD))
        server = stack.enter_context(prometheus(programs()[0], tmp_path / "p", [target]))
        server.wait_for("StallscopeExporterStale", 40)


def test_a_shard_is_down_once_two_say_so(tmp_path):
    down = f"redis://127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        up = f"redis://127.0.0.1:{stack.enter_context(valkey_server())}"
        first = stack.enter_context(exporter(None, [down, up], "shards-0"))
        alone = stack.enter_context(prometheus(programs()[0], tmp_path / "one", [first.target]))
        labels = alone.wait_for("StallscopeShardUnseen", 40)
        assert labels["shard"] == down
        assert "StallscopeShardDown" not in fired(alone)
        second = stack.enter_context(exporter(None, [down, up], "shards-1"))
        both = [first.target, second.target]
        two = stack.enter_context(prometheus(programs()[0], tmp_path / "two", both))
        assert two.wait_for("StallscopeShardDown", 40)["shard"] == down
        assert {r["metric"]["shard"] for r in two.query('ALERTS{alertname=~".*Shard.*"}')} == {down}


class Rising:
    """A shard and an engine that fill up, or stand at a level."""

    def __init__(self, by_a_second: float) -> None:
        self.by, self.began = by_a_second, time.monotonic()

    def text(self) -> str:
        at = time.monotonic() - self.began
        rho = 0.62 + self.by * at
        name = "stallscope_shard_main_thread_saturation"
        return (
            f'{name}{{shard="redis://v-0:6379",bound="lower"}} {min(1.0, rho)}\n'
            f'stallscope_model_rho{{engine="e"}} {rho}\n'
            "stallscope_ticks_total 1\n"
        )


RHO = {"StallscopeShardRhoRising", "StallscopeEngineRhoRising"}


def test_a_trend_towards_one_is_told_and_a_level_is_not(tmp_path):
    """At this scale the window is 18 s, the horizon 36 s, and it must hold for 3.6 s."""
    rising, level = Rising(0.006), Rising(0.0)
    with contextlib.ExitStack() as stack:
        for name, state in (("rising", rising), ("level", level)):
            target = stack.enter_context(served(state.text, "vllm/stallscope", POD))
            folder = tmp_path / name
            server = stack.enter_context(prometheus(programs()[0], folder, [target]))
            if name == "rising":
                for alert in RHO:
                    server.wait_for(alert, 60)
        time.sleep(35)
        assert fired(server) & RHO == set()


def test_the_watchdog_always_fires(tmp_path):
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(served(lambda: "up2 1\n", "vllm/stallscope", POD))
        server = stack.enter_context(prometheus(programs()[0], tmp_path / "p", [target]))
        server.wait_for("StallscopeWatchdog", 20)
