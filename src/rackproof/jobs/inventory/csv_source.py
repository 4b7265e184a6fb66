"""Read nodes from a CSV file.

``rackproof adopt --csv`` calls :func:`read_csv_nodes`. A line describes one node, or several equal nodes by a
host list::

    name,ip,rack,gpu_model,gpus
    n01,10.0.0.1,A1,H100 SXM,8
    n[02-09],,A1,H100 SXM,8
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rackproof.core.hostlist import expand_hostlist, hostlist_problem
from rackproof.core.text import sanitize
from rackproof.core.untrusted import as_int
from rackproof.jobs.inventory.nodes import (
    BY_NAME,
    SKU_NAME,
    AdoptedNode,
    AdoptedSource,
    AdoptError,
    GpuHint,
    address_problem,
    checked_variables,
    name_problem,
)
from rackproof.jobs.inventory.read_file import read_text
from rackproof.jobs.inventory.slurm_source import rack_of_name
from rackproof.nodes.slurm_listing import MOST_NODES

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "name": (
        "name",
        "node",
        "node_name",
        "host",
        "host_name",
        "hostname",
        "instance_name",
        "instance",
        "server",
        "server_name",
        "fqdn",
        "nodename",
        "machine",
        "machine_name",
        "vm_name",
        "device_name",
        "instance_id",
        "id",
    ),
    "address": (
        "ansible_host",
        "address",
        "private_ip",
        "private_ipv4",
        "private_ip_address",
        "internal_ip",
        "ip",
        "ipv4",
        "ip_address",
        "ipaddress",
        "ip_addr",
        "host_ip",
        "node_ip",
        "ipv4_address",
        "primary_ip",
        "public_ip",
        "public_ipv4",
        "public_ip_address",
        "external_ip",
        "ip_adresse",
    ),
    "port": ("port", "ssh_port", "ansible_port"),
    "user": ("user", "ssh_user", "ansible_user"),
    "own_name": ("own_name", "os_hostname"),
    "rack": ("rack", "cabinet", "rack_name", "rack_id", "rack_no", "rack_number", "rack_location"),
    "partition": ("partition", "partitions"),
    "gpus": (
        "gpus",
        "gpu_count",
        "num_gpus",
        "no_of_gpus",
        "number_of_gpus",
        "gpus_per_node",
        "gpu_qty",
        "anzahl_gpus",
    ),
    "gpu": ("gpu", "gpu_model", "gpu_type", "gpu_name", "accelerator", "gpu_modell"),
    "type": ("type", "instance_type", "machine_type", "device_type", "model", "shape"),
    "sku": ("sku",),
    "serial": ("serial", "serial_number", "serial_no", "service_tag", "s_n", "sn", "seriennummer"),
    "bmc": (
        "bmc",
        "bmc_address",
        "bmc_ip",
        "oob_ip",
        "idrac_ip",
        "idrac",
        "ilo_ip",
        "ilo",
        "ipmi_ip",
        "ipmi",
    ),
}
"""Headings of a column by the column's meaning, the best first, in lower case. Other characters than letters
and digits count as underscores. If a file has several of the headings of a meaning, only the best column is
read."""
_EMPTY = frozenset({"-", "--", "?", "n/a", "na", "nan", "none", "null", "tbd", "unknown"})
"""Words that tables have in cells without a value, in lower case."""
_SUMS = frozenset({"total", "totals", "sum", "summe", "gesamt"})
"""Words in the column of names of a line that adds up the others."""
_MOST_TITLES = 10
"""Number of lines at the start of a file that are searched for the headings, because a title may come
first."""
_MOST_FIELD = 10_000
"""Largest number of characters of a cell."""
_MOST_GPUS = 1024
"""Largest number in a variable or field that :func:`stated_gpu_count` reads as the number of a node's
GPUs."""


def stated_gpu_count(values: Mapping[str, Any]) -> int | None:
    """Return the number of GPUs from the first numeric variable or field with that meaning, or None. No I/O.

    A number that is negative or too large for GPUs also gives None.

    Args:
        values: Values of any kind, by the names of :data:`COLUMNS`.
    """
    lowered = {key.lower(): value for key, value in values.items()}
    counts = (_gpu_number(lowered.get(key)) for key in COLUMNS["gpus"])
    count = next((number for number in counts if number is not None), None)
    return count if count is not None and 0 <= count <= _MOST_GPUS else None


def _gpu_number(value: object) -> int | None:
    """Return a value as a number, or None if it is not one."""
    # A field of NetBox may be a text.
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,4}", value) else as_int(value)


def read_csv_nodes(path: Path) -> AdoptedSource:
    """Return the nodes of a CSV file with a line of headings.

    Raises:
        AdoptError: The file cannot be read or is not CSV, lacks a column of names, names too many nodes, or
            contains an unusable line. The message about a line gives the line's number.
    """
    text = read_text(path)
    # The limit belongs to the whole process, which may also read other tables, so the old limit is set again
    # below.
    limit_before = csv.field_size_limit(_MOST_FIELD)
    above, delimiter = _find_heading(text)
    body = text.split("\n", above)[above]
    reader = csv.reader(io.StringIO(body, newline=""), delimiter=delimiter, strict=True)
    try:
        columns, unread = _columns(next(reader, []), path, above + 1)
        sums: list[str] = []
        nodes = list(_nodes(_numbered(reader, above), columns, path, sums))
    except csv.Error as error:
        raise AdoptError(f"{path}:{above + reader.line_num}: it is not CSV: {error}") from None
    finally:
        csv.field_size_limit(limit_before)
    remarks = [f"{path}: columns that are not read: {', '.join(unread)}"] if unread else []
    if sums:
        remarks.append(f"{path}: lines that are not read, because they are sums of others: {', '.join(sums)}")
    return AdoptedSource(nodes=tuple(nodes), remarks=tuple(remarks))


def _find_heading(text: str) -> tuple[int, str]:
    """Return the number of lines above the headings, and the delimiter.

    Excel writes its separator into a line of its own, and a title may contain the heading of a column. Among
    the first lines with a heading of the column of names, the line with the most known headings counts. Below
    the first line, such a line must have a second heading. If there is no such line, the first line counts.
    """
    headings: list[tuple[int, int, str]] = []
    for row_index, line in enumerate(text.split("\n", _MOST_TITLES)[:_MOST_TITLES]):
        delimiter = max(",;\t", key=line.count)
        words = {_word(cell) for cell in line.split(delimiter)}
        if words & set(COLUMNS["name"]) and (row_index == 0 or len(words - {""}) > 1):
            headings.append(
                (
                    sum(bool(words & set(known_words)) for known_words in COLUMNS.values()),
                    row_index,
                    delimiter,
                )
            )
    if headings:
        _, row_index, delimiter = max(headings, key=lambda line: line[0])
        return row_index, delimiter
    first_line = text.partition("\n")[0]
    return 0, max(",;\t", key=first_line.count)


def _word(heading: str) -> str:
    """Return a heading in the spelling of :data:`COLUMNS`."""
    return re.sub(r"[^a-z0-9]+", "_", heading.strip().lower()).strip("_")


def _numbered(reader: Any, above: int) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with the number of its line in the file."""
    for row in reader:
        yield above + reader.line_num, row


def _columns(heading: Iterable[str], path: Path, line: int) -> tuple[dict[str, int], list[str]]:
    """Return the index of each column by its key in :data:`COLUMNS`, and the headings of all other columns.

    Raises:
        AdoptError: No column has names.
    """
    texts = list(heading)
    words = [_word(text) for text in texts]
    columns = {
        name: words.index(best)
        for name, headings in COLUMNS.items()
        if (best := next((word for word in headings if word in words), ""))
    }
    unread = [
        sanitize(text, 40)
        for column, text in enumerate(texts)
        if text.strip() and column not in columns.values()
    ]
    if "name" not in columns:
        raise AdoptError(
            f"{path}:{line}: no column has the nodes' names; its heading has to be one of "
            f"{', '.join(COLUMNS['name'])}"
        )
    return columns, unread


def _nodes(
    rows: Iterable[tuple[int, list[str]]], columns: Mapping[str, int], path: Path, sums: list[str]
) -> Iterator[AdoptedNode]:
    """Yield the nodes of each line. The numbers of lines with sums are added to ``sums``.

    Raises:
        AdoptError: A line is unusable, a node is on two lines, or there are too many nodes.
    """
    lines: dict[str, int] = {}
    for line, row in rows:
        if not any(cell.strip() for cell in row):
            continue
        cells = {
            name: _cell(name, row[column]) if column < len(row) else "" for name, column in columns.items()
        }
        if cells["name"].lower().rstrip(":") in _SUMS:
            sums.append(str(line))
            continue
        where = f"{path}:{line}"
        for name in _names(cells, where):
            if name in lines:
                raise AdoptError(f"{where}: {name} is in line {lines[name]} already: leave one")
            if len(lines) >= MOST_NODES:
                raise AdoptError(f"{path} names more than {MOST_NODES:,} nodes")
            lines[name] = line
            yield _node(name, cells, where)


def _cell(column: str, text: str) -> str:
    """Return the text of a cell in a plain form, or "" if the text only says that there is no value.

    A cell in the column of names is not changed.
    """
    plain = text.strip()
    if column == "name":
        return plain
    if plain.lower() in _EMPTY:
        return ""
    if column == "gpus":
        # A spreadsheet may write whole numbers with a decimal point.
        return re.sub(r"\A([0-9]{1,4})[.,]0+\Z", r"\1", plain)
    if column in ("address", "bmc"):
        # An address may end with the length of its network (``/24``).
        return re.sub(r"\A([0-9.]+|[0-9a-f:]+)/[0-9]{1,3}\Z", r"\1", plain, flags=re.I)
    return plain


def _names(cells: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Return the names of a line's nodes.

    Raises:
        AdoptError: There is no name, a name is unusable, or several nodes share a value of one machine.
    """
    text = cells["name"]
    if problem := hostlist_problem(text, MOST_NODES):
        raise AdoptError(f"{where}: {sanitize(text, 80)}: {problem}")
    names = expand_hostlist(text)
    if not names:
        raise AdoptError(f"{where}: the node has no name")
    for name in names:
        if problem := name_problem(name):
            raise AdoptError(f"{where}: {sanitize(name, 80)!r} cannot be a host: {problem}")
    if len(names) > 1 and any(cells.get(column) for column in ("address", "serial", "bmc", "own_name")):
        raise AdoptError(f"{where}: {len(names)} nodes cannot share an address, serial, BMC or own name")
    return names


def _partitions(text: str) -> tuple[str, ...]:
    """Return the names in a cell, which are separated by spaces, commas, semicolons or bars."""
    return tuple(dict.fromkeys(filter(None, re.split(r"[\s,;|]+", sanitize(text, 500)))))


def _check_cells(cells: Mapping[str, str], where: str) -> None:
    """Check the address, the own host name, and the number of GPUs of a line.

    Raises:
        AdoptError: One of them is invalid.
    """
    address = cells.get("address", "")
    if address and (problem := address_problem(address)):
        raise AdoptError(f"{where}: address {sanitize(address, 60)!r}: {problem}")
    own_name = cells.get("own_name", "")
    if own_name and name_problem(own_name):
        raise AdoptError(f"{where}: {sanitize(own_name, 60)!r} is not a host's name")
    count = cells.get("gpus", "")
    if count and not (re.fullmatch(r"[0-9]{1,4}", count) and int(count) <= _MOST_GPUS):
        raise AdoptError(f"{where}: {sanitize(count, 40)!r} is not a number of GPUs (up to {_MOST_GPUS:,})")


def _node(name: str, cells: Mapping[str, str], where: str) -> AdoptedNode:
    """Return the node of a line.

    Raises:
        AdoptError: A cell does not fit its column.
    """
    _check_cells(cells, where)
    address, count = cells.get("address", ""), cells.get("gpus", "")
    hints = [
        GpuHint(where=f"column {column}", text=sanitize(cells[column], 200))
        for column in ("gpu", "type")
        if cells.get(column)
    ]
    variables = {
        "ansible_port": cells.get("port", ""),
        "ansible_user": cells.get("user", ""),
        "reimage_serial": cells.get("serial", ""),
        "reimage_bmc_address": cells.get("bmc", ""),
    }
    return AdoptedNode(
        name=name,
        source="CSV",
        address=address if address != name else "",
        hostname=cells.get("own_name", ""),
        rack=sanitize(cells.get("rack", ""), 60) or rack_of_name(name),
        rack_from="column rack" if cells.get("rack") else BY_NAME,
        partitions=_partitions(cells.get("partition", "")),
        gpu_count=int(count) if count else None,
        gpu_count_from="column gpus",
        hints=tuple(hints),
        sku=_sku(cells.get("sku", ""), where),
        variables=checked_variables(variables, where),
    )


def _sku(text: str, where: str) -> str:
    """Return the SKU of a line, or "".

    Raises:
        AdoptError: The text cannot be the name of a SKU.
    """
    if text and not SKU_NAME.fullmatch(text):
        raise AdoptError(f"{where}: {sanitize(text, 60)!r} is not a SKU: letters, digits, '-' and '_'")
    return text
