"""Publishing: idempotent, nothing of others touched, and each refusal one line with its mend."""

from __future__ import annotations

import pytest

pytest.importorskip("grafana_client")

from dashboards import boards
from dashboards.model import Links
from dashboards.publish import Access, Publisher, PublishError
from runbooks.cli.main import main
from tests.dashboards.grafana_stand_in import EDITOR, VIEWER, grafana
from tests.patched_engine.resp.real_servers import certificates
from tests.runbooks.command_line import stallscope
from tests.servers import free_port

LINKS = Links("https://runbooks.example.com")
BUILT = [boards.build(board, LINKS) for board in boards.BOARDS][:2]  # two show what five would
UIDS = [board["uid"] for board in BUILT]
OTHERS = {"title": "Somebody's", "tags": ["theirs"]}


@pytest.fixture
def server():
    with grafana() as state:
        yield state


def publish(state, built=BUILT, token=EDITOR, **options):
    access = Access(state.url, token)
    return Publisher(access, **options).publish(built)


def changes(results):
    return [result.change for result in results]


def refusal(state, **options):
    with pytest.raises(PublishError) as caught:
        publish(state, **options)
    text = str(caught.value)
    assert "\n" not in text and state.url in text
    return text


def test_twice_is_once(server):
    assert changes(publish(server)) == ["created"] * len(BUILT)
    assert set(server.boards) == set(UIDS)
    assert {stored.folder for stored in server.boards.values()} == {"stallscope"}
    server.asked.clear()
    assert changes(publish(server)) == ["unchanged"] * len(BUILT)
    assert server.writes() == []


def test_what_grafana_adds_by_itself_is_no_change(server):
    publish(server)
    model = server.boards[UIDS[0]].model
    model["schemaVersion"] += 2
    model["fiscalYearStartMonth"] = 0
    model["panels"][1]["fieldConfig"]["defaults"]["mappings"] = []
    assert changes(publish(server)) == ["unchanged"] * len(BUILT)


def test_a_change_is_shown_line_by_line_and_mended(server):
    publish(server)
    server.boards[UIDS[0]].model["title"] = "Somebody renamed it"
    dry = publish(server, dry_run=True)
    assert changes(dry) == ["updated", *["unchanged"] * (len(BUILT) - 1)]
    assert '-  "title": "Somebody renamed it",' in dry[0].diff
    assert f'+  "title": "{BUILT[0]["title"]}",' in dry[0].diff
    assert server.boards[UIDS[0]].model["title"] == "Somebody renamed it"
    assert changes(publish(server))[0] == "updated"
    assert server.boards[UIDS[0]].model["title"] == BUILT[0]["title"]
    assert server.boards[UIDS[0]].model["version"] == 2


@pytest.mark.parametrize("what", ["panel added", "panel removed"])
def test_panels_that_came_or_went_are_a_change(server, what):
    publish(server)
    panels = server.boards[UIDS[0]].model["panels"]
    if what == "panel added":
        panels.append({"id": 99, "type": "text", "title": "a note"})
    else:
        panels.pop()
    assert changes(publish(server))[0] == "updated"


def test_a_board_that_was_moved_comes_back(server):
    publish(server)
    server.boards[UIDS[1]].folder = "elsewhere"
    result = publish(server)[1]
    assert result.change == "updated" and "elsewhere -> stallscope" in result.diff
    assert server.boards[UIDS[1]].folder == "stallscope"


def test_a_dry_run_writes_nothing(server):
    assert changes(publish(server, dry_run=True)) == ["created"] * len(BUILT)
    assert server.writes() == [] and server.boards == {} and server.folders == {}


def test_a_board_that_is_not_ours_stops_all_before_any_is_written(server):
    theirs = server.board(UIDS[-1], **OTHERS)
    before = dict(theirs.model)
    text = refusal(server)
    assert UIDS[-1] in text and "not ours" in text
    assert server.writes() == [] and server.boards[UIDS[-1]].model == before


def test_boards_and_folders_of_others_stay_as_they_are(server):
    theirs = server.board("theirs", **OTHERS)
    server.folders["other"] = "Other"
    before = dict(theirs.model)
    publish(server)
    assert server.boards["theirs"].model == before and server.folders["other"] == "Other"
    assert {path for method, path in server.writes()} == {"/api/folders", "/api/dashboards/db"}


def test_a_provisioned_board_is_left_to_its_file(server):
    publish(server)
    server.boards[UIDS[0]].provisioned = True
    assert "provisioned" in refusal(server)


def test_401_names_the_token(server):
    assert "401" in refusal(server, token="nobody") and "token" in refusal(server, token="nobody")


def test_403_names_the_permission(server):
    text = refusal(server, token=VIEWER)
    assert "403" in text and "folders:create" in text and "You'll need" in text


def test_404_is_another_address(server):
    server.answer = (404, "text/html", "<html>no such page</html>")
    assert "sub-path" in refusal(server)


def test_409_is_a_folder_of_that_name(server):
    server.folders["other-uid"] = "Stallscope"
    text = refusal(server)
    assert "409" in text and "not ours" in text and server.boards == {}


def test_412_somebody_was_faster(server):
    publish(server)
    server.boards[UIDS[0]].model["title"] = "renamed"
    board = server.boards[UIDS[0]]
    server.before_write = lambda: board.model.update(version=7)
    text = refusal(server)
    assert "412" in text and "changed by someone else" in text and "--diff" in text
    assert board.model["title"] == "renamed"


def test_a_board_made_in_the_meantime_is_not_overwritten(server):
    server.before_write = lambda: server.board(UIDS[0], **OTHERS)
    assert "412" in refusal(server)
    assert server.boards[UIDS[0]].model["title"] == OTHERS["title"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, "application/json", '{"message": "database is locked"}'), "database is locked"),
        ((502, "text/html", "<h1>Bad gateway</h1>"), "502"),
        ((200, "text/html", "<h1>Log in</h1>"), "does not answer like Grafana"),
        ((200, "application/json", "[]"), "does not answer like Grafana"),
        ((200, "application/json", "{"), "not JSON"),
        ((200, "application/json", '{"uid": "stallscope"}'), "in a form we do not know"),
    ],
)
def test_what_is_no_grafana_is_said_in_one_line(server, answer, said):
    server.answer = answer
    assert said in refusal(server)
    assert server.writes() == []


def test_a_sub_path(tmp_path):
    with grafana(prefix="/monitoring/grafana") as state:
        assert changes(publish(state)) == ["created"] * len(BUILT)
        state.url += "/"
        assert changes(publish(state)) == ["unchanged"] * len(BUILT)


def test_through_a_proxy(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    results = Publisher(Access("http://grafana.example.com", EDITOR)).publish(BUILT)
    assert changes(results) == ["created"] * len(BUILT)
    assert server.proxied and all("//grafana.example.com/api/" in p for p in server.proxied)


def test_tls_needs_its_authority(tmp_path):
    files = certificates(tmp_path)
    with grafana((files["server.pem"], files["server.key"])) as state:
        assert "--ca FILE" in refusal(state)
        for verify in (files["ca.pem"], False):
            access = Access(state.url, EDITOR, verify)
            assert len(Publisher(access).publish(BUILT)) == len(BUILT)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("grafana.example.com", "is not a URL"),
        ("ftp://grafana.example.com", "is not a URL"),
        ("http://me:secret@grafana.example.com", "give a token"),
        ("http://grafana.example.com:99999", "Port out of range"),
    ],
)
def test_a_url_that_is_none(url, said):
    with pytest.raises(PublishError, match=said) as caught:
        Publisher(Access(url, EDITOR))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("folder", ["", "a/b", "../users", "x" * 41])
def test_a_folder_that_is_none(folder):
    with pytest.raises(PublishError, match="no uid of a folder"):
        Publisher(Access("http://grafana.example.com", EDITOR), folder)


def test_nobody_listens():
    access = Access(f"http://127.0.0.1:{free_port()}", EDITOR)
    with pytest.raises(PublishError, match="connection refused"):
        Publisher(access).publish(BUILT)


def test_the_command(server, tmp_path):
    arguments = ("monitoring", "publish", "--url", server.url)
    token = {"STALLSCOPE_GRAFANA_TOKEN": EDITOR}
    dry = stallscope(*arguments, "--dry-run", "--diff", **token)
    assert (dry.code, dry.err) == (1, "") and "would be created" in dry.out and "+++" in dry.out
    done = stallscope(*arguments, **token)
    assert (done.code, done.err) == (0, "") and "stallscope-pod: created" in done.out
    path = tmp_path / "token"
    path.write_text(f"{EDITOR}\n")
    again = stallscope(*arguments, "--json", STALLSCOPE_GRAFANA_TOKEN_FILE=str(path))
    assert again.code == 0 and again.out.count('"unchanged"') == len(boards.BOARDS)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("STALLSCOPE_OTHER", "", "no token"),
        ("STALLSCOPE_GRAFANA_TOKEN", "a b", "no token"),
        ("STALLSCOPE_GRAFANA_TOKEN", "wrong", "401"),
        ("STALLSCOPE_GRAFANA_TOKEN_FILE", "/nowhere", "/nowhere"),
    ],
)
def test_a_token_that_is_none(server, monkeypatch, capsys, name, value, said):
    monkeypatch.setenv(name, value)
    assert main(["monitoring", "publish", "--url", server.url]) == 64
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1
