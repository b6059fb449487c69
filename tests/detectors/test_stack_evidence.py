"""What stacks do to a finding's confidence: turning the stack round turns the change round."""

from __future__ import annotations

import dataclasses

import pytest

from detectors import progress_stall, stuck_lookup, wedged_connection
from detectors import thresholds as t
from detectors.stack_evidence import engine_side
from exporters.snapshot import Frame, ProcessStack, ThreadStack
from tests.detectors.client_pictures import (
    BLOCKING_SECONDS,
    INFO,
    LOOKUP_SECONDS,
    entry,
    rank,
    series,
    shard,
)
from tests.detectors.pictures import engine, snapshot
from tests.detectors.test_progress_stall import stalled

# As LMCache 0.5.5 and 0.5.6 showed them under py-spy, from the innermost out.
LOOKUP = (
    "Condition.wait",
    "Future.result",
    "ConnectorClientBase.batch_exists_sync",
    "RemoteBackend.batched_contains",
    "LMCacheEngine.lookup",
)
LOAD = (
    "Condition.wait",
    "Future.result",
    "RemoteBackend.batched_get_blocking",
    "StorageManager.batched_get",
    "LMCacheEngine.retrieve",
)
ELSEWHERE = ("Socket.recv_multipart", "ZmqRouterServerTransport.recv_request")
OLD_LOOKUP = t.STUCK_TIMEOUTS * LOOKUP_SECONDS + 5


def thread(functions=LOOKUP, **changes) -> ThreadStack:
    frames = tuple(Frame(function, "lmcache/x.py", 7) for function in functions)
    return dataclasses.replace(ThreadStack("lookup-server-thread", 9, frames), **changes)


def of_rank(number=1, *threads, **changes) -> ProcessStack:
    made = ProcessStack(
        100 + number, f"rank {number}", number, "e", f"{number}.page", "S", threads or (thread(),)
    )
    return dataclasses.replace(made, **changes)


def judge(rule, picture, *stacks):
    [finding] = rule(dataclasses.replace(picture, stacks=stacks)).findings
    return finding


def stuck(**info):
    process = rank(pending=(entry("exists", OLD_LOOKUP),), info={**INFO, **info})
    return series(process, shard())


def wedged(age=BLOCKING_SECONDS - 2, **info):
    """A GET of a key that the shard does not have, within its timeout: decided by two answers."""
    process = rank(pending=(entry("get", age, first_key="k"),), info={**INFO, **info})
    return series(process, shard(keys={"k": False}))


CASES = (
    pytest.param(stuck_lookup.RULE, stuck(), LOOKUP, id="stuck-lookup"),
    pytest.param(wedged_connection.RULE, wedged(), LOAD, id="wedged-connection"),
)


@pytest.mark.parametrize(("rule", "picture", "inside"), CASES)
def test_the_stack_decides_which_way_the_confidence_moves(rule, picture, inside):
    [before] = rule(picture).findings
    waits = judge(rule, picture, of_rank(1, thread(inside)))
    runs = judge(rule, picture, of_rank(1, thread(inside, active=True)))
    nobody = judge(rule, picture, of_rank(1, thread(ELSEWHERE)))
    assert waits.confidence == pytest.approx(1 - (1 - before.confidence) / 2)
    assert runs.confidence == nobody.confidence == pytest.approx(before.confidence / 2)
    assert [f.evidence[-1].value for f in (waits, runs, nobody)] == [1.0, 0.0, 0.0]
    assert f"waits inside {inside[2].split('.')[-1]}" in waits.evidence[-1].text
    assert "runs" in runs.evidence[-1].text
    assert "none of its 1 threads" in nobody.evidence[-1].text
    for finding in (waits, runs, nobody):
        same = dataclasses.replace(
            finding, confidence=before.confidence, evidence=finding.evidence[:-1]
        )
        assert same == before


@pytest.mark.parametrize(("rule", "picture", "inside"), CASES)
@pytest.mark.parametrize(
    "changes",
    [{"torn": True}, {"page": "9.page"}, {"engine_id": "f"}, {"page": ""}],
)
def test_what_is_torn_or_of_another_process_changes_nothing_and_that_is_said(
    rule, picture, inside, changes
):
    [before] = rule(picture).findings
    finding = judge(rule, picture, of_rank(1, thread(inside), **changes))
    assert finding.confidence == before.confidence
    assert "stack of this rank" in finding.evidence[-1].text


@pytest.mark.parametrize(("rule", "picture", "inside"), CASES)
def test_the_call_of_the_other_kind_is_no_evidence_for_this_one(rule, picture, inside):
    [before] = rule(picture).findings
    other = LOAD if inside is LOOKUP else LOOKUP
    assert judge(rule, picture, of_rank(1, thread(other))).confidence < before.confidence


@pytest.mark.parametrize(
    ("rule", "picture"),
    [
        (stuck_lookup.RULE, stuck(async_loading=True)),
        (wedged_connection.RULE, wedged(async_loading=True)),
        # Past its timeout the load was given up: the connection is wedged, and nobody waits.
        (wedged_connection.RULE, wedged(age=t.STUCK_TIMEOUTS * BLOCKING_SECONDS + 5)),
    ],
)
def test_where_no_thread_has_to_wait_its_absence_says_nothing(rule, picture):
    [before] = rule(picture).findings
    finding = judge(rule, picture, of_rank(1, thread(ELSEWHERE)))
    assert finding.confidence == before.confidence
    assert "says nothing" in finding.evidence[-1].text


def test_an_old_python_names_functions_without_their_class():
    bare = tuple(name.rpartition(".")[2] for name in LOOKUP)
    [before] = stuck_lookup.RULE(stuck()).findings
    assert (
        judge(stuck_lookup.RULE, stuck(), of_rank(1, thread(bare))).confidence > before.confidence
    )


def test_a_thread_without_a_call_or_a_name_is_no_fault():
    finding = judge(stuck_lookup.RULE, stuck(), of_rank(1, thread((), name=""), thread(name="")))
    assert "thread 9 waits inside" in finding.evidence[-1].text


def still_engine(*chains):
    """An engine of two workers; each picture, oldest first, gives their main threads' calls."""

    def picture(chain):
        stacks = tuple(of_rank(i, thread(chain, name="MainThread")) for i in range(2))
        return dataclasses.replace(snapshot(engine(2)), stacks=stacks)

    *earlier, now = [picture(chain) for chain in chains]
    return dataclasses.replace(now, earlier=tuple(earlier))


INSIDE = ("wait", "all_gather", "forward", "execute_model")
POLLED = ("sleep", "all_gather", "forward", "execute_model")
ELSEWHERE_IN_STEP = ("matmul", "mlp", "forward", "execute_model")


@pytest.mark.parametrize(
    ("chains", "state"),
    [
        ((INSIDE, INSIDE, INSIDE), "waits"),
        ((INSIDE, POLLED, INSIDE), "waits"),
        ((INSIDE, ELSEWHERE_IN_STEP, INSIDE), "runs"),
        ((ELSEWHERE_IN_STEP, INSIDE), "runs"),
        ((INSIDE,), "unseen"),
        (((), INSIDE), "unseen"),
    ],
)
def test_an_engine_stands_still_where_no_worker_left_its_call(chains, state):
    picture = still_engine(*chains)
    assert engine_side(picture.engines[0], picture).state == state


@pytest.mark.parametrize(
    ("before", "state"), [(INSIDE, "waits"), (ELSEWHERE_IN_STEP, "runs"), ((), "unseen")]
)
def test_an_engine_that_stands_still_is_surer_to_make_no_progress(before, state):
    plain = stalled()
    [unweighed] = progress_stall.RULE(plain).findings

    def with_stacks(picture, chain):
        workers = picture.engines[0].workers().values()
        stacks = tuple(
            of_rank(p.rank, thread(chain, name="MainThread"), page=p.page, engine_id=p.engine_id)
            for p in workers
        )
        return dataclasses.replace(picture, stacks=stacks)

    earlier = tuple(with_stacks(picture, before) for picture in plain.earlier)
    picture = dataclasses.replace(with_stacks(plain, INSIDE), earlier=earlier)
    [finding] = progress_stall.RULE(picture).findings
    change = finding.confidence - unweighed.confidence
    assert {"waits": change > 0, "runs": change < 0, "unseen": change == 0}[state]


def test_a_worker_without_a_stack_leaves_the_engine_unseen():
    picture = still_engine(INSIDE, INSIDE)
    lone = dataclasses.replace(picture, stacks=picture.stacks[:1])
    assert engine_side(lone.engines[0], lone).state == "unseen"
    none = dataclasses.replace(picture, stacks=())
    assert engine_side(none.engines[0], none).state == ""
