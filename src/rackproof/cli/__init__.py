"""Define the ``rackproof`` command.

:mod:`main` makes the group, and the other modules define its commands.
"""
