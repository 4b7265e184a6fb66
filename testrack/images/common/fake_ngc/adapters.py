"""Fake `ibv_devinfo --list` in a container.

The command lists the node's adapters whose device files are in the container. libibverbs silently leaves out
an adapter without its /dev/infiniband/uverbsN, with status 0, so a container without those files shows no
adapter.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def names(root: Path) -> list[str]:
    """Return the names of the adapters whose device files are below ``root``."""
    hardware = json.loads((root / "var/lib/rack/hardware.json").read_text())
    return [
        str(one["name"])
        for number, one in enumerate(hardware["hcas"])
        if (root / f"dev/infiniband/uverbs{number}").exists()
    ]


def main(words: list[str]) -> int:
    """Print the list, and return the exit status."""
    try:
        found = names(Path(os.environ.get("STANDIN_ROOT") or "/"))
    except OSError:
        print("Failed to get IB devices list: Function not implemented", file=sys.stderr)
        return 255
    if words not in (["--list"], ["-l"]):
        print("ibv_devinfo: a fake, it knows --list", file=sys.stderr)
        return 1
    print(f"{len(found)} HCA{'' if len(found) == 1 else 's'} found:")
    print("".join(f"\t{name}\n" for name in found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
