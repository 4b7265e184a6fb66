"""The ``rackproof`` command."""
