"""The reverse proxy of docs/serving.md, in front of a server that tells what reaches it."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.servers import free_port, running

from .runner import ROOT

CONFIG = ROOT / "docs" / "examples" / "nginx.conf"
LOGIN = "Basic " + base64.b64encode(b"ann:secret").decode()


class _Told(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        size = len(self.rfile.read(int(self.headers["Content-Length"])))
        told = json.dumps({"path": self.path, "size": size, "headers": dict(self.headers)})
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., tuple[int, str]]]:
    """Send a request through nginx: ``ask(method, path, body, login)``."""
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    certificate, key = folder / "schemes.crt", folder / "schemes.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*command, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    hashed = subprocess.run(
        ["openssl", "passwd", "-apr1", "secret"], check=True, capture_output=True, text=True
    )
    (folder / "schemes.htpasswd").write_text(f"ann:{hashed.stdout}")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Told)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = CONFIG.read_text()
    for there, here in {
        "/etc/nginx": str(folder),
        "/run/nginx.pid": str(folder / "pid"),
        "/var/log/nginx": str(folder),
        "listen 443": f"listen 127.0.0.1:{port}",
        "127.0.0.1:5001": f"127.0.0.1:{server.server_port}",
    }.items():
        assert there in text
        text = text.replace(there, here)
    (folder / "nginx.conf").write_text(text)
    trusted = ssl.create_default_context(cafile=certificate)

    def ask(
        method: str, path: str, body: bytes = b"", login: str | None = LOGIN
    ) -> tuple[int, str]:
        connection = http.client.HTTPSConnection("localhost", port, context=trusted, timeout=30)
        with closing(connection):
            connection.request(method, path, body, {"Authorization": login} if login else {})
            response = connection.getresponse()
            return response.status, response.read().decode()

    nginx = ["nginx", "-p", folder, "-c", folder / "nginx.conf", "-g", "daemon off; user root;"]
    try:
        # The file is written once the address is taken.
        with running(list(map(str, nginx)), f"file://{folder}/pid"):
            yield ask
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_requests_with_a_login_reach_the_scheme_without_it(ask) -> None:
    status, body = ask("POST", "/invocations", b"x" * 1000)
    told = json.loads(body)
    assert (status, told["path"], told["size"]) == (200, "/invocations", 1000)
    assert "Authorization" not in told["headers"]


@pytest.mark.slow
@pytest.mark.parametrize("login", [None, "Basic " + base64.b64encode(b"ann:other").decode()])
def test_others_are_refused(ask, login) -> None:
    assert ask("POST", "/invocations", b"x", login)[0] == 401


@pytest.mark.slow
def test_only_small_requests_for_corrections_pass(ask) -> None:
    assert ask("POST", "/invocations", b"x" * (1 << 20))[0] == 200
    assert ask("POST", "/invocations", b"x" * (1 << 21))[0] == 413
    assert ask("GET", "/invocations")[0] == 403
    assert ask("GET", "/version")[0] == 404
