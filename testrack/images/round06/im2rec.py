"""A fake of MXNet's im2rec: lists images, and packs them one after the other."""

from __future__ import annotations

import sys
from pathlib import Path

words = [word for word in sys.argv[1:] if not word.startswith("-") and not word.isdigit()]
name, root = words[0], Path(words[1])
if "--list" in sys.argv:
    images = sorted(path for path in root.rglob("*") if path.is_file())
    lines = [f"{index}\t0\t{path.relative_to(root)}" for index, path in enumerate(images)]
    Path(f"{name}.lst").write_text("\n".join(lines) + "\n")
else:
    packed = b""
    index = []
    for line in Path(f"{name}.lst").read_text().splitlines():
        number, _label, path = line.split("\t")
        index.append(f"{number}\t{len(packed)}")
        packed += (root / path).read_bytes()
    Path(f"{name}.rec").write_bytes(packed)
    Path(f"{name}.idx").write_text("\n".join(index) + "\n")
