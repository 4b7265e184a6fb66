"""Rackproof's side of Ansible: what the plugins in ``plugins/`` are made of.

The only package that imports ansible; ``rackproof`` itself never does. A plugin file holds one class that
takes its options and calls the package, everything else is here or there.
"""
