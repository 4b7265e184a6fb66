"""Imitate a BMC that answers Redfish, an HTTP interface with a tree of JSON resources.

It has resources that the emulator of sushy-tools lacks: serial numbers, BIOS settings, firmware, and several
network interfaces. It also has faults. The tests of settings, sessions, hostile BMCs and discovery use it.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ROOT = "/redfish/v1"


def collection(path: str, members: list[str]) -> dict[str, Any]:
    return {
        "@odata.id": path,
        "Name": "Collection",
        "Members": [{"@odata.id": one} for one in members],
        "Members@odata.count": len(members),
    }


class FakeRedfish:
    """A BMC with resources by path, as in DMTF's schemas.

    ``fault`` is the end of a path that is not found, or ``drips`` for answers that come byte by byte.
    """

    def __init__(self, *systems: dict[str, Any], firmware: dict[str, str] | None = None) -> None:
        self.fault = ""
        self.resources: dict[str, Any] = {
            ROOT + "/": {
                "@odata.id": ROOT + "/",
                "Id": "RootService",
                "Name": "Root Service",
                "RedfishVersion": "1.15.0",
                "UUID": "92384634-2938-2342-8820-489239905423",
                "Systems": {"@odata.id": f"{ROOT}/Systems"},
                "UpdateService": {"@odata.id": f"{ROOT}/UpdateService"},
                "Links": {"Sessions": {"@odata.id": f"{ROOT}/SessionService/Sessions"}},
            },
            f"{ROOT}/Systems": collection(
                f"{ROOT}/Systems", [f"{ROOT}/Systems/{one['Id']}" for one in systems]
            ),
            f"{ROOT}/UpdateService": {
                "@odata.id": f"{ROOT}/UpdateService",
                "Id": "UpdateService",
                "Name": "Update Service",
                "Actions": {},
                "FirmwareInventory": {"@odata.id": f"{ROOT}/UpdateService/FirmwareInventory"},
            },
        }
        for one in systems:
            self.add_system(one)
        self.set_firmware(firmware or {})
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                double.answer(self)

            def do_POST(self) -> None:
                double.post(self)

            def do_DELETE(self) -> None:
                double.delete(self)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def add_system(self, values: dict[str, Any]) -> None:
        """Add a system. ``macs`` are its interfaces with their links, ``bios`` its BIOS settings."""
        values = {"Name": "System", "PowerState": "Off", "Boot": {}, "Actions": {}} | values
        path = f"{ROOT}/Systems/{values['Id']}"
        macs, bios = values.pop("macs", None), values.pop("bios", None)
        values["@odata.id"] = path
        if macs is not None:
            ports = f"{path}/EthernetInterfaces"
            values["EthernetInterfaces"] = {"@odata.id": ports}
            self.resources[ports] = collection(ports, [f"{ports}/{number}" for number in range(len(macs))])
            for number, (mac, link) in enumerate(macs.items()):
                self.resources[f"{ports}/{number}"] = {
                    "Id": str(number),
                    "Name": f"NIC {number}",
                    "MACAddress": mac,
                    "LinkStatus": link,
                }
        if bios is not None:
            values["Bios"] = {"@odata.id": f"{path}/Bios"}
            self.resources[f"{path}/Bios"] = {"Id": "BIOS", "Name": "BIOS", "Attributes": bios}
        self.resources[path] = values

    def set_firmware(self, versions: dict[str, str]) -> None:
        path = f"{ROOT}/UpdateService/FirmwareInventory"
        self.resources[path] = collection(path, [f"{path}/{number}" for number in range(len(versions))])
        for number, (name, version) in enumerate(versions.items()):
            identity, _, label = name.partition("|")
            self.resources[f"{path}/{number}"] = {
                "Id": identity,
                "Name": label or identity,
                "Version": version,
            }

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path if request.path == ROOT + "/" else request.path.rstrip("/")
        said = request.headers.get("Authorization", "")
        if path != ROOT + "/" and said != "Basic " + base64.b64encode(b"ops:secret").decode():
            request.send_error(401)
        elif path not in self.resources or (self.fault and path.endswith(self.fault)):
            request.send_error(404)
        else:
            body = json.dumps(self.resources[path]).encode()
            request.send_response(200)
            request.send_header("Content-Type", "application/json")
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            for byte in body if self.fault == "drips" else []:
                request.wfile.write(bytes([byte]))
                request.wfile.flush()
                time.sleep(0.1)
            if self.fault != "drips":
                request.wfile.write(body)

    def post(self, request: BaseHTTPRequestHandler) -> None:
        request.send_error(405)

    def delete(self, request: BaseHTTPRequestHandler) -> None:
        request.send_error(405)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
