"""Parse the table and the JSON of ``dcgmi diag``, NVIDIA's test of GPUs, for :func:`rackproof.logs.parse`.

DCGM 2 and 3 print ``Pass - All`` if a test has the same result on all GPUs. If not, they print one row for
each result, with its GPUs (``HelperDisplayGpuResults`` in dcgmi/Diag.cpp of NVIDIA/DCGM, 2.3 to 3.3)::

    | GPU Memory                | Pass - GPUs: 1, 2, 3                           |
    |                           | Fail - GPU: 0                                  |
    | Warning                   | MESSAGE                                        |

DCGM 4 prints one more row for each GPU::

    | pcie                      | Fail                                           |
    |                           | GPU0: Fail                                     |
    | Warning: GPU0             | MESSAGE                                        |

The JSON (``-j``) has the same words, and lists the GPUs of each test in all releases. Since DCGM 3.1, table
and JSON state the number of GPUs that were tested. Options ``-i`` and ``-g`` of the command restrict it.

The parts of a test are the GPUs and other devices that it tested.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import orjson

from rackproof.core.records import Direction, ParsedLog, Verdict
from rackproof.logs._reading import Log, LogParser

_TITLE = "Successfully ran diagnostic for group."
"""Line above a table."""
_ROW = re.compile(r"^\| (.{25}) \| (.*)\|$")
_SECTION = re.compile(r"^[|+]-----  (\w{1,40})  -{2,40}\+-{20,80}[|+]$")
"""Pattern of the heading of a group of tests: ``|-----  Hardware  -----+-----...-----|``."""
_FOOTER = re.compile(r"^\+-{20,40}\+-{30,80}\+$")
_PART = re.compile(r"^(?P<parts>[A-Za-z]{1,20} ?\d{1,4}): (?P<word>Pass|Fail|Warn|Skip)\b")
_GPU_LIST = re.compile(r"^(?P<word>Pass|Fail|Warn|Skip) - GPUs?: (?P<parts>\d[\d, ]{0,60}(?:\.\.\.)?)$")
"""Pattern of a result of some GPUs in DCGM 2 and 3. dcgmi cuts a long list, and ends it with three dots."""
_WHOLE_NUMBER = re.compile(r"\b\d+(?=,|$)")
"""Pattern of a number in such a list that is not cut."""
_ODD_PASS = re.compile(r"^pass\b(?!$| - all$)", re.IGNORECASE)
"""Pattern of a passed test whose GPUs cannot be read."""
_ERROR = re.compile(r"^Error: .{0,200}(?:diagnostic|host engine|GPU)", re.IGNORECASE)
_REMARKS = ("warning", "error", "info")
"""Names of the rows that explain the test above."""
_CHUNK = 45
"""Characters of a remark in each row. dcgmi cuts a longer one here, also in the middle of a word."""
_MOST_CHARACTERS = 1000
"""Largest number of characters of a remark that are joined. Messages have 300 of them."""
_CONFIG = 5
"""DCGM's ``error_severity`` of an error that another setting of the node removes."""
_MAYBE_HARDWARE = frozenset({20, 46, 112})
"""``error_id`` of errors with this severity that a fault causes, too: a GPU that is missing in ``/dev``, a
narrow PCIe link, and an NVLink fabric that was not trained."""
_FAULT = re.compile(
    r"memory errors and (?:row remapp|\d+ rows were remapped)|exceeded uncorrectable row remap limit|"
    r"\d volatile double-bit ECC error|double-bit ECC error has occ|pending retired page has been detected|"
    r"Pending page retirements together with a DBE|retired pages (?:due to DBEs )?have been detected|"
    r"Found \d+ (?:faulty|NaN-value) memory elements|memory mismatch was detected on GPU|"
    r"miscompare failure in the L1 cache|had an uncontained error|SRAM Threshold Count exceeded on GPU|"
    r"GPU \d+ has fallen off the bus|"
    r"unsuccessfully (?:wrote|written) .{0,60}in a peer-to-peer test|"
    r"NvLink errors on GPU \d+'s NVLink \(should be 0\)|NvLink errors found occuring per second on GPU|"
    r"NVSwitch \d+'s NvLink \d+ is down|Detected fatal (?:errors on NvSwitch|NvSwitch SXID)"
)
"""Pattern of messages that only a broken GPU, link or switch causes. They have the severity ``ISOLATE`` or
``RESET`` and a category of hardware or of XIDs in dcgmlib/dcgm_errors.h of DCGM 2.3 to 4.6."""
_JSON_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
"""Name of the document of DCGM 4, and of the releases before."""
_WITHOUT_TOOL = re.compile(r"(?:cpu_?)?\s*eud\b|pulse", re.IGNORECASE)
"""Pattern of tests that may be skipped on a healthy node: they need a package or a certain board."""
_SOFTWARE = (
    *("NVML Library", "CUDA Main Library", "Permissions and OS Blocks", "Persistence Mode"),
    *("Environment Variables", "Page Retirement", "Graphics Processes", "Inforom"),
)
"""The tests of software in each level of DCGM 2 and 3. DCGM 4 has one test, ``software``."""
_WITHOUT_GPUS = ("Denylist", "Blacklist", *_SOFTWARE)
"""The tests for which DCGM 2 and 3 list no GPUs, or only one that has an error."""
_GPU_TESTS = (
    *("software", "pcie", "memory", "memory_bandwidth", "diagnostic", "targeted_stress", "targeted_power"),
    *("memtest", "nvbandwidth"),
)
"""The tests of GPUs in DCGM 4, which may list other parts of the node as well."""
_COMMAND = re.compile(
    r"^(?:[^|]{0,200}[$#%>+] +)?"
    r"(?:(?:sudo|time|timeout|env|srun|ssh|docker|podman|kubectl|nsenter|chroot) +(?:\S{1,100} +){0,12})?"
    r"(?:/\S{0,100}/)?dcgmi +diag +(?:[^|;&]{0,200} )?"
    r"(?:-r|--run)[ =]+([1-4]|medium|med|long|xlong|extended)(?:\s|$)"
)
"""Pattern of a ``dcgmi diag`` command with its level, after a prompt or a launcher. It begins a line, because
other sentences may name another level."""
_LEVELS = {"medium": 2, "med": 2, "long": 3, "xlong": 4, "extended": 4}
_TESTS_FROM_LEVEL = {
    "pcie": 2,
    "memory": 2,
    "diagnostic": 3,
    "targeted stress": 3,
    "targeted power": 3,
    "memory bandwidth": 3,
    "memtest": 4,
}
"""The lowest level of each test whose result DCGM 3 and 4 print on every GPU that they support."""
_MAX_JSON = 16 << 20


class DcgmDiagParser(LogParser):
    """The parser of the results of ``dcgmi diag``, as table or JSON."""

    format: ClassVar[str] = "dcgmi_diag"
    description: ClassVar[str] = "dcgmi diag, table or JSON of -j"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain a result of ``dcgmi diag``."""
        if b"test_categories" in head and any(f'"{root}"'.encode() in head for root in _JSON_ROOTS):
            return True
        return _TITLE.encode() in head and b"| Diagnostic " in head

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        log.reads_line = lambda line: line.startswith(b"|")
        self.document: bytearray | None = None
        """The JSON and any lines around it, or None for a table."""
        self.tests: dict[str, str] = {}
        """The word for each test: pass, or the first other one."""
        self.section = ""
        self.test = ""
        """The test of the last row, to which parts and remarks belong."""
        self.parts: dict[str, set[str]] = {}
        """GPUs and other parts that each test lists."""
        self.gpu_lists: set[str] = set()
        """Tests with a list of some GPUs, which DCGM 2 and 3 print in place of ``All``."""
        self.gpus: int | None = None
        """Number of GPUs that DCGM detected, or None if it does not state it."""
        self.names_parts = False
        """True for the JSON of DCGM 4, which states the number of GPUs, and the parts of each test. The test
        ``software`` shows that a table is of DCGM 4."""
        self.level = 1
        """The level of the command above the table, or 1 if the log does not show it."""
        self.tables = 0
        self.is_open = False
        """True from the start of a table to its end."""
        self.remark: _Remark | None = None
        """The remark of the row above, which may go on in the next row."""

    def block(self, data: bytes) -> None:
        """Read the rows of a table, or collect the JSON."""
        if self.document is None and not self.tables and b'"test_categories"' in data:
            self.document = bytearray()
        if self.document is None:
            super().block(data)
        elif len(self.document) < _MAX_JSON:
            self.document += data

    def line(self, at: int, text: str) -> None:
        """Read one line of the table."""
        if row := _ROW.match(text):
            self._row(at, row[1].strip(), row[2], text)
            return
        self._end_remark()
        if section := _SECTION.match(text):
            self.section = section[1]
        elif _FOOTER.match(text):
            # The line of dashes also stands above the heading, so it ends the table only after a section.
            self.is_open = self.is_open and not self.section
        elif _TITLE in text:
            self.tables += 1
            self.is_open, self.section = True, ""
        elif text.startswith("|"):
            self._find_unreadable(at, text)
        elif not self.tables and (command := _COMMAND.match(text)):
            self.level = _LEVELS.get(command[1]) or int(command[1])
        elif _ERROR.match(text):
            message = "dcgmi did not run the diagnostic"
            self.log.find("tool_error", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def _row(self, at: int, name: str, cell: str, text: str) -> None:
        """Read one row: a test, a part of it, or a remark on it."""
        listed = _GPU_LIST.match(cell.strip()) or (None if name else _PART.match(cell.strip()))
        if not name and listed is None and self.remark is not None:
            self.remark.words += cell[:_CHUNK] if len(self.remark.words) < _MOST_CHARACTERS else ""
            return
        self._end_remark()
        kind = name.partition(":")[0].lower()
        if self.section in ("", "Metadata"):
            self._read_metadata(name, cell)
        elif kind in _REMARKS:
            self.remark = _Remark(at, kind, cell[:_CHUNK], text)
        else:
            self._read_test(at, name, cell.strip(), listed, text)

    def _read_metadata(self, name: str, cell: str) -> None:
        """Read a row above the tests, of which only the one with the numbers of the GPUs matters."""
        if name == "GPU Device IDs Detected":
            self.gpus = sum(bool(gpu_id.strip()) for gpu_id in cell.split(","))

    def _read_test(self, at: int, name: str, result: str, listed: re.Match[str] | None, text: str) -> None:
        """Read a row with a test, or with a part of the test above it."""
        if name or (self.test and listed):
            self.test = name or self.test
            self._read_words(at, result, listed, text)
        elif result:
            self._find_unreadable(at, text)

    def _read_words(self, at: int, result: str, listed: re.Match[str] | None, text: str) -> None:
        """Judge a row with the word for a test, or for the parts that the row lists."""
        if listed is None:
            self._result(at, self.test, "", result, text)
            if _ODD_PASS.match(result):
                self._find_unreadable(at, text)
            return
        if listed.re is _GPU_LIST:
            self.gpu_lists.add(self.test)
        names = _part_names(listed["parts"])
        if not names:
            self._find_unreadable(at, text)
        # The word counts even if no number can be read.
        for part in names or [""]:
            self._result(at, self.test, part, listed["word"], text)

    def _find_unreadable(self, at: int, text: str) -> None:
        """Record a row of the table that is damaged, and that may have reported a fault."""
        self.log.find("damaged_line", "a row that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text)

    def _end_remark(self) -> None:
        """Record the remark of the rows above, if there is one. Mere information is left out."""
        remark, self.remark = self.remark, None
        if remark is not None and remark.kind != "info":
            self._report(remark.line, self.test, " ".join(remark.words.split()), remark.excerpt)

    def _report(self, at: int | None, test: str, words: str, text: str, *, is_setting: bool = False) -> None:
        """Record a message of DCGM in its own words: a fault fails, and any other message is unproven."""
        message = f"{test or 'DCGM'}: DCGM reports: {words:.300}"
        if is_setting:
            # A setting stopped the test, so it shows neither a fault nor a healthy GPU.
            message = f"{test or 'DCGM'}: a setting is wrong: {words:.300}"
            self.log.find("dcgm_setting", message, Verdict.UNPROVEN, line=at, excerpt=text)
            return
        if _FAULT.search(words):
            self.log.find("dcgm_fault", message, Verdict.FAIL, line=at, excerpt=text)
            return
        self.log.find("dcgm_warning", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def _result(self, at: int | None, test: str, part: str, result: str, text: str) -> None:
        """Judge the word for a test, or for one part of it."""
        word = self._take_word(test, part, result)
        name = f"{test}{f' of {part}' if part else ''}"
        if word == "fail":
            self.log.find("dcgm_fault", f"{name} failed", Verdict.FAIL, line=at, excerpt=text)
        elif word == "warn":
            self.log.find("dcgm_warning", f"{name} warns", Verdict.DEGRADED, line=at, excerpt=text)
        elif word == "skip":
            verdict = None if _WITHOUT_TOOL.match(test) else Verdict.UNPROVEN
            message = f"{name} was skipped: install what it needs, or run a level without it"
            self.log.find("dcgm_skipped", message, verdict, line=at, excerpt=text)
        elif word != "pass":
            message = f"{name} has no known result: {result:.40}"
            self.log.find("dcgm_warning", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def _take_word(self, test: str, part: str, result: str) -> str:
        """Store the word for a test, or for one part of it, and return the word."""
        word = result.partition(" ")[0].lower()
        self.tests[test] = word if self.tests.get(test) in (None, "pass") else self.tests[test]
        if part:
            self.parts.setdefault(test, set()).add(part)
        return word

    def finish(self) -> ParsedLog:
        """Return the parsed log, with the number of tests that passed. Without any, it is unproven."""
        log = self.log
        self._end_remark()
        if self.document is not None:
            self._read_document(bytes(self.document))
        elif self.is_open or not self.tables:
            log.find("cut_off", "the table has no end", Verdict.UNPROVEN)
        if self.tables > 1:
            message = "several diagnostics in one log: give each its own file"
            log.find("several_runs", message, Verdict.UNPROVEN)
        self._judge_tests()
        passed = sum(word == "pass" for word in self.tests.values())
        measurements = [self.measure("dcgm_tests_passed", float(passed), "", Direction.HIGHER, None)]
        return log.parsed(self.format, Verdict.PASS if passed else Verdict.UNPROVEN, measurements)

    def _judge_tests(self) -> None:
        """Find tests and parts that the results lack."""
        if not self.tests:
            self.log.find("no_rows", "no result of a test", Verdict.UNPROVEN)
        self._judge_software()
        self._judge_level()
        if self.names_parts or "software" in self.tests:
            self._judge_number()
            self._judge_names(list(self.tests))
        elif self.document is not None:
            tests = (test for test in self.tests if not _WITHOUT_TOOL.match(test))
            self._judge_names([test for test in tests if not test.startswith(_WITHOUT_GPUS)])
        self._compare_parts()
        self._judge_lists()

    def _judge_software(self) -> None:
        """Find missing tests of software. DCGM 4 has one row for all of them."""
        missing = [name for name in _SOFTWARE if not any(test.startswith(name) for test in self.tests)]
        if missing and "software" not in self.tests:
            message = f"the tests of software are not whole: no {', '.join(missing)}"
            self.log.find("rows_missing", message, Verdict.UNPROVEN)

    def _compare_parts(self) -> None:
        """Find tests with results of fewer parts than other tests have."""
        lists = {test: parts for test, parts in self.parts.items() if not test.startswith(_WITHOUT_GPUS)}
        everywhere = Counter(_kind(part) for part in set().union(*lists.values()))
        everywhere["GPU"] = max(everywhere["GPU"], self.gpus or 0)
        for test, parts in lists.items():
            # A test of processors lists no GPUs: only parts of the same kind can be compared. A skip has a
            # finding of its own.
            for kind, count in Counter(map(_kind, parts)).items():
                if count < everywhere[kind] and self.tests[test] != "skip":
                    names = _sorted_names(part for part in parts if _kind(part) == kind)
                    message = f"{everywhere[kind]} {kind}s detected, {test} has results of only {names}"
                    self.log.find("gpu_missing", message, Verdict.UNPROVEN)

    def _judge_lists(self) -> None:
        """Find tests that passed on some GPUs, and have no result of the others.

        Releases before DCGM 3.1 do not state the number of GPUs, but they write ``All`` if a test passed on
        all of them.
        """
        for test in sorted(self.gpu_lists) if self.gpus is None else ():
            if self.tests[test] == "pass":
                names = _sorted_names(self.parts.get(test, ()))
                message = f"{test} did not run on all GPUs: it has results of only {names}"
                self.log.find("gpu_missing", message, Verdict.UNPROVEN)

    def _judge_level(self) -> None:
        """Find tests of the command's level that the results lack."""
        names = {test.lower().replace("_", " ").removeprefix("gpu ") for test in self.tests}
        expected = [name for name, level in _TESTS_FROM_LEVEL.items() if level <= self.level]
        if lacking := [name for name in expected if name not in names]:
            message = f"level {self.level} of the command has more tests: no {', '.join(lacking)}"
            self.log.find("rows_missing", message, Verdict.UNPROVEN)

    def _judge_number(self) -> None:
        """Find a missing number of GPUs, which DCGM 4 always states."""
        if not self.gpus:
            message = "the number of detected GPUs is missing: results of GPUs may be, too"
            self.log.find("gpu_missing", message, Verdict.UNPROVEN)

    def _judge_names(self, tests: Sequence[str]) -> None:
        """Find tests that do not state what they tested, as DCGM 4 and each JSON do."""
        for test in tests:
            kinds = set(map(_kind, self.parts.get(test, ())))
            lacks_gpus = not kinds or (test in _GPU_TESTS and "GPU" not in kinds)
            if lacks_gpus and self.tests[test] != "skip":
                self.log.find("gpu_missing", f"{test} does not state what it tested", Verdict.UNPROVEN)

    def _read_document(self, document: bytes) -> None:
        """Read the JSON, which launchers may print between other lines."""
        start, end = document.find(b"{"), document.rfind(b"}")
        try:
            root = orjson.loads(document[start : end + 1])
            body = next(root[name] for name in _JSON_ROOTS if name in root)
            if error := body.get("runtime_error"):
                message = "dcgmi did not run the diagnostic"
                self.log.find("tool_error", message, Verdict.UNPROVEN, excerpt=str(error))
            self.names_parts = _JSON_ROOTS[0] in root
            self.gpus = _count_gpus(root)
            for result in _results(body):
                self._read_result(result)
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            self.log.find("damaged_json", f"the JSON cannot be read: {error!r:.100}", Verdict.UNPROVEN)

    def _read_result(self, result: _Result) -> None:
        """Judge a result of the JSON, and record its errors."""
        test, part, status = result.test, result.part, result.status
        failed_by_setting = bool(result.causes) and all(map(_is_setting, result.causes))
        if status.lower() == "fail" and failed_by_setting:
            self._take_word(test, part, status)
        else:
            self._result(None, test, part, status, f"{test}: {status}")
        name = f"{test}{f' of {part}' if part else ''}"
        for error in result.errors:
            # DCGM 3.3 names the message of a test of software "warnings".
            words = str(error.get("warning", error.get("warnings")) if isinstance(error, dict) else error)
            self._report(None, name, words, words, is_setting=_is_setting(error))


@dataclass(slots=True)
class _Remark:
    """A remark of the table: its first line, its kind, the words so far, and its first row."""

    line: int
    kind: str
    words: str
    excerpt: str


class _Result(NamedTuple):
    """A result in the JSON: of a test, or of one part of it.

    Attributes:
        causes: The errors that explain the status: its own ones, and for a summary those of its parts, too.
    """

    test: str
    part: str
    status: str
    errors: Sequence[Any]
    causes: Sequence[Any]


def _is_setting(error: object) -> bool:
    """Return whether an error of the JSON is about a setting, and cannot be caused by a fault."""
    if not isinstance(error, dict):
        return False
    return error.get("error_severity") == _CONFIG and error.get("error_id") not in _MAYBE_HARDWARE


def _kind(part: str) -> str:
    """Return the kind of a part: ``GPU`` for ``GPU0``."""
    return part.rstrip("0123456789 ").upper()


def _part_names(listed: str) -> list[str]:
    """Return the name of a part, or the names of the GPUs whose numbers a row of DCGM 2 and 3 lists."""
    return [listed] if listed[0].isalpha() else [f"GPU{gpu}" for gpu in _WHOLE_NUMBER.findall(listed)]


def _sorted_names(parts: Iterable[str]) -> str:
    """Return the names of parts in the order of their numbers, for a message."""
    return ", ".join(sorted(parts, key=lambda part: (len(part), part)))


def _count_gpus(root: Mapping[str, Any]) -> int | None:
    """Return the number of GPUs in the JSON, or None if it does not state it.

    DCGM 4 lists the GPUs, and DCGM 3 the device ID of each one.
    """
    groups = (group for group in root.get("entity_groups", ()) if group["entity_group"] == "GPU")
    count = next((len(group["entities"]) for group in groups), None)
    return len(root["GPU Device IDs"]) if count is None and "GPU Device IDs" in root else count


def _results(body: Mapping[str, Any]) -> Iterator[_Result]:
    """Yield each result in a JSON, first of a test and then of its parts."""
    for category in body["test_categories"]:
        for test in category["tests"]:
            name = str(test["name"])
            if summary := test.get("test_summary"):
                yield _summary(name, summary, test["results"])
            elif not test["results"]:
                yield _Result(name, "", "", (), ())
            for entry in test["results"]:
                errors = entry.get("warnings", ())
                ids = str(entry.get("entity_id", entry.get("gpu_id", entry.get("gpu_ids", ""))))
                group = str(entry.get("entity_group", "GPU"))
                for part in ids.split(","):
                    part_name = part.strip() and f"{group}{part.strip()}"
                    yield _Result(name, part_name, str(entry["status"]), errors, errors)


def _summary(name: str, summary: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> _Result:
    """Return the result of a whole test. It fails with its parts, so their errors explain it, too."""
    errors, causes = summary.get("warnings", ()), list(summary.get("warnings", ()))
    for entry in entries:
        failed = str(entry["status"]).lower() == "fail"
        # A failure without an error has an unknown cause.
        causes += entry.get("warnings", ()) or ([None] if failed else ())
    return _Result(name, "", str(summary["status"]), errors, causes)
