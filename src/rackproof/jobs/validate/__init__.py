"""Run a night of the fleet for validate.yml, from snapshots to drains.

A night is one run of validate.yml. ``tasks`` begins and closes it, ``probes`` measures the nodes, and
``judge`` gives each node its verdict with ``measurements`` and ``fleet``. ``messages``, ``pages`` and
``explain`` describe the result, and ``nightly`` runs the whole playbook.
"""
