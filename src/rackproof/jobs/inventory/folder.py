"""Write an adopted inventory into its folder, and keep changes by hand.

``rackproof adopt`` calls :func:`check_folder`, :func:`add_missing_nodes`, :func:`plan_change`,
:func:`lint_change` and :func:`write_change`, in this order. The folder's ``.adopted`` contains the files as
adopt rendered them last. A line that differs from this copy was changed by hand, and remains.
"""

from __future__ import annotations

import difflib
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from rackproof.core.child_environment import environment_of_written_inventory
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import Record
from rackproof.core.text import sanitize
from rackproof.core.untrusted import as_mapping
from rackproof.jobs.inventory.lint import InventoryError, InventoryMistake, lint_inventory, list_inventory
from rackproof.jobs.inventory.merge import merge_texts
from rackproof.jobs.inventory.nodes import AdoptedNode, AdoptError, select_nodes
from rackproof.jobs.inventory.read_file import read_text
from rackproof.store.run_folder import write_file

_KEPT = ".adopted"
"""Folder with the files as adopt rendered them last, and the list of their nodes (``nodes.json``)."""
_NODES = "nodes.json"
_ERRNO = re.compile(r"^\[Errno \d+\] ([^:]*).*$", re.DOTALL)
"""Pattern of Python's text about an error of the system, with the system's own words."""


class _KeptNodes(Record):
    """The nodes that the last adopt wrote."""

    nodes: tuple[AdoptedNode, ...]


class InventoryChange(Record):
    """The changes of a folder before they are written.

    Attributes:
        files: Each file that changes, with its new text.
        bases: The rendered text of each file, to keep in ``.adopted``.
        diff: The change as a unified diff.
        remarks: Texts about lines that both the operator and the sources changed (the operator's remain), and
            about files that were removed by hand or that no node uses.
    """

    files: dict[str, str]
    bases: dict[str, str]
    diff: str
    remarks: tuple[str, ...] = ()


def check_folder(folder: Path) -> bool:
    """Return whether an earlier adopt wrote a folder, or False if the folder is absent or empty.

    Raises:
        AdoptError: The folder contains files of another origin, or cannot be read. A folder in it is a
            symbolic link.
    """
    for part in (_KEPT, f"{_KEPT}/group_vars", "group_vars"):
        # Through a link, adopt would write into a folder that the operator did not name.
        if (folder / part).is_symlink():
            raise AdoptError(
                f"{folder / part} is a symbolic link, and adopt would write through it: replace it by the "
                "folder to which it leads"
            )
    if (folder / _KEPT).is_dir():
        return True
    try:
        is_new = not folder.exists() or not any(folder.iterdir())
    except OSError as error:
        raise AdoptError(f"{folder} cannot be read: {error.strerror or error}") from None
    if not is_new:
        raise AdoptError(
            f"{folder} holds an inventory that `rackproof adopt` did not write: "
            "name another folder with --output"
        )
    return False


def add_missing_nodes(
    folder: Path, nodes: Sequence[AdoptedNode], *, remove: bool, excluded: Sequence[str] = ()
) -> tuple[tuple[AdoptedNode, ...], list[str]]:
    """Return the nodes, and remarks about nodes of the last adopt that are not among them.

    Unless ``remove`` is set, nodes that no source names now are added to the result.

    Args:
        folder: The folder of the inventory.
        nodes: The nodes that the sources name, without the excluded ones.
        remove: Whether nodes that no source names now are left out.
        excluded: The shell patterns of nodes that the operator leaves out (:func:`select_nodes`).

    Raises:
        AdoptError: The list of the last adopt cannot be read, or is damaged.
    """
    path = folder / _KEPT / _NODES
    if not path.exists():
        return tuple(nodes), []
    try:
        kept_nodes = _KeptNodes.model_validate_json(read_text(path)).nodes
    except ValidationError:
        raise AdoptError(f"{path} is damaged: remove {folder / _KEPT} and name a new folder") from None
    named = {node.name for node in nodes}
    missing = [node for node in kept_nodes if node.name not in named]
    gone = select_nodes(missing, excluded)
    left_out = _names_text(node for node in missing if node not in gone)
    remarks = [f"removed, because --exclude leaves them out: {left_out}"] if left_out else []
    if not gone:
        return tuple(nodes), remarks
    if remove:
        return tuple(nodes), [*remarks, f"removed, because no source names them: {_names_text(gone)}"]
    remarks.append(f"no source names {_names_text(gone)} any more: they stay; --remove-missing removes them")
    return tuple(sorted((*nodes, *gone), key=lambda node: node.name)), remarks


def _names_text(nodes: Iterable[AdoptedNode]) -> str:
    """Return the names of some nodes as a short text."""
    return sanitize(compress_hostlist(node.name for node in nodes), 200)


def plan_change(folder: Path, rendered: Mapping[str, str]) -> InventoryChange:
    """Return how a folder's files change. Changes by hand are kept. Nothing is written.

    Args:
        folder: The folder of the inventory.
        rendered: The new text of each file (:func:`rackproof.jobs.inventory.inventory_files.render_files`).

    Raises:
        AdoptError: A file cannot be read.
    """
    files, remarks, diffs = {}, [], []
    for name, new in rendered.items():
        own_text, base = _text(folder / name), _text(folder / _KEPT / name)
        # A file that was deleted by hand is not written again.
        if own_text is None and base is not None:
            remarks.append(f"{name} was removed by hand, and is not written again")
            continue
        merged = merge_texts(base or "", own_text or "", new)
        remarks += [_conflict_text(name, *pair) for pair in merged.conflicts]
        if merged.text != (own_text or ""):
            files[name] = merged.text
            diffs.append(_diff(name, own_text or "", merged.text))
    for name in _unused_files(folder, rendered):
        remarks.append(f"no node uses {name} any more: remove it if you do not need it")
    return InventoryChange(files=files, bases=dict(rendered), diff="".join(diffs), remarks=tuple(remarks))


def _text(path: Path) -> str | None:
    """Return the text of a file, or None if it does not exist."""
    return read_text(path) if path.exists() else None


def _conflict_text(name: str, own_text: str, source_text: str) -> str:
    """Return the remark about a line that both the operator and the sources changed."""
    texts = [sanitize(text.strip() or "nothing", 120) for text in (own_text, source_text)]
    return (
        f"{name}: changed by hand and by the sources: yours stays ({texts[0]}); the sources have {texts[1]}"
    )


def _diff(name: str, before: str, after: str) -> str:
    """Return the change of a file as a unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _unused_files(folder: Path, rendered: Mapping[str, str]) -> list[str]:
    """Return the files in group_vars that an earlier adopt wrote, and that no node needs now."""
    noted = sorted((folder / _KEPT / "group_vars").glob("*.yml"))
    names = [f"group_vars/{path.name}" for path in noted]
    return [name for name in names if name not in rendered and (folder / name).exists()]


def skeleton_groups(folder: Path, change: InventoryChange) -> frozenset[str]:
    """Return the groups of SKUs that adopt rendered as a skeleton, and whose file is not completed yet.

    A file is not completed if, after the change, it is missing, is still a skeleton, or cannot be parsed
    here, for example because a value is encrypted.
    """
    groups = set()
    for name, rendered in change.bases.items():
        text = change.files.get(name, _text(folder / name))
        if _is_skeleton(rendered, if_unreadable=False) and _is_skeleton(text or rendered, if_unreadable=True):
            groups.add(Path(name).stem)
    return frozenset(groups)


def _is_skeleton(text: str, *, if_unreadable: bool) -> bool:
    """Return whether the variables of a SKU state that they are a skeleton.

    ``if_unreadable`` is the result for a text that cannot be parsed.
    """
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return if_unreadable
    return as_mapping(as_mapping(values).get("validate_expect")).get("skeleton") not in (None, False)


def lint_change(folder: Path, change: InventoryChange, checkout: Path) -> list[InventoryMistake]:
    """Return the mistakes in the folder after a change, which is made only in a temporary copy.

    Raises:
        AdoptError: A file of the folder cannot be copied. Ansible cannot read the folder after the change,
            or a file in it is not YAML.
    """
    with tempfile.TemporaryDirectory(prefix="rackproof-adopt-") as draft:
        copy = Path(draft) / "inventory"
        if folder.exists():
            _copy_folder(folder, copy)
        for name, text in change.files.items():
            write_file(copy / name, text.encode())
        try:
            inventory, mistakes = list_inventory(copy, environment_of_written_inventory())
        except InventoryError as error:
            text = str(error).replace(str(copy), str(folder))
            raise AdoptError(f"{folder} with these changes cannot be read by Ansible: {text}") from None
        if any("it is not YAML" in mistake.what for mistake in mistakes):
            mistake_text = f"{mistakes[0].where}: {mistakes[0].what}".replace(str(copy), str(folder))
            raise AdoptError(
                f"changes by hand conflict with those of the sources: {mistake_text}; nothing is written"
            )
        all_mistakes = [*mistakes, *lint_inventory(inventory, checkout)]
        return [
            mistake.model_copy(update={"where": mistake.where.replace(str(copy), str(folder))})
            for mistake in all_mistakes
        ]


def _copy_folder(folder: Path, copy: Path) -> None:
    """Copy an inventory without the folder ``.adopted``. Raise AdoptError about a file that is unreadable."""
    try:
        # A link to nothing is left out, such as the lock .#hosts.yml of an open Emacs.
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(_KEPT), ignore_dangling_symlinks=True)
    except shutil.Error as error:
        path, _, reason = error.args[0][0]
        text = "it is a pipe" if "named pipe" in reason else _ERRNO.sub(r"\1", reason)
        raise AdoptError(
            f"{path} cannot be read: {text}; correct it, or move it out of the inventory"
        ) from None
    except OSError as error:
        raise AdoptError(f"{error.filename or folder} cannot be copied: {error.strerror or error}") from None


def write_change(folder: Path, change: InventoryChange, nodes: Sequence[AdoptedNode]) -> None:
    """Write the changed files, and then the copies of all rendered files and the list of nodes.

    Raises:
        OSError: The folder cannot be created.
        ResultsError: A file cannot be written.
    """
    # Make the folder of copies first, so that a later adopt recognizes the inventory after an interruption.
    (folder / _KEPT).mkdir(parents=True, exist_ok=True)
    for name, text in change.files.items():
        write_file(folder / name, text.encode())
    # Write the copies last. After an interruption, files without a new copy count as changed by hand.
    for name, text in change.bases.items():
        write_file(folder / _KEPT / name, text.encode())
    write_file(folder / _KEPT / _NODES, _KeptNodes(nodes=tuple(nodes)).model_dump_json(indent=1).encode())
