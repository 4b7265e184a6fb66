"""Find variables with secrets by name and value.

Plans, records and arguments must not contain secrets. Definitions, ``bench_environment`` and the Slurm launch
therefore refuse such variables, reports and comparisons hide their values, and the environment of other
programs lacks them (:mod:`.child_environment`).

Begin with :func:`secret_variables`, or with :func:`must_not_be_shown` before a message shows a value. The
module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "(secret)"
"""Text that replaces a secret's value in plans, records and pages, so that a job's variables remain
visible."""
# The beginning and the end of a word in a name.
_BEGINS, _ENDS = r"(?:^|[_.-])", r"(?![A-Z])"
# Matches names in capitals that suggest a secret.
_NAMED_SO = re.compile(
    r"PASSW|PASSPHRASE|SECRET|CREDENTIAL|API[_-]?KEY|WEBHOOK"
    # TOKENIZERS_PARALLELISM and MAX_TOKENS are not secrets.
    rf"|TOKEN{_ENDS}"
    rf"|(?:{_BEGINS}|ACCESS|PRIVATE|AUTH)KEY{_ENDS}"
    rf"|(?:[_.-]|SSH|DB)(?:PASS|PWD){_ENDS}"
    rf"|{_BEGINS}(?:PASS|AUTH|AUTHORIZATION|BEARER|COOKIE|CREDS?|DSN|JWT|PAT|SAS){_ENDS}"
)
# Matches harmless names that look secret: tokens of a text (PAD_TOKEN_ID), and the working directory that
# every shell exports.
_HARMLESS = re.compile(r"(?:PAD|EOS|BOS|UNK|SEP|CLS|MASK|END|START|STOP|PER)_?TOKEN(?:_ID)?|PWD|OLDPWD")
# Matches values that look secret.
_VALUED_SO = re.compile(
    # A login in a URL.
    r"\w://[^/\s:@]{0,200}:[^/\s@]{1,200}@"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY"
    # A JSON web token, and keys of well-known services, by their prefixes.
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\."
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\b(?:hf_|gh[pousr]_|github_pat_|glpat-|nvapi-|sk-|xox[abprs]-)[\w-]{16,}"
    r"|\b(?:Basic|Bearer) [\w.~+/=-]{12,}"
)

# Matches names and texts whose values are left out of messages. It matches more than the patterns above,
# because a message loses little without a harmless value.
_PERHAPS_SECRET = re.compile(r"key|passw|secret|token|credential", re.IGNORECASE)


def secret_variables(environment: Mapping[str, object]) -> list[str]:
    """Return the names of variables that seem to contain a secret, except those that are hidden already."""
    return [
        str(name)
        for name, value in environment.items()
        if value != HIDDEN and (_is_named_so(str(name)) or _VALUED_SO.search(str(value)))
    ]


def must_not_be_shown(name: str, value: object) -> bool:
    """Return whether a message must leave out the value of a variable, because it may contain a secret.

    A variable whose argument spec has ``no_log`` must be left out, too.
    """
    text = str(value)
    return any(map(_PERHAPS_SECRET.search, (name, text))) or bool(secret_variables({name: text}))


def _is_named_so(name: str) -> bool:
    """Return whether the name of a variable suggests a secret, such as ``NGC_API_KEY``."""
    upper = name.upper()
    return _HARMLESS.fullmatch(upper) is None and _NAMED_SO.search(upper) is not None


def hide_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with :data:`HIDDEN` in place of secrets, which old records may contain."""
    return {**environment, **dict.fromkeys(secret_variables(environment), HIDDEN)}


def refuse_secrets(environment: Mapping[str, object]) -> None:
    """Refuse variables that seem to contain a secret.

    Raises:
        ValueError: Some variables seem to contain a secret. The message gives only their names.
    """
    if names := secret_variables(environment):
        raise ValueError(
            f"{', '.join(names)}: a secret would be written into plans, records and reports; give it as "
            "bench_secret_environment, from Vault or the environment of the controller"
        )
