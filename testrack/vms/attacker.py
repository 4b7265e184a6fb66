#!/usr/bin/env python3
"""Answer like the boot host, as an attacker in its network would: attacker.py FOLDER [KEY].

Tests start this program. On port 8080, it serves the folder, also parts of files, and appends every report to
FOLDER/reports. With a KEY, it signs the order of vm1 whenever a report requests a signature.
"""

from __future__ import annotations

import base64
import json
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_private_key

folder = Path(sys.argv[1])
order = folder / "nodes/vm1/write.json"
key = load_pem_private_key(Path(sys.argv[2]).read_bytes(), None) if len(sys.argv) > 2 else None


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        path = folder / self.path.lstrip("/")
        if not path.is_file():
            return self.send_error(404)
        begin, _, end = (self.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")
        with path.open("rb") as stream:
            stream.seek(int(begin))
            data = stream.read(int(end) - int(begin) + 1 if end else -1)
        self.send_response(206 if self.headers["Range"] else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        return None

    def do_PUT(self) -> None:
        report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with (folder / "reports").open("a") as stream:
            stream.write(json.dumps(report) + "\n")
        if key and "nonce" in report:
            message = f"rackproof order\n{report['nonce']}\n".encode() + order.read_bytes()
            signature = key.sign(message)  # type: ignore[union-attr,call-arg]
            order.with_suffix(".json.sig").write_bytes(base64.b64encode(signature))
        self.send_response(204)
        self.end_headers()


ThreadingHTTPServer(("", 8080), Handler).serve_forever()
