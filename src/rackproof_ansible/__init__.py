"""Connect Ansible to Rackproof with the base classes and helpers of the plugins in ``plugins/``.

Only this package imports ansible, and ``rackproof`` never does. A plugin file contains only a class that
takes its options and calls one of the two packages.
"""
