"""Verify a certificate offline, for the command in :mod:`rackproof.cli.evidence`.

Facts that follow from other facts in the certificate are computed again. The page, the JSON in it, the files
beside it and the signature must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from rackproof import __version__
from rackproof.analysis.certificate.answering import answer_catalogue, whole_verdict
from rackproof.analysis.certificate.catalogue import catalogue_names, load_catalogue
from rackproof.analysis.certificate.models import Answer, Certificate, CertificateError
from rackproof.analysis.certificate.page_parts import PageParts, load_certificate, shell_digest, split_page
from rackproof.analysis.certificate.signature import signer_of
from rackproof.core.records import Record, Verdict

BESIDE = (".json", ".json.sig")
"""Suffixes of the files beside a page, which are copies of its contents for other programs."""
_CLOCK_SKEW = timedelta(minutes=5)
"""Largest time by which a certificate may be later than now, because clocks differ."""


class Verification(Record):
    """The result of verifying a certificate.

    ``verdict`` is the certificate's present verdict, and ``signer`` is the name of the signer, or "".
    ``objections`` has the reasons why the certificate proves nothing. ``expired`` has the requirements that
    were met, but are no longer met, because their evidence is now too old. ``remarks`` change nothing in the
    verdict. ``answers`` are the answers at the present time. If there is an objection, ``answers`` is empty,
    because nothing proves the answers. If the JSON cannot be read, ``certificate`` is None.
    """

    verdict: Verdict
    signer: str = ""
    objections: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    certificate: Certificate | None = None


def verify_certificate(
    page: bytes,
    beside: Mapping[str, bytes],
    now: datetime,
    signers: Path | None,
    *,
    allow_unsigned: bool = False,
    render: Callable[[Certificate], str] | None = None,
) -> Verification:
    """Verify a certificate's page. A page that cannot be read gives an objection, not an error.

    Args:
        page: The bytes of the page.
        beside: The contents of the files beside it that exist, by suffix (:data:`BESIDE`).
        now: The time at which the certificate must be valid.
        signers: The path of the file of allowed signers.
        allow_unsigned: Whether a page without a signature may prove anything.
        render: A function that writes the page of a certificate again, to compare what people read in it.
    """
    try:
        parts = split_page(page)
        certificate = load_certificate(parts.json)
    except CertificateError as error:
        return Verification(verdict=Verdict.UNPROVEN, objections=(str(error),))
    signer, unsigned = _signer(parts, signers, allow_unsigned)
    objections = (
        *unsigned,
        *_disagreements(parts, beside, certificate),
        *_other_text(parts, certificate, render),
        *_wrong_answers(certificate, now),
    )
    answers = _answers_at(certificate, max(now, certificate.made))
    verdict = Verdict.UNPROVEN if objections else whole_verdict(answers)
    return Verification(
        verdict=verdict,
        signer=signer,
        objections=objections,
        # Answers that do not follow from the evidence never held.
        expired=() if objections else tuple(_expired(certificate, answers)),
        remarks=tuple(_remarks(certificate, is_rendered=render is not None)),
        answers=() if objections else answers,
        certificate=certificate,
    )


def _signer(parts: PageParts, signers: Path | None, allow_unsigned: bool) -> tuple[str, tuple[str, ...]]:
    """Return the signer, and the objections to the signature."""
    if not parts.signature:
        return "", () if allow_unsigned else ("it is unsigned: anyone can have made or changed it",)
    if signers is None:
        return "", ("its signature was not checked: name the allowed signers with --signers",)
    try:
        return signer_of(parts.json, parts.signature, signers), ()
    except CertificateError as error:
        return "", (str(error),)


def _disagreements(parts: PageParts, beside: Mapping[str, bytes], certificate: Certificate) -> Iterator[str]:
    """Yield an objection for each part or file that does not belong to the JSON in the page."""
    if shell_digest(parts.shell) != certificate.page_sha256:
        yield "the page was changed: it is not the one that the JSON belongs to"
    for suffix, inside in zip(BESIDE, (parts.json, parts.signature.encode()), strict=True):
        if suffix in beside and beside[suffix] != inside:
            yield f"the {suffix} beside the page differs from the page's content"


def _other_text(
    parts: PageParts, certificate: Certificate, render: Callable[[Certificate], str] | None
) -> Iterator[str]:
    """Yield an objection if the text that people read is not the text of the JSON."""
    # A signer can write a page by hand, and its digest into the JSON. Only the same version of Rackproof
    # writes the same page.
    if render and certificate.rackproof_version == __version__ and render(certificate) != parts.shell:
        yield "the page shows something else than its JSON"


def _answers_at(certificate: Certificate, moment: datetime) -> tuple[Answer, ...]:
    rows = certificate.catalogue.requirements
    return answer_catalogue(rows, certificate.asked, certificate.nodes, certificate.evidence, moment)


def _wrong_answers(certificate: Certificate, now: datetime) -> Iterator[str]:
    """Yield where answers, verdict or time of a certificate contradict its own evidence."""
    right = _answers_at(certificate, certificate.made)
    stored = tuple(_comparable(answer, certificate) for answer in certificate.answers)
    following = tuple(_comparable(answer, certificate) for answer in right)
    if stored != following:
        wrong = [answer.id for answer in following if answer not in stored] or ["their number or order"]
        yield f"its answers do not follow from its evidence: {', '.join(wrong[:10])}"
    if certificate.verdict is not whole_verdict(right):
        yield f"its verdict is {certificate.verdict.value}; {whole_verdict(right).value} follows"
    if certificate.made - now > _CLOCK_SKEW:
        yield f"it is dated {certificate.made:%Y-%m-%d %H:%M}, which is in the future"


def _comparable(answer: Answer, certificate: Certificate) -> Answer:
    """Return an answer, without its reasons if another version of Rackproof wrote them in its own words."""
    if certificate.rackproof_version == __version__:
        return answer
    return answer.model_copy(update={"reasons": (), "more_reasons": 0})


def _expired(certificate: Certificate, answers: tuple[Answer, ...]) -> Iterator[str]:
    """Yield the requirements that were met when the certificate was made, but are not met any more."""
    for then, present in zip(certificate.answers, answers, strict=False):
        if not then.verdict.gates and present.verdict.gates:
            yield f"{then.id}: it held until {then.until:%Y-%m-%d %H:%M}" if then.until else then.id


def _remarks(certificate: Certificate, *, is_rendered: bool) -> Iterator[str]:
    if is_rendered and certificate.rackproof_version != __version__:
        yield (
            f"Rackproof {certificate.rackproof_version} made the page, and this is {__version__}: "
            "only the answers here are proven, not the text of the page"
        )
    name = certificate.catalogue.name
    if name in catalogue_names() and load_catalogue(name) != certificate.catalogue:
        yield f"its catalogue {name} differs from the one that this Rackproof ships"
