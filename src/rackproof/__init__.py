"""Rackproof: read, score, judge, keep and show the results of benchmarks on GPU nodes."""

# The import of typing would take longer than all else before rackproof.cli.entry can handle Ctrl-C.
TYPE_CHECKING = False

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name):
        """Return the version, which is read when needed: this takes as long as all other imports."""
        if name != "__version__":
            raise AttributeError(name)
        from importlib import metadata

        try:
            version = metadata.version("rackproof")
        except metadata.PackageNotFoundError:  # run straight from a checkout's src/
            version = "0+checkout"
        globals()["__version__"] = version
        return version
