"""Compare a value of a system description with the value that nodes or logs show. No I/O.

The description is the file ``systems/SYSTEM.json`` of an MLPerf submission, such as
``{"accelerators_per_node": "8", "host_memory_capacity": "2 TB"}``. The key decides by which rule its values
are compared (``_NUMBERS`` and ``_RULES``). A key without a rule is prose.

:mod:`.submission.description` compares every value, and :mod:`.mlperf.described` only the values on which a
score depends. Both call :func:`doubt_of`. Versions of software have no key, so :func:`same_version` compares
them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from rackproof.core.records import Verdict


class Doubt(NamedTuple):
    """A disagreement: proven (``fail``), not comparable (``unproven``), or a remark (None).

    ``reason`` is "" if the two values explain it.
    """

    verdict: Verdict | None
    reason: str


COUNTS = ("number_of_nodes", "accelerators_per_node", "host_processors_per_node")
_NUMBERS = frozenset({*COUNTS, "host_processor_core_count", "host_processor_vcpu_count"})

# DIMMs hold more than the system shows, and people round. 5 % is more than either difference. GB may mean
# 1000**3 or 1024**3 bytes, so two amounts in GB agree up to a difference of 13 %, and in TB of 16 %.
_TOLERANCE = 0.05
# Matches "2.3 TB", "192GiB", "32x 64GB" or "64 GB x 32": the number of modules, the amount, the letter
# before B, the i, and the number of modules if it comes last. The 86 of "64 GB x86" is not such a number.
_CAPACITY = re.compile(
    r"(?<![\w.])(?:([0-9]{1,4}) ?[x\u00d7*] ?)?([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kmgtp])(i?)b?\b"
    r"(?: ?[x\u00d7*] ?(?!86\b)([0-9]{1,4})\b)?",
    re.IGNORECASE,
)
# Matches a number of modules that is not beside the amount: "32 DIMMs of 64 GB", "32 x DDR5-4800 64 GB".
_MODULES = re.compile(
    r"\b[0-9]{1,3} ?(?:[x\u00d7*] ?(?![0-9 ])|dimms?\b|modules?\b|sticks?\b)", re.IGNORECASE
)
# Matches what lscpu adds to a processor's name: trade marks, the word CPU, and the base clock.
_PROCESSOR_EXTRAS = re.compile(r"\((?:r|tm|c)\)|\b(?:cpu|processor)\b|@ *[0-9.]+ *[mg]hz", re.IGNORECASE)
_PRODUCT_OF_CORE = {"neoverse-v2": "nvidia grace"}
"""Words of the described product that agree with the core that lscpu names instead of a processor's model."""
_NO_NAME = Doubt(Verdict.UNPROVEN, "it is not a name that could be compared")
# Matches "25.04" in "PyTorch 25.04-py3".
_VERSION = re.compile(r"[0-9]{1,9}(?:[.-][0-9]{1,9})*")
# A description may list several versions: "12.4; 12.6", "12.4 or 12.6".
_ALTERNATIVES = re.compile(r"[;,/]| or ")
# Matches the name of a GPU model (h100, gb200, mi300x), but not the name of its form or link (sxm5, pcie5,
# x16), its chip (gh100) or the version of its instructions (sm90).
_OTHER_MODEL = re.compile(
    r"(?!sxm|nvl|pcie|gen|oam|x[0-9]|sm[0-9]|g[ah]10[0-9]|ad10[0-9]|gb(?:10|20(?!0))[0-9]?)"
    r"[a-z]{1,3}[0-9]{2,4}[a-z]{0,2}"
)
_BRANDS = frozenset(("nvidia", "geforce", "quadro", "tesla", "amd", "radeon", "gpu", "graphics"))
"""Words of a GPU's name that one of two names of the same GPU may lack."""


def doubt_of(key: str, described: str, seen: str) -> Doubt | None:
    """Return why a described value disagrees with an observed one, or ``None`` if they agree.

    Args:
        key: A key of the description, such as ``host_memory_capacity``. Versions of software are compared
            by :func:`same_version` instead.
        described: The value in the description, not empty.
        seen: The value in the nodes' facts or in a log.
    """
    if key in _NUMBERS:
        return _same_number(described, seen)
    return _RULES.get(key, _same_words)(described, seen)


def _contradicted(agrees: bool) -> Doubt | None:
    """Return a proven disagreement unless the two values agree."""
    return None if agrees else Doubt(Verdict.FAIL, "")


def _same_number(described: str, seen: str) -> Doubt | None:
    """Return a doubt unless two whole numbers are equal."""
    if not (_plain_number(described).isdecimal() and _plain_number(seen).isdecimal()):
        return None if described == seen else Doubt(Verdict.UNPROVEN, "it is not a whole number")
    return _contradicted(_plain_number(described) == _plain_number(seen))


def _plain_number(text: str) -> str:
    """Return a whole number without the decimals of a YAML or JSON float."""
    return text.strip().removesuffix(".0")


def _same_capacity(described: str, seen: str) -> Doubt | None:
    """Return a doubt unless two amounts of memory agree. A number of modules beside them is ignored."""
    return _near(_capacities(described), _capacities(seen))


def _same_host_memory(described: str, seen: str) -> Doubt | None:
    """Return a doubt unless two amounts agree. ``32x 64GB`` is the amount of all modules."""
    doubt = _near(_capacities(described, all_modules=True), _capacities(seen, all_modules=True))
    if doubt is not None and doubt.verdict is Verdict.FAIL and _MODULES.search(described):
        return Doubt(Verdict.UNPROVEN, "its number of modules is not beside the amount, as in 32x 64 GB")
    return doubt


def _near(described_bytes: set[float], seen_bytes: set[float]) -> Doubt | None:
    """Return a doubt unless a described number of bytes is near a seen one. An empty set is unproven."""
    if not described_bytes or not seen_bytes:
        return Doubt(Verdict.UNPROVEN, "it is not an amount of memory such as 192 GB")
    near = any(
        math.isclose(described_amount, seen_amount, rel_tol=_TOLERANCE)
        for described_amount in described_bytes
        for seen_amount in seen_bytes
    )
    return _contradicted(near)


def _capacities(text: str, *, all_modules: bool = False) -> set[float]:
    """Return the numbers of bytes that the first amount in a text may mean, or an empty set without one.

    GB is used for powers of ten and of two, so it gives two numbers. With ``all_modules``, the amount is
    multiplied by the number of modules beside it.
    """
    match = _CAPACITY.search(text.replace(",", ""))
    if match is None:
        return set()
    before, amount, letter, binary, after = match.groups()
    modules = int(before or 1) * int(after or 1) if all_modules else 1
    power = "kmgtp".index(letter.lower()) + 1
    bases = (1024,) if binary else (1000, 1024)
    return {modules * float(amount) * base**power for base in bases}


def same_version(described: str, seen: str) -> Doubt | None:
    """Return a doubt unless one version is the other or its beginning: 12.4 and 12.4.1 agree both ways.

    A description may list several versions. One of them must agree. Texts without a version are unproven,
    unless they are equal.
    """
    seen_version = _version(seen)
    described_versions = [version for part in _ALTERNATIVES.split(described) if (version := _version(part))]
    if described.casefold().split() == seen.casefold().split():
        return None
    if not seen_version or not described_versions:
        return Doubt(Verdict.UNPROVEN, "it is not a version that could be compared")
    return _contradicted(
        any(
            _begins(described_version, seen_version) or _begins(seen_version, described_version)
            for described_version in described_versions
        )
    )


def _version(text: str) -> list[str]:
    """Return the numbers of the first version in a text, without leading zeros: 25 and 4 for ``25.04``.

    The list is empty if the text has no number.
    """
    match = _VERSION.search(text)
    return [str(int(number)) for number in re.split("[.-]", match[0])] if match else []


def _begins(short: list[str], long: list[str]) -> bool:
    return long[: len(short)] == short


def _same_system(described: str, seen: str) -> Doubt | None:
    """Return a doubt unless two operating systems agree. A different point release is only a remark.

    Without a common word, or with other first two numbers of their versions, they are compared as names.
    """
    described_version, seen_version = _version(described), _version(seen)
    if described_version[:2] != seen_version[:2] or not _name_words(described) & _name_words(seen):
        return _same_name(described, seen)
    if _begins(described_version, seen_version) or _begins(seen_version, described_version):
        return None
    return Doubt(None, "they are point releases of one version")


def _name_words(text: str) -> set[str]:
    """Return the words of an operating system's name that distinguish it from others."""
    return set(re.findall(r"[a-z]{2,}", text.casefold())) - {"lts", "linux", "gnu"}


def _same_name(described: str, seen: str) -> Doubt | None:
    """Return a doubt unless one name contains the other, as in "PyTorch" and "PyTorch NVIDIA Release".

    A text without a word or number is unproven.
    """
    described_words, seen_words = _words(described), _words(seen)
    if not described_words or not seen_words:
        return _NO_NAME
    described_name, seen_name = (f" {' '.join(words)} " for words in (described_words, seen_words))
    return _contradicted(described_name in seen_name or seen_name in described_name)


def _same_processor(described: str, seen: str) -> Doubt | None:
    """Return a doubt unless one name has all words of the other, apart from what lscpu adds.

    A text without a word or number is unproven.
    """
    described_words, seen_words = (
        set(_words(_PROCESSOR_EXTRAS.sub(" ", text))) for text in (described, seen)
    )
    if not described_words or not seen_words:
        return _NO_NAME
    if described_words >= set(_words(_PRODUCT_OF_CORE.get(seen.strip().casefold(), seen))):
        return None
    return _contradicted(described_words <= seen_words or seen_words <= described_words)


def _words(text: str) -> list[str]:
    """Return the words and numbers of a name, in lower case: ``xeon``, ``8480``, ``c`` for ``Xeon 8480C``."""
    return re.findall(r"[^\W\d_]+|\d+|\+", text.casefold())


def _same_model(described: str, seen: str) -> Doubt | None:
    """Return a proven disagreement unless the described GPU model is the one that was seen.

    A seen name without a model's word, such as ``NVIDIA Graphics Device``, must be equal.
    """
    described_words, seen_words = model_words(described), model_words(seen)
    if not seen_words:
        return _contradicted(set(_words(described)) - _BRANDS == set(_words(seen)) - _BRANDS)
    # Compare whole words, because a B200 is not a GB200. There must also be no second model beside the
    # right one.
    other_words = [word for word in described_words - seen_words if _OTHER_MODEL.fullmatch(word)]
    return _contradicted(bool(described_words & seen_words) and not other_words)


def model_words(name: str) -> frozenset[str]:
    """Return the words that distinguish GPU models: ``h100`` for ``NVIDIA H100-SXM5 80GB HBM3``.

    They have letters and digits. The amount and kind of memory and the form SXM do not count.
    """
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return frozenset(
        word
        for word in words
        if re.search(r"[a-z]", word)
        and re.search(r"\d", word)
        and not re.fullmatch(r"\d+gb|(?:hbm|sxm)\w*", word)
    )


def _same_words(described: str, seen: str) -> Doubt | None:
    """Return a remark unless one text has all words of the other, because no rule compares prose."""
    described_words, seen_words = (
        set(re.findall(r"[a-z0-9]+", text.casefold())) for text in (described, seen)
    )
    if described_words <= seen_words or seen_words <= described_words:
        return None
    return Doubt(None, "it is prose, which only people can compare")


# A key that is neither here nor in _NUMBERS is prose.
_RULES: dict[str, Callable[[str, str], Doubt | None]] = {
    "framework": _same_name,
    "host_processor_model_name": _same_processor,
    "accelerator_model_name": _same_model,
    "accelerator_memory_capacity": _same_capacity,
    "host_memory_capacity": _same_host_memory,
    "operating_system": _same_system,
}
