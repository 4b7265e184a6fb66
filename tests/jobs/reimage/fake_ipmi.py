"""Imitate a BMC that answers IPMI over LAN, with the server of the library pyghmi.

A BMC is the small computer in a server that switches the server on and off. pyghmi implements the protocol.
This module implements the node behind it: power, boot flags, serial number, and faults. test_ipmi.py and
test_discovery.py use the fake.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from pyghmi.ipmi.bmc import Bmc


def fru(serial: str, maker: str = "Supermicro", name: str = "SYS-821GE") -> bytes:
    """Return the data of a field-replaceable unit (FRU) with a product area, in the format of IPMI."""

    def text(value: str) -> bytes:
        return bytes([0xC0 | len(value)]) + value.encode()

    area = bytes([1, 0, 0]) + text(maker) + text(name) + text("") + text("") + text(serial) + text("")
    area += text("") + b"\xc1"
    area += bytes(-(len(area) + 1) % 8)
    area = area[:1] + bytes([(len(area) + 1) // 8]) + area[2:]
    area += bytes([-sum(area) % 256])
    head = bytes([1, 0, 0, 0, 1, 0, 0])
    return head + bytes([-sum(head) % 256]) + area


class FakeIpmi(Bmc):
    """A BMC and its node. The attributes ``power`` and ``flags`` are the node's power and boot flags.

    ``fault`` is the fault of its BMC: ``silent``, ``hung``, ``slow``, ``no privilege``, ``stuck`` (it does
    not switch the power) or ``forgets`` (it does not store boot flags). ``orders`` are the power orders.
    """

    started = False

    def __init__(self, port: int, serial: str = "SN-1", passwords: dict[str, str] | None = None) -> None:
        self.power = "off"
        self.flags = bytes(5)
        self.fru = fru(serial) if serial else b""
        self.fault = ""
        self.orders: list[str] = []
        super().__init__(passwords or {"ops": "secret"}, port=port, address="127.0.0.1")
        if not FakeIpmi.started:
            # One loop serves all of pyghmi's sockets.
            FakeIpmi.started = True
            threading.Thread(target=Bmc.listen, args=(0.05,), daemon=True).start()

    def sessionless_data(self, data: bytes, sockaddr: Any) -> None:
        if self.fault != "silent":
            super().sessionless_data(data, sockaddr)

    def handle_raw_request(self, request: dict[str, Any], session: Any) -> None:
        if self.fault == "hung":
            return
        if self.fault == "slow":
            time.sleep(1)
        if self.fault == "no privilege" and request["netfn"] == 0 and request["command"] in (2, 8):
            session.send_ipmi_response(code=0xD4)
        elif request["netfn"] == 10 and request["command"] == 0x10 and self.fru:
            session.send_ipmi_response(data=[*len(self.fru).to_bytes(2, "little"), 0])
        elif request["netfn"] == 10 and request["command"] == 0x11 and self.fru:
            _, low, high, count = request["data"][:4]
            part = self.fru[low + 256 * high :][:count]
            session.send_ipmi_response(data=[len(part), *part])
        else:
            super().handle_raw_request(request, session)

    def get_power_state(self) -> str:
        return self.power

    def power_on(self) -> None:
        self._switch("on")

    def power_off(self) -> None:
        self._switch("off")

    def _switch(self, state: str) -> None:
        self.orders.append(state)
        if self.fault != "stuck":
            self.power = state

    def get_system_boot_options(self, request: dict[str, Any], session: Any) -> None:
        if request["data"][0] != 5:
            super().get_system_boot_options(request, session)
        else:
            session.send_ipmi_response(data=[1, 5, *self.flags])

    def set_system_boot_options(self, request: dict[str, Any], session: Any) -> None:
        if request["data"][0] == 5 and self.fault != "forgets":
            self.flags = bytes(request["data"][1:6])
        session.send_ipmi_response()
