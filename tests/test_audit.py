"""The audit passes only if packages were audited, by a service that knows of vulnerabilities."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.servers import free_port

ROOT = Path(__file__).parents[1]


def _audit(folder: Path, *options: str) -> int:
    (folder / "pins.txt").write_text("numpy==2.4.6\nscipy==1.17.1\n")
    command = [sys.executable, ROOT / "scripts" / "audit.py", folder / "pins.txt", *options]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("vulnerable", "code"), [((), 3), (("django",), 0), (("django", "scipy"), 1)]
)
def test_the_verdict(vulnerable: tuple[str, ...], code: int, tmp_path: Path) -> None:
    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            package = asked["package"]
            fault = {"id": "X-1", "summary": "", "affected": [{"package": package, "ranges": []}]}
            known = {"vulns": [fault]} if package["name"] in vulnerable else {}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(known).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        assert _audit(tmp_path, "--vulnerability-service=osv", f"--osv-url={address}") == code
        server.shutdown()


def test_a_service_that_does_not_answer(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}/"
    assert _audit(tmp_path, "--vulnerability-service=osv", f"--osv-url={address}") == 3
