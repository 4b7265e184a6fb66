"""Control a machine through IPMI over LAN (RMCP+) with ``ipmitool``, if reimage_bmc_protocol is ipmi.

:mod:`rackproof.jobs.reimage.tasks` calls :func:`open_machine` and :func:`list_systems`. This module runs
the program ipmitool instead of a library, because a process can be ended after a time limit, and an operator
can type the same command. The exit status of ipmitool means little, because it may be 0 although the BMC
refused a request. Only the value that is read back counts.
"""

from __future__ import annotations

import ipaddress
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from rackproof.core.child_environment import environment_of_tool
from rackproof.core.text import sanitize
from rackproof.jobs.reimage.bmc import Access, BmcError, BmcSilentError, MachineIdentity, PowerStatus

PORT = 623
"""The UDP port of IPMI over LAN."""
# These patterns match ipmitool's error messages, by their cause. A message is, for example, "RAKP 2 message
# indicates an error : unauthorized name".
_LOGIN = re.compile(
    r"HMAC is invalid|unauthorized (?:name|role)|password (?:is longer|invalid)", re.IGNORECASE
)
_CIPHER = re.compile(r"algorithm \w+ is not what we requested|no matching cipher suite", re.IGNORECASE)
_PRIVILEGE = re.compile(r"insufficient privilege|Set Session Privilege Level to \w+ failed:", re.IGNORECASE)
_SILENT = re.compile(
    r"Get Auth Capabilities error|no response|Unable to establish|Close Session command failed"
    r"|Address lookup .* failed|timed? ?out",
    re.IGNORECASE,
)
# The BMC's reason for a refused session, which ipmitool prints before its line about the missing session:
# "Error in open session response message : insufficient resources for session".
_REFUSED = re.compile(r"message (?:indicates an error )?: (.+)", re.IGNORECASE)
_PXE, _DISK = 1, 2
"""Numbers of boot devices in IPMI's boot flags."""


@contextmanager
def open_machine(node: str, access: Access) -> Iterator[IpmiMachine]:
    """Yield a node's machine.

    Each request opens its own session, so nothing must be closed.

    Raises:
        BmcError: The address is invalid.
    """
    yield IpmiMachine(node, access)


def list_systems(node: str, access: Access) -> tuple[MachineIdentity, ...]:
    """Return the machine of a BMC as the only entry of a tuple. IPMI lists no MAC address for it.

    Raises:
        BmcError: The address is invalid, ipmitool is not installed, or the BMC does not answer, or refuses.
    """
    with open_machine(node, access) as machine:
        return (
            MachineIdentity(
                serial=machine.read_fru("Product Serial"), model=machine.model(), power=machine.power()
            ),
        )


class IpmiMachine:
    """A node that is controlled by IPMI, with the methods of :class:`rackproof.jobs.reimage.bmc.Machine`.

    Only serial number and model, which do not change, are read once and kept.
    """

    def __init__(self, node: str, access: Access) -> None:
        host, port = parse_host_and_port(node, access.address)
        self._node, self._access = node, access
        self._fru: str | None = None
        # The privilege OPERATOR is enough to switch power and to set the boot. Some accounts get no higher
        # one.
        self._command = ["ipmitool", "-v", "-I", "lanplus", "-H", host, "-p", str(port), "-L", "OPERATOR"]
        # The default suite, 17, uses SHA-256 and AES. By default, ipmitool accepts what the other side
        # offers.
        self._command += ["-C", str(access.cipher_suite)]
        self._command += ["-U", access.user] if access.user else []
        # Pass the password as input. All users can see a process's arguments, and processes of this user
        # can see its environment.
        self._command += ["-f", "/dev/stdin"] if access.password else ["-P", ""]
        # IPMI uses UDP. A lost packet is sent again after two seconds, three times.
        self._command += ["-N", "2", "-R", "3"]

    def power(self) -> str:
        """Return the power state of the node, or "" if ipmitool prints none."""
        output = self._ask("chassis", "power", "status")
        state = re.search(r"Chassis Power is (\w+)", output)
        return state[1].capitalize() if state else ""

    def read_status(self) -> PowerStatus:
        """Return power, boot target and serial number.

        The serial number is "" if the FRU information states none.
        """
        # The boot flags are parameter 5 of the system's boot options.
        boot, enabled = parse_boot_flags(self._ask("chassis", "bootparam", "get", "5"))
        return PowerStatus(
            power=self.power(), boot=boot, boot_enabled=enabled, serial=self.read_fru("Product Serial")
        )

    def model(self) -> str:
        """Return manufacturer and name of the machine, or "" if its FRU information states neither."""
        names = (self.read_fru("Product Manufacturer"), self.read_fru("Product Name"))
        return " ".join(name for name in names if name)

    def switch(self, on: bool) -> None:
        """Switch the node on or off."""
        self._ask("chassis", "power", "on" if on else "off")

    def boot_from_network(self) -> None:
        """Request the next boot from the network."""
        # Without efiboot the flags request a legacy boot, which a machine configured for UEFI may ignore.
        self._ask("chassis", "bootdev", "pxe", *(["options=efiboot"] if self._access.uefi else []))

    def boot_as_set_up(self) -> None:
        """Cancel a request to boot from the network."""
        self._ask("chassis", "bootdev", "none")

    def read_fru(self, name: str) -> str:
        """Return a field of the machine's FRU information (its list of parts), or "" if it is missing.

        ipmitool prints a field as `` Product Serial        : ABC1234``.
        """
        if self._fru is None:
            # Some BMCs lack such information, or do not show it. Then every field is unknown.
            self._fru = self._ask("fru", "print", "0", needed=False)
        field = re.search(rf"^ *{name} *: *(.*)$", self._fru, re.MULTILINE)
        return sanitize(field[1], 60) if field else ""

    def _ask(self, *words: str, needed: bool = True) -> str:
        """Return the output of ipmitool.

        Args:
            words: The words of the command.
            needed: Whether a refusal of the command (not of the session) is an error.

        Raises:
            BmcError: There is no session, the BMC refuses, or ipmitool is not installed.
        """
        process = self._run(words)
        output, error = process.stdout.decode("utf-8", "replace"), process.stderr.decode("utf-8", "replace")
        # Check this before the exit status. If a privilege is too low, ipmitool may only warn and exit
        # with 0.
        if _PRIVILEGE.search(error):
            raise self._no_privilege()
        if process.returncode == 0:
            return output
        if _CIPHER.search(error):
            raise self._cipher_refused()
        if _LOGIN.search(error):
            raise self._login_refused()
        refused = _REFUSED.search(error)
        if refused is not None:
            raise self._command_refused(words, refused[1])
        # ipmitool returns the same status for every failure. Only its messages distinguish them.
        if _SILENT.search(error):
            raise self._silent(_last(error))
        if needed:
            raise self._command_refused(words, _last(error or output))
        return output

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        """Run ipmitool once. The password is its standard input."""
        try:
            return subprocess.run(  # noqa: S603  (a fixed program; words from the inventory are arguments)
                [*self._command, *words],
                env=environment_of_tool() | {"LC_ALL": "C"},
                input=f"{self._access.password}\n".encode(),
                capture_output=True,
                timeout=self._access.call_timeout_s,
                check=False,
            )
        except FileNotFoundError:
            raise BmcError(
                f"{self._node}: the program ipmitool is not installed on this machine, and IPMI needs it: "
                "apt-get install ipmitool"
            ) from None
        except subprocess.TimeoutExpired:
            raise self._silent(f"no answer within {self._access.call_timeout_s:.0f} s") from None

    def _user(self) -> str:
        """Return the name of the account for a message."""
        return sanitize(self._access.user or "an unnamed account", 60)

    def _no_privilege(self) -> BmcError:
        """Return the error about an account without the necessary privilege."""
        return BmcError(
            f"{self._node}: its BMC at {self._access.display_address} does not let {self._user()} do that: "
            "give the account the privilege operator for IPMI over LAN"
        )

    def _cipher_refused(self) -> BmcError:
        """Return the error about a cipher suite that the BMC does not support."""
        return BmcError(
            f"{self._node}: its BMC at {self._access.display_address} does not do cipher suite "
            f"{self._access.cipher_suite}: update its firmware, or use Redfish; reimage_bmc_cipher_suite: 3 "
            "is the weaker one of older BMCs (SHA-1)"
        )

    def _login_refused(self) -> BmcError:
        """Return the error about a refused login."""
        return BmcError(
            f"{self._node}: its BMC at {self._access.display_address} refuses the login of {self._user()}: "
            "check reimage_bmc_user and reimage_bmc_password in Vault (at most 20 characters), and whether "
            "the account is locked"
        )

    def _command_refused(self, words: Sequence[str], reason: str) -> BmcError:
        """Return the error about a refused command, with the BMC's reason."""
        return BmcError(
            f"{self._node}: its BMC at {self._access.display_address} refuses {' '.join(words)}: "
            f"{sanitize(reason, 300)}. See its log of events"
        )

    def _silent(self, reason: str) -> BmcSilentError:
        """Return the error about a BMC that does not answer."""
        return BmcSilentError(
            f"{self._node}: its BMC at {self._access.display_address} does not answer by IPMI ({reason}): "
            f"is it "
            "powered, is its network up, IPMI over LAN allowed? Some do not answer an account that they do "
            "not know. A hung one needs its reset button or its power taken away"
        )


def _last(text: str) -> str:
    """Return the last line of ipmitool's output, which states the reason."""
    lines = [line for line in text.splitlines() if line.strip()]
    return sanitize(lines[-1], 200) if lines else "no reason was given"


def parse_boot_flags(output: str) -> tuple[str, str]:
    """Return ``boot`` and ``boot_enabled`` of :class:`PowerStatus`, both "" if unknown. No I/O.

    Args:
        output: The output of ``ipmitool chassis bootparam get 5``, with a line such as ``Boot parameter data:
            a004000000``. Only these bytes are read, because the texts vary between versions.
    """
    data = re.search(r"^Boot parameter data: ([0-9a-f]{10})", output, re.MULTILINE | re.IGNORECASE)
    if not data:
        return "", ""
    # The first byte contains "valid" (bit 7) and "persistent" (bit 6), the second the device in bits 2 to 5.
    flags, device_byte = bytes.fromhex(data[1])[:2]
    device = (device_byte >> 2) & 0b1111
    boot = {0: "None", _PXE: "Pxe", _DISK: "Hdd"}.get(device, f"IPMI device {device}")
    if not flags & 0x80 or not device:
        return boot, "Disabled"
    return boot, "Continuous" if flags & 0x40 else "Once"


def parse_host_and_port(node: str, address: str) -> tuple[str, int]:
    """Return host and port of a BMC.

    Examples of addresses are ``10.0.0.11``, ``bmc17:6230``, ``fd00::11`` and ``[fd00::11]:6230``.

    Raises:
        BmcError: The text is not such an address.
    """
    try:
        return str(ipaddress.ip_address(address)), PORT
    except ValueError:
        pass
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname or "", parts.port or PORT
    except ValueError:
        host, port = "", 0
    if not re.fullmatch(r"[\w.:-]{1,253}", host) or host.startswith("-") or parts.path or parts.username:
        raise BmcError(
            f"{node}: {sanitize(address, 120)!r} is not an address for IPMI: a name or an IP address, with "
            ":PORT where it is not 623"
        )
    return host, port
