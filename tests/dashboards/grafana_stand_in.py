"""A stand-in for Grafana's HTTP API, as its documentation says it behaves: no more, no less.

Pages: DASHBOARD is docs/grafana/latest/developers/http_api/dashboard, FOLDER the page folder beside
it, AUTH the page authentication. Each case names its page and section.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_UID = 40  # DASHBOARD, "Identifier (id) vs unique identifier (uid)"
EDITOR, VIEWER = "editor-token", "viewer-token"


@dataclass
class Stored:
    """A board: what it holds, in which folder, and whether a file provisions it."""

    model: dict[str, Any]
    folder: str
    provisioned: bool = False


@dataclass
class Grafana:
    """What the server holds, every request it got, and how it may be made to misbehave."""

    folders: dict[str, str] = field(default_factory=dict)  # uid -> title
    boards: dict[str, Stored] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    proxied: list[str] = field(default_factory=list)
    prefix: str = ""
    answer: tuple[int, str, str] | None = None  # status, content type, body, for each request
    before_write: Any = None  # called before a board is written: what others do meanwhile
    url: str = ""

    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path in self.asked if method != "GET"]

    def board(self, uid: str, **model: Any) -> Stored:
        """Put a board there, as if someone had."""
        number = len(self.boards) + 1
        stored = Stored({"id": number, "uid": uid, "version": 1, **model}, folder="")
        self.boards[uid] = stored
        return stored

    def handle(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        if token not in {EDITOR, VIEWER}:
            return 401, {"message": "Invalid API key"}  # AUTH; DASHBOARD and FOLDER: 401
        parts = path.split("/")
        match (method, *parts):
            case ("GET", "folders", uid):
                return self._get_folder(uid)
            case ("GET", "dashboards", "uid", uid):
                return self._get_board(uid)
            case ("POST", "folders") | ("POST", "dashboards", "db") if token == VIEWER:
                # FOLDER, "Create folder", and DASHBOARD, "Create / Update dashboard": 403
                return 403, {"message": "You'll need additional permissions to perform this"}
            case ("POST", "folders"):
                return self._make_folder(body)
            case ("POST", "dashboards", "db"):
                return self._save(body)
        return 404, {"message": "Not found"}

    def _get_folder(self, uid: str) -> tuple[int, Any]:
        """FOLDER, "Get folder by uid": 200 with uid and title, or 404."""
        if uid not in self.folders:
            return 404, {"message": "folder not found", "status": "not-found"}
        return 200, {"id": 1, "uid": uid, "title": self.folders[uid], "version": 1}

    def _make_folder(self, body: Any) -> tuple[int, Any]:
        """FOLDER, "Create folder": 400 for missing fields, 409 where it already exists."""
        if not isinstance(body, dict) or not body.get("title"):
            return 400, {"message": "folder title cannot be empty"}
        if body.get("uid") in self.folders or body["title"] in self.folders.values():
            return 409, {"message": "a folder with the same name already exists"}
        uid = body.get("uid") or f"generated-{len(self.folders)}"
        self.folders[uid] = body["title"]
        return self._get_folder(uid)

    def _get_board(self, uid: str) -> tuple[int, Any]:
        """DASHBOARD, "Get dashboard by uid": the model, and folderUid among the metadata."""
        found = self.boards.get(uid)
        if found is None:
            return 404, {"message": "Dashboard not found"}
        meta = {"folderUid": found.folder, "provisioned": found.provisioned, "isStarred": False}
        return 200, {"dashboard": found.model, "meta": meta}

    def _save(self, body: Any) -> tuple[int, Any]:
        """DASHBOARD, "Create / Update dashboard": the statuses 400 and 412 with their reasons."""
        if self.before_write is not None:
            self.before_write()
        model = body.get("dashboard") if isinstance(body, dict) else None
        if not isinstance(model, dict) or not model.get("title"):
            return 400, {"message": "Dashboard title cannot be empty"}
        uid = model.get("uid") or f"generated-{len(self.boards)}"
        if len(uid) > MOST_UID:
            return 400, {"message": "uid too long, max 40 characters"}
        # "if you do not define folderId or folderUid, the dashboard is moved to the root level"
        folder = body.get("folderUid") or ""
        if folder and folder not in self.folders:
            return 400, {"message": "folder not found"}
        there = self.boards.get(uid)
        if there is not None and not body.get("overwrite"):
            if model.get("id") is None:
                message = "A dashboard with the same uid already exists"
                return 412, {"message": message, "status": "name-exists"}
            if model.get("version") != there.model["version"]:
                message = "The dashboard has been changed by someone else"
                return 412, {"message": message, "status": "version-mismatch"}
        if there is not None and there.provisioned:
            return 400, {"message": "Cannot save provisioned dashboard"}
        number = there.model["id"] if there else len(self.boards) + 1
        version = there.model["version"] + 1 if there else 1
        self.boards[uid] = Stored({**model, "id": number, "uid": uid, "version": version}, folder)
        return 200, {"id": number, "uid": uid, "status": "success", "version": version}


@contextlib.contextmanager
def grafana(certificate: tuple[str, str] | None = None, prefix: str = "") -> Iterator[Grafana]:
    """A running stand-in; `certificate` is its file and its key, for TLS."""
    state = Grafana(prefix=prefix)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: two would wait for each other 40 ms

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            path = self.path
            if path.startswith("http://"):  # we are somebody's proxy
                state.proxied.append(path)
                path = "/" + path.split("/", 3)[3]
            state.asked.append((self.command, path))
            if state.answer is not None:
                status, kind, text = state.answer
                self._send(status, kind, text)
                return
            root = f"{state.prefix}/api/"
            if not path.startswith(root):
                self._send(404, "text/html", "<html>no such page</html>")
                return
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            body = json.loads(raw) if raw else None
            status, answer = state.handle(self.command, path.removeprefix(root), token, body)
            self._send(status, "application/json", json.dumps(answer))

        def _send(self, status: int, kind: str, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "https" if certificate else "http"
    state.url = f"{scheme}://127.0.0.1:{server.server_address[1]}{prefix}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
