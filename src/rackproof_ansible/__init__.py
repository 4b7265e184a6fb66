"""Connect Ansible to Rackproof with the base classes and helpers of the plugins in ``plugins/``.

This is the only package that imports ansible; ``rackproof`` never does. A plugin file has only a class
that takes its options and calls one of the two packages.
"""
