"""Rackproof: read, score, judge, keep and show the results of benchmarks on GPU nodes."""

from importlib import metadata

try:
    __version__ = metadata.version("rackproof")
except metadata.PackageNotFoundError:  # run straight from a checkout's src/
    __version__ = "0+checkout"
