"""Read catalogues of requirements, from the package or from a user's file.

A catalogue is YAML. ``rackproof evidence RACK``, and the verification of a certificate, call
:func:`load_catalogue`. A requirement looks like this::

    - {id: network, text: Ports are up., max_age_days: 7, night: true, codes: ["port_*"], reads: [ports]}
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rackproof.analysis.certificate.models import Catalogue, CertificateError
from rackproof.core.definitions import DefinitionError, construct_document, lines_of_keys
from rackproof.core.finding_codes import find_code, near_codes, registry
from rackproof.core.text import sanitize
from rackproof.store.run_folder import read_file

_LARGEST = 1 << 20
"""Largest size of a catalogue, in bytes."""


def catalogue_names() -> list[str]:
    """Return the names of the shipped catalogues."""
    folder = files("rackproof.analysis.certificate").joinpath("catalogues")
    return sorted(path.name.removesuffix(".yml") for path in folder.iterdir() if path.name.endswith(".yml"))


def load_catalogue(name: str) -> Catalogue:
    """Return the catalogue of a shipped name or of a file.

    Raises:
        CertificateError: There is no such catalogue, the file is damaged, or it names a code that no night
            gives. The message names the file and the key.
    """
    if name in catalogue_names():
        path = files("rackproof.analysis.certificate").joinpath("catalogues", f"{name}.yml")
        return _parse(path.read_bytes(), name)
    try:
        data = read_file(Path(name), _LARGEST)
    except FileNotFoundError:
        names = ", ".join(catalogue_names())
        raise CertificateError(f"no catalogue {name}: it is none of {names}, and no file") from None
    except OSError as error:
        raise CertificateError(f"cannot read the catalogue {name}: {error.strerror}") from None
    return _parse(data, name)


def _parse(data: bytes, name: str) -> Catalogue:
    """Return a catalogue from YAML.

    Raises:
        CertificateError: The data is not YAML, has a key twice, breaks the format, or names a code that no
            night gives.
    """
    try:
        # Of two equal keys, YAML would drop the first, so lines_of_keys refuses them.
        document = yaml.compose(data, Loader=yaml.SafeLoader)
        lines_of_keys(document, Path(name))
        catalogue = Catalogue.model_validate(construct_document(document))
    except ValidationError as error:
        errors_text = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'catalogue'}: "
            f"{problem['msg'].removeprefix('Value error, ')}"
            for problem in [found for found in error.errors() if not _follows(found)][:3]
        )
        raise CertificateError(f"{name}: {sanitize(errors_text, 600)}") from None
    except DefinitionError as error:
        raise CertificateError(sanitize(error, 400)) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CertificateError(f"{name} is not YAML: {sanitize(error, 300)}") from None
    # A misspelt code would always pass, because no night gives a finding with that code.
    for row in catalogue.requirements:
        if wrong := next((code for code in row.codes if not is_night_code(code)), ""):
            near = " or ".join(near_codes(wrong)) or "one of docs/using/codes.md"
            raise CertificateError(f"{name}: {row.id}: no night gives the code {wrong}; perhaps {near}")
    return catalogue


def _follows(problem: ErrorDetails) -> bool:
    """Return whether a problem is only that no item of a list is valid, because each item has its own one."""
    return problem["type"] == "too_short" and bool(problem["input"])


def is_night_code(pattern: str) -> bool:
    """Return whether a night can give a finding whose code matches a pattern."""
    entry = find_code(pattern)
    matching = (code_entry for code, code_entry in registry().items() if fnmatchcase(code, pattern))
    return any("night" in code_entry.jobs for code_entry in ([entry] if entry else matching))
