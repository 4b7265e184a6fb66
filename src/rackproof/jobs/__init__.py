"""Decide the steps of the four jobs: bench, provision, validate and reimage.

Actions and filters in plugins, ``rackproof_ansible``, and commands of :mod:`rackproof.cli` call these
modules. Begin with the module ``tasks`` of a job, or with ``provision.waves``, because provisioning has no
``tasks``. ``inventory`` has the code of ``rackproof adopt`` and ``rackproof lint-inventory``, and
``fleet_status`` the code of ``rackproof status``.
"""
