"""Load programs of workloads/ as modules, because that folder is not a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def load_program(name: str) -> Any:
    """Return the module of workloads/NAME.py."""
    path = Path(__file__).parents[2] / f"workloads/{name}.py"
    if str(path.parent) not in sys.path:
        # The program imports its neighbours from this folder, also later.
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"workloads_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks up the types of its fields in sys.modules.
    sys.modules[spec.name] = module
    # While it loads, its folder comes first, as for a program.
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
