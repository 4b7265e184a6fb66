"""Sign and verify a certificate's bytes with ``ssh-keygen -Y`` and an SSH key of the operator.

:mod:`rackproof.cli.evidence` signs, and :mod:`.verification` verifies.
"""

from __future__ import annotations

import base64
import re
import subprocess
import tempfile
from pathlib import Path

from rackproof.analysis.certificate.models import NAMESPACE, CertificateError
from rackproof.core.child_environment import SSH_NEEDS, environment_of_tool
from rackproof.core.text import sanitize

_TIMEOUT_S = 120.0
"""Time limit of one call of ssh-keygen in seconds."""
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----\n", "-----END SSH SIGNATURE-----\n"
_COLUMNS = 70
"""Width of the base64 lines that ssh-keygen writes."""


def sign_bytes(data: bytes, key: Path) -> str:
    """Return the signature of some bytes, as the ASCII text that ssh-keygen writes.

    Args:
        data: The bytes to sign.
        key: The file of the private key, or of a public key with its private key in ssh-agent.

    Raises:
        CertificateError: The key cannot be used, or ssh-keygen is absent or takes more than 120 s.
    """
    process = _ssh_keygen(["sign", "-q", "-f", str(key), "-n", NAMESPACE], data)
    text = process.stdout.decode("ascii", "replace")
    if process.returncode or not _is_as_written(text):
        raise CertificateError(f"{key} cannot sign: {_complaint(process)}")
    return text


def signer_of(data: bytes, signature: str, signers: Path) -> str:
    """Return the name of the signer of some bytes.

    If the file gives the key several names, return the first that may sign certificates today.

    Args:
        data: The signed bytes.
        signature: The text that :func:`sign_bytes` returned.
        signers: A file of allowed signers (``man ssh-keygen``).

    Raises:
        CertificateError: The file is absent or does not list the key, the signature or the bytes were
            changed, or ssh-keygen is absent or takes more than 120 s.
    """
    if not _is_as_written(signature):
        raise CertificateError("its signature was changed, or is not in the form of ssh-keygen")
    if not signers.is_file():
        raise CertificateError(f"there is no file of allowed signers at {signers}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "signature"
        file.write_text(signature)
        process = _ssh_keygen(["find-principals", "-s", str(file), "-f", str(signers)], b"")
        names = process.stdout.decode("utf-8", "replace").splitlines()
        if process.returncode or not names:
            raise CertificateError(_unknown_key(process, signers))
        # The file may give a key several names. ssh-keygen checks the namespace and the dates of each.
        for name in names:
            arguments = ["verify", "-f", str(signers), "-I", name, "-n", NAMESPACE, "-s", str(file)]
            if _ssh_keygen(arguments, data).returncode == 0:
                return name
    raise CertificateError(
        f"the signature does not hold: the JSON was changed, or {signers} does not allow its key"
    )


def _unknown_key(process: subprocess.CompletedProcess[bytes], signers: Path) -> str:
    """Return the message about a key that ssh-keygen did not find, with the first line it could not read."""
    found = f"it is signed by a key that {signers} does not name"
    try:
        lines = signers.read_bytes().splitlines()
    except OSError as error:
        return f"the allowed signers at {signers} cannot be read: {error.strerror}"
    for match in re.finditer(r":([0-9]{1,9}): .*", process.stderr.decode("utf-8", "replace")):
        # ssh-keygen also complains about an empty line.
        if any(line.strip() for line in lines[int(match[1]) - 1 : int(match[1])]):
            why = sanitize(match[0].removeprefix(":"), 300)
            return f"{found} in a line that ssh-keygen can read (line {why}): write NAME KEYTYPE KEY"
    return found


def _is_as_written(signature: str) -> bool:
    """Return whether a signature is exactly as ssh-keygen writes it.

    ssh-keygen also reads other forms, so a changed text could still be a valid signature.
    """
    try:
        raw = base64.b64decode(signature.removeprefix(_BEGIN).removesuffix(_END))
    except ValueError:
        return False
    text = base64.b64encode(raw).decode()
    lines = [text[at : at + _COLUMNS] + "\n" for at in range(0, len(text), _COLUMNS)]
    return signature == f"{_BEGIN}{''.join(lines)}{_END}"


def _ssh_keygen(arguments: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh-keygen -Y`` with the data as its input.

    Raises:
        CertificateError: ssh-keygen is not installed, or did not end in time.
    """
    try:
        return subprocess.run(  # noqa: S603  (a fixed program, and no shell)
            ["ssh-keygen", "-Y", *arguments],  # noqa: S607  (OpenSSH, wherever it is)
            input=data,
            env=environment_of_tool(*SSH_NEEDS),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise CertificateError("there is no ssh-keygen on PATH: install OpenSSH 8.2 or later") from None
    except subprocess.TimeoutExpired:
        raise CertificateError(f"ssh-keygen did not end within {_TIMEOUT_S:g} s") from None


def _complaint(process: subprocess.CompletedProcess[bytes]) -> str:
    """Return the error message of ssh-keygen, or its exit status if it gave none."""
    return (
        sanitize(process.stderr.decode("utf-8", "replace"), 300)
        or f"ssh-keygen ended with {process.returncode}"
    )
