"""The ``rackproof`` command: ``main`` is the group, every command has a module of its own."""
