#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402  (the text for ansible-doc comes first, as in every module)
"""Write small files, folders and links of roles in one call (standard library only, Python 3.8+).

Begin with :func:`change_steps`, which yields a function for each requested entry. Each function changes the
entry only if it differs, and returns whether it did.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_files
short_description: Write small files, and make folders and links, in one call
description:
  - Does in one call the work for which C(copy), C(file) and C(stat) need one call for each file and node.
  - Every file is replaced whole or not at all. A file that is already as wanted is not written.
options:
  files:
    description: Files that must be there.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Path of the file., type: path, required: true}
      content: {description: Text of the file., type: str}
      secret: {description: Text that no log may show., type: str}
      secret_base64: {description: Bytes that no log may show., type: str}
      merge_json:
        description: Keys to set in a file with a JSON object. Its other keys stay. No log shows the values.
        type: dict
      mode: {description: Permissions in octal., type: str, default: "0644"}
      owner: {description: User., type: str, default: root}
      group: {description: Group., type: str, default: root}
  folders:
    description: Folders that must be there. Folders above them are made, too.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Path of the folder., type: path, required: true}
      mode: {description: Permissions in octal., type: str, default: "0755"}
      owner: {description: User., type: str, default: root}
      group: {description: Group., type: str, default: root}
  links:
    description: Symbolic links that must be there.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Path of the link., type: path, required: true}
      target: {description: Target of the link., type: str, required: true}
  absent:
    description: Files and links that must not be there.
    type: list
    elements: path
    default: []
attributes:
  check_mode:
    description: Reports what would be changed. A user or group that is not there yet counts as a change.
    support: full
  diff_mode:
    description: Shows the text of files without secrets.
    support: full
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Put the configuration in place
  rackproof_files:
    folders:
      - {path: /etc/example, mode: "0755"}
    files:
      - {path: /etc/example/example.conf, content: "answer = 42\n"}
      - {path: /etc/example/key, secret_base64: "{{ example_key }}", mode: "0400", owner: daemon}
    absent: [/etc/example/old.conf]
"""

RETURN = r"""
changed_paths:
  description: Changes that were or would be made.
  returned: always
  type: list
  elements: str
"""

import base64
import grp
import json
import os
import pwd
import stat
import tempfile
from functools import partial

from ansible.module_utils.basic import AnsibleModule

KINDS = ("content", "secret", "secret_base64", "merge_json")


class UnusableError(Exception):
    """A request that cannot be fulfilled, and the reason."""


def owner_ids(entry, tolerant):
    """Return the user id and the group id of an entry.

    An id is None if its name does not exist and may be created later.

    Args:
        entry: The file or folder.
        tolerant: Whether a missing name is not an error. In check mode, its package may not be installed
            yet.
    """
    ids: list[int | None] = []
    for kind, find in (
        ("owner", lambda name: pwd.getpwnam(name).pw_uid),
        ("group", lambda n: grp.getgrnam(n).gr_gid),
    ):
        try:
            ids.append(find(entry[kind]))
        except KeyError:
            if not tolerant:
                raise UnusableError(f"{entry['path']}: there is no {kind} {entry[kind]!r}") from None
            ids.append(None)
    return ids


def mode_of(entry):
    """Return the permissions of an entry as a number."""
    try:
        return int(entry["mode"], 8)
    except ValueError:
        raise UnusableError(f"{entry['path']}: {entry['mode']!r} is not a mode in octal") from None


def read_file(path):
    """Return the bytes of a file, or None if there is no regular file."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        with open(path, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def wanted_content(entry, before):
    """Return the wanted bytes of a file."""
    kinds = [kind for kind in KINDS if entry.get(kind) is not None]
    if len(kinds) != 1:
        raise UnusableError(
            f"{entry['path']}: give one of {', '.join(KINDS)}, not {', '.join(kinds) or 'none'}"
        )
    value = entry[kinds[0]]
    if kinds[0] == "secret_base64":
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            raise UnusableError(f"{entry['path']}: its content is not base64") from None
    if kinds[0] == "merge_json":
        content = read_json_object(before)
        if not isinstance(content, dict):
            raise UnusableError(f"{entry['path']}: the file has no JSON object; look at it, or remove it")
        merged = merge_objects(content, value)
        # A file with the same object in another layout is unchanged. For Python, 1 equals true.
        same = json.dumps(merged, sort_keys=True) == json.dumps(content, sort_keys=True)
        return before if before and same else (json.dumps(merged, indent=2) + "\n").encode()
    return value.encode()


def read_json_object(before):
    """Return the contents of a JSON file, {} if it is missing or empty, or None if it is not JSON."""
    try:
        return json.loads(before) if before else {}
    except ValueError:
        return None


def merge_objects(old, new):
    """Return an object with the keys of another put into it, at every depth."""
    merged = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge_objects(merged[key], value) if both else value
    return merged


def has_mode_and_owner(status, mode, ids):
    """Return whether permissions and owner fit."""
    return stat.S_IMODE(status.st_mode) == mode and [status.st_uid, status.st_gid] == ids


def put_folder(entry, check):
    """Make the wanted folder. Return whether this is a change."""
    path, mode, ids = entry["path"], mode_of(entry), owner_ids(entry, check)
    # A link to a folder counts as that folder, whose mode and owner would be changed.
    if os.path.isdir(path) and has_mode_and_owner(os.stat(path), mode, ids):
        return False
    if os.path.lexists(path) and not os.path.isdir(path):
        raise UnusableError(f"{path}: must be a folder, but is not; move it away")
    if not check:
        os.makedirs(path, exist_ok=True)
        os.chown(path, *ids)
        os.chmod(path, mode)
    return True


def put_file(entry, check):
    """Write the wanted file. Return whether this is a change, and the difference to show."""
    path, mode, ids = entry["path"], mode_of(entry), owner_ids(entry, check)
    if os.path.isdir(path) and not os.path.islink(path):
        raise UnusableError(f"{path}: must be a file, but is a folder; move it away")
    before = read_file(path)
    content = wanted_content(entry, before)
    if before == content and has_mode_and_owner(os.lstat(path), mode, ids):
        return False, None
    if not check:
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            os.makedirs(folder)
        handle, name = tempfile.mkstemp(prefix=".rackproof-", dir=folder)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fchown(stream.fileno(), *ids)
                os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    if entry.get("content") is None:
        return True, {
            "before_header": path,
            "after_header": path,
            "before": "(secret)\n",
            "after": "(secret)\n",
        }
    return True, {
        "before_header": path,
        "after_header": path,
        "before": (before or b"").decode("utf-8", "replace"),
        "after": content.decode(),
    }


def put_link(entry, check):
    """Make the wanted link. Return whether this is a change."""
    path, target = entry["path"], entry["target"]
    if os.path.islink(path) and os.readlink(path) == target:
        return False
    if os.path.isdir(path) and not os.path.islink(path):
        raise UnusableError(f"{path}: must be a link, but is a folder; move it away")
    if not check:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # The name must not exist, because symlink() would fail.
        name = os.path.join(os.path.dirname(path), ".rackproof-" + os.urandom(8).hex())
        os.symlink(target, name)
        os.replace(name, path)
    return True


def remove_entry(path, check):
    """Remove a file or link. Return whether this is a change."""
    if not os.path.lexists(path):
        return False
    if os.path.isdir(path) and not os.path.islink(path):
        raise UnusableError(f"{path}: must not exist, but is a folder; remove it by hand")
    if not check:
        os.unlink(path)
    return True


def change_steps(params, check, diffs):
    """Yield path and function of each step. The function returns whether it changed something.

    Folders come first, because files may be in them.
    """
    for folder in params["folders"]:
        yield folder["path"], partial(put_folder, folder, check)
    for entry in params["files"]:
        yield entry["path"], partial(put_file_with_diff, entry, check, diffs)
    for link in params["links"]:
        yield link["path"], partial(put_link, link, check)
    for path in params["absent"]:
        yield path, partial(remove_entry, path, check)


def put_file_with_diff(entry, check, diffs):
    """Write a file and store its difference. Return whether this is a change."""
    changed, diff = put_file(entry, check)
    if changed:
        diffs.append(diff)
    return changed


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str"},
                    "secret": {"type": "str", "no_log": True},
                    "secret_base64": {"type": "str", "no_log": True},
                    "merge_json": {"type": "dict", "no_log": True},
                    "mode": {"type": "str", "default": "0644"},
                    "owner": {"type": "str", "default": "root"},
                    "group": {"type": "str", "default": "root"},
                },
            },
            "folders": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "mode": {"type": "str", "default": "0755"},
                    "owner": {"type": "str", "default": "root"},
                    "group": {"type": "str", "default": "root"},
                },
            },
            "links": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "target": {"type": "str", "required": True},
                },
            },
            "absent": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    changed, diffs, at = [], [], ""
    try:
        for at, step in change_steps(module.params, module.check_mode, diffs):
            if step():
                changed.append(at)
    except UnusableError as error:
        module.fail_json(msg=str(error), changed_paths=changed, changed=bool(changed))
    except OSError as error:
        module.fail_json(msg=f"{at}: {error.strerror or error}", changed_paths=changed, changed=bool(changed))
    module.exit_json(changed=bool(changed), changed_paths=changed, diff=diffs)


if __name__ == "__main__":
    main()
