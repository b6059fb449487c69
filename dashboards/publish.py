"""Puts the boards into a Grafana: as often as you like, and nothing that is not ours.

Written against Grafana's HTTP API as documented (docs/grafana/latest/developers/http_api, pages
Dashboard and Folder), by way of grafana-client.
"""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

from dashboards.model import TAG, to_json

FOLDER_UID: Final = "stallscope"
FOLDER_TITLE: Final = "Stallscope"
MESSAGE: Final = "stallscope monitoring publish"
_TIMEOUT_SECONDS: Final = 15.0
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_PRECONDITION: Final = 412
# What Grafana sets by itself, and no change of ours.
_GRAFANAS: Final = frozenset(("id", "version"))
_UID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_SCHEMA: Final = "schemaVersion"
_MENDS: Final[Mapping[int, str]] = {
    400: "Grafana does not accept the request",
    401: "the token is not valid: make one for a service account, and give it in the environment",
    403: "the token may not do this: its service account needs the role Editor, or "
    "dashboards:write, dashboards:create and folders:create",
    _NOT_FOUND: "there is no Grafana API at this address: give the URL under which Grafana's "
    "start page is served, with its sub-path",
    _CONFLICT: "something of the same name is there that is not ours",
    _PRECONDITION: "someone changed it in the meantime, or its name is taken: look with --diff, "
    "and publish again",
}

Change = Literal["created", "updated", "unchanged"]


class PublishError(Exception):
    """Grafana could not be reached, or refused: what, where and the mend, in one line."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where Grafana is and who asks. `verify` is False, True or the path of a CA file."""

    url: str
    token: str
    verify: bool | str = True

    def api(self) -> Any:
        """A client of grafana-client. Raises PublishError for a URL that is none."""
        from grafana_client import GrafanaApi

        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise PublishError(f"{self.url!r} is not a URL such as https://grafana.example.com")
        if parts.username or parts.password:
            raise PublishError("credentials in the URL are read by others: give a token")
        try:
            port = parts.port
        except ValueError as error:
            raise PublishError(f"{self.url!r}: {error}") from None
        prefix = parts.path.strip("/")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return GrafanaApi(
            auth=self.token,
            host=host,
            port=port,
            url_path_prefix=f"{prefix}/" if prefix else "",
            protocol=parts.scheme,
            verify=self.verify,
            timeout=_TIMEOUT_SECONDS,
            user_agent=TAG,
        )


@dataclass(frozen=True, slots=True)
class Published:
    """What became of one board; `diff` is a unified diff, empty where nothing changes."""

    uid: str
    title: str
    change: Change
    diff: str = ""


class Publisher:
    """Publishes boards into one folder."""

    def __init__(self, access: Access, folder: str = FOLDER_UID, dry_run: bool = False) -> None:
        if not _UID.fullmatch(folder):
            raise PublishError(
                f"{folder!r} is no uid of a folder: up to 40 letters, digits, - and _"
            )
        self._access = access
        self._api = access.api()
        self._folder = folder
        self._dry_run = dry_run

    def publish(self, boards: Sequence[Mapping[str, Any]]) -> list[Published]:
        """All boards are looked at before any is written. Raises PublishError."""
        has_folder = self._check_folder()
        planned = [self._plan(board) for board in boards]
        if not self._dry_run:
            if not has_folder and any(p.change != "unchanged" for p, _ in planned):
                self._ask("make the folder", self._make_folder)
            for board, (result, there) in zip(boards, planned, strict=True):
                if result.change != "unchanged":
                    self._write(board, there)
        return [result for result, _ in planned]

    def _check_folder(self) -> bool:
        """Whether the folder is there."""
        return (
            self._found(
                f"read the folder {self._folder}", lambda: self._api.folder.get_folder(self._folder)
            )
            is not None
        )

    def _make_folder(self) -> Any:
        return self._api.folder.create_folder(FOLDER_TITLE, uid=self._folder)

    def _plan(self, board: Mapping[str, Any]) -> tuple[Published, Mapping[str, Any]]:
        """What publishing it changes, and the id and version of what is there."""
        uid, title = str(board["uid"]), str(board["title"])
        found = self._found(f"read the board {uid}", lambda: self._api.dashboard.get_dashboard(uid))
        if found is None:
            return Published(uid, title, "created", _diff("", to_json(dict(board)), uid)), {}
        there = found.get("dashboard")
        meta = found.get("meta", {})
        if not isinstance(there, dict) or not isinstance(meta, dict):
            raise PublishError(f"{self._where()}: the board {uid} comes in a form we do not know")
        if TAG not in (there.get("tags") or []):
            raise PublishError(
                f"{self._where()}: the board {uid} ({there.get('title')!r}) is not ours: it lacks "
                f"the tag {TAG}; rename its uid, or delete it"
            )
        if meta.get("provisioned"):
            raise PublishError(
                f"{self._where()}: the board {uid} is provisioned from a file, and Grafana takes "
                "no other change to it; publish in one way only"
            )
        wanted = {name: value for name, value in board.items() if name not in _GRAFANAS}
        before, after = to_json(_shaped(there, wanted)), to_json(wanted)
        moved = meta.get("folderUid") not in {self._folder, None}
        if before == after and not moved:
            return Published(uid, title, "unchanged"), {}
        text = _diff(before, after, uid)
        if moved:
            text += f"folder {meta.get('folderUid') or 'General'} -> {self._folder}\n"
        return Published(uid, title, "updated", text), there

    def _write(self, board: Mapping[str, Any], there: Mapping[str, Any]) -> None:
        """Without overwrite: what was changed since we looked is refused, not lost."""
        payload = {
            "dashboard": {
                **board,
                "id": there.get("id"),
                "version": there.get("version") or 0,
            },
            "folderUid": self._folder,
            "message": MESSAGE,
            "overwrite": False,
        }
        self._ask(
            f"write the board {board['uid']}",
            lambda: self._api.dashboard.update_dashboard(payload),
        )

    def _found(self, what: str, call: Any) -> dict[str, Any] | None:
        """The answer, or None where Grafana itself says that there is none."""
        answer = self._ask(what, call, absent_is_none=True)
        if answer is not None and not isinstance(answer, dict):
            raise PublishError(
                f"{self._where()}: does not answer like Grafana (a login page of a proxy?) as we "
                f"{what}"
            )
        return answer

    def _ask(self, what: str, call: Any, absent_is_none: bool = False) -> Any:
        from grafana_client.client import GrafanaException
        from requests.exceptions import RequestException

        try:
            return call()
        except GrafanaException as error:
            status = int(error.status_code)
            said = _message(error.response)
            if absent_is_none and status == _NOT_FOUND and said is not None:
                return None
            mend = _MENDS.get(status, "Grafana failed" if status >= 500 else "Grafana refuses")
            raise PublishError(
                f"{self._where()}: cannot {what}: HTTP {status}"
                f"{f' ({said})' if said else ''}; {mend}"
            ) from None
        except (RequestException, ssl.SSLError, OSError, ValueError) as error:
            raise PublishError(f"{self._where()}: cannot {what}: {_reason(error)}") from None

    def _where(self) -> str:
        return self._access.url


def _shaped(there: Any, wanted: Any) -> Any:
    """What is there of the fields that we set: Grafana adds defaults of its own to a board, and
    newer ones raise its schemaVersion, neither of which is a change."""
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        kept = {name: _shaped(there[name], wanted[name]) for name in wanted if name in there}
        if _is_raised(there.get(_SCHEMA), wanted.get(_SCHEMA)):
            kept[_SCHEMA] = wanted[_SCHEMA]
        return kept
    if isinstance(wanted, list) and isinstance(there, list):
        paired = zip(there, wanted, strict=False)
        return [_shaped(a, b) for a, b in paired] + there[len(wanted) :]
    return there


def _is_raised(there: Any, wanted: Any) -> bool:
    return isinstance(there, int) and isinstance(wanted, int) and there > wanted


def _diff(before: str, after: str, uid: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"grafana/{uid}.json",
        f"stallscope/{uid}.json",
    )
    return "".join(lines)


def _message(response: Any) -> str | None:
    """What Grafana said; None where the answer is not Grafana's JSON."""
    if not isinstance(response, dict) or "message" not in response:
        return None
    return " ".join(str(cast(Any, response)["message"]).split())[:200]


def _reason(error: Exception) -> str:
    """The innermost cause in a few words, with the mend where one is known."""
    text = " ".join(str(error).split())
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its certificate is not trusted here; give --ca FILE with the CA that signed it"
    if "ProxyError" in text or "proxy" in text.lower():
        return f"the proxy did not connect us ({text[:160]}); see HTTPS_PROXY and NO_PROXY"
    if "timed out" in text or "timeout" in text.lower():
        return f"no answer within {_TIMEOUT_SECONDS:g} s"
    if "Connection refused" in text:
        return "connection refused: nothing listens there"
    if "Name or service not known" in text or "resolve" in text:
        return "its name is not known here"
    if isinstance(error, ValueError) and "column" in text:
        return "the answer is not JSON: this is not Grafana's API (a login page of a proxy?)"
    return text[:200] or type(error).__name__
