"""Read catalogues of requirements: those shipped with the package, and files of a user."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import yaml
from pydantic import ValidationError

from rackproof.analysis.certificate.models import Catalogue, CertificateError
from rackproof.core.text import sanitize
from rackproof.store.run_folder import read_file

_LARGEST = 1 << 20


def catalogue_names() -> list[str]:
    """Return the names of the shipped catalogues."""
    folder = files("rackproof.analysis.certificate").joinpath("catalogues")
    return sorted(one.name.removesuffix(".yml") for one in folder.iterdir() if one.name.endswith(".yml"))


def load_catalogue(name: str) -> Catalogue:
    """Return a shipped catalogue by its name, or that of a file.

    Raises:
        CertificateError: There is none, or it is damaged; names file and key.
    """
    if name in catalogue_names():
        found = files("rackproof.analysis.certificate").joinpath("catalogues", f"{name}.yml")
        return _parse(found.read_bytes(), name)
    try:
        data = read_file(Path(name), _LARGEST)
    except OSError as error:
        known = ", ".join(catalogue_names())
        raise CertificateError(
            f"no catalogue {name}: it is none of {known}, and no file ({error.strerror})"
        ) from None
    return _parse(data, name)


def _parse(data: bytes, name: str) -> Catalogue:
    try:
        return Catalogue.model_validate(yaml.safe_load(data))
    except ValidationError as error:
        shown = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'catalogue'}: {one['msg']}" for one in error.errors()[:3]
        )
        raise CertificateError(f"{name}: {sanitize(shown, 600)}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CertificateError(f"{name} is not YAML: {sanitize(error, 300)}") from None
