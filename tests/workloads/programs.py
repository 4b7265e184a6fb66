"""Programs of workloads/, loaded as modules: they are files, and no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def load_program(name: str) -> Any:
    """Return the module of workloads/NAME.py."""
    path = Path(__file__).parents[2] / f"workloads/{name}.py"
    if str(path.parent) not in sys.path:
        # Where it has its own modules from.
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"workloads_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where a dataclass looks up the types of its fields.
    sys.modules[spec.name] = module
    # It imports its neighbours by name, as a program does.
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
