"""The ``rackproof`` command: :mod:`main` makes the group, the other modules define its commands."""
