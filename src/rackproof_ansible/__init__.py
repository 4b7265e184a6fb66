"""Connect Ansible to Rackproof: the base classes and helpers of the plugins in ``plugins/``.

The only package that imports ansible; ``rackproof`` itself never does. A plugin file holds one class that
takes its options and calls the package, everything else is here or there.
"""
