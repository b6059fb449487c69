"""TLS and users by Prometheus' web configuration file, over real connections."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
import urllib.error
import urllib.request

import pytest

from exporters import web_config
from exporters.server import MetricsServer
from exporters.snapshot_json import from_json
from exporters.ticker import Ticker
from exporters.web_config import KEPT_VERDICTS, Users, WebConfigError
from tests.exporters.test_server import FOLDER, _evaluation, _Fixed
from tests.patched_engine.resp.real_servers import certificates

bcrypt = pytest.importorskip("bcrypt")
PASSWORD = b"right"
HASH = bcrypt.hashpw(PASSWORD, bcrypt.gensalt(4)).decode()


def _file(folder, text):
    path = folder / "web.yml"
    path.write_text(text)
    return path


@contextlib.contextmanager
def _serving(web):
    ticker = Ticker(_Fixed(_evaluation()))
    server = MetricsServer(ticker, FOLDER, "127.0.0.1", 0, web)
    ticker.start()
    server.start()
    try:
        deadline = time.monotonic() + 5
        while ticker.latest() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"{server.scheme}://127.0.0.1:{server.address[1]}"
    finally:
        server.stop()
        ticker.stop()


def _get(url, user=b"", context=None):
    request = urllib.request.Request(url)
    if user:
        request.add_header("Authorization", b"Basic " + base64.b64encode(user))
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_users_are_asked_for_and_health_is_not_hidden(tmp_path):
    web = web_config.read(_file(tmp_path, f"basic_auth_users:\n  grafana: {HASH}\n"))
    with _serving(web) as url:
        for path in ("/metrics", "/snapshot"):
            assert _get(f"{url}{path}")[0] == 401
            assert _get(f"{url}{path}", b"grafana:wrong")[0] == 401
            assert _get(f"{url}{path}", b"nobody:right")[0] == 401
            assert _get(f"{url}{path}", b"grafana")[0] == 401
            assert _get(f"{url}{path}", b"grafana:right")[0] == 200
        assert _get(f"{url}/-/healthy")[0] == _get(f"{url}/-/ready")[0] == 200


def test_a_snapshot_is_the_last_tick(tmp_path):
    with _serving(None) as url:
        status, body = _get(f"{url}/snapshot")
    told = json.loads(body)
    assert status == 200 and 0 <= told["age_seconds"] < 5
    assert from_json(told).findings == _evaluation().findings


def test_tls(tmp_path, capfd):
    files = certificates(tmp_path)
    text = "tls_server_config: {cert_file: server.pem, key_file: server.key, min_version: TLS13}"
    web = web_config.read(_file(tmp_path, text))
    trust = ssl.create_default_context(cafile=files["ca.pem"])
    trust.check_hostname = False
    with _serving(web) as url:
        assert url.startswith("https")
        assert _get(f"{url}/metrics", context=trust)[0] == 200
        with pytest.raises(urllib.error.URLError):
            _get(f"{url}/metrics", context=ssl.create_default_context())
        with pytest.raises((urllib.error.URLError, OSError)):
            _get(f"{url}/metrics".replace("https", "http"))
        assert _get(f"{url}/metrics", context=trust)[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_right_password_is_checked_once(monkeypatch):
    checks = []
    check = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", lambda *a: checks.append(1) or check(*a))
    users = Users({"grafana": HASH.encode()})
    right = "Basic " + base64.b64encode(b"grafana:right").decode()
    assert all(users.allows(right) for _ in range(50)) and len(checks) == 1
    for i in range(KEPT_VERDICTS + 5):
        wrong = "Basic " + base64.b64encode(b"grafana:%d" % i).decode()
        assert users.allows(wrong) is False
    assert len(users._verdicts) == KEPT_VERDICTS
    assert users.allows(right)


def test_many_guesses_at_once_do_not_pile_up(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: release.wait(10) and False)
    monkeypatch.setattr(web_config, "_CHECK_WAIT_SECONDS", 0.05)
    users = Users({"grafana": HASH.encode()})
    first = threading.Thread(target=users.allows, args=("Basic " + "YTpi",))
    first.start()
    time.sleep(0.1)
    assert users.allows("Basic YTpj") is None
    release.set()
    first.join()


@pytest.mark.parametrize("header", ["", "Basic", "Basic !!!", "Bearer YTpi", "Basic /w==", "\xff"])
def test_headers_that_are_none_are_refused(header):
    assert Users({"a": HASH.encode()}).allows(header) is False


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "is no mapping"),
        ("{", "is no YAML"),
        ("http_server_config: {http2: true}", "http_server_config is not supported"),
        ("tls_server_config: 3", "tls_server_config is no mapping"),
        ("tls_server_config: {}", "has no cert_file"),
        ("tls_server_config: {cert_file: a, key_file: b}", "cannot use"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}", "none of TLS12"),
        ("tls_server_config: {cert_file: a, key_file: b, ciphers: []}", "ciphers is not supported"),
        ("basic_auth_users: {a: plain}", "a has no bcrypt hash"),
        ("basic_auth_users: [a]", "basic_auth_users is no mapping"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path, text, told):
    with pytest.raises(WebConfigError) as refused:
        web_config.read(_file(tmp_path, text))
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_client_certificates_need_their_ca(tmp_path):
    certificates(tmp_path)
    text = "tls_server_config: {cert_file: server.pem, key_file: server.key, client_auth_type: RequireAndVerifyClientCert}"  # noqa: E501
    with pytest.raises(WebConfigError, match="needs client_ca_file"):
        web_config.read(_file(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(WebConfigError, match="cannot read"):
        web_config.read(tmp_path / "none.yml")
