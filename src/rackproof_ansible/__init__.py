"""Connect Ansible to Rackproof with the base classes and helpers of the plugins in ``plugins/``.

In ``src/``, only this package imports ansible, and ``rackproof`` never does. A file of an action contains
only a class that takes its options and calls one of the two packages.
"""
