"""Drain nodes, write a new image, and check them before they resume work.

``lifecycle`` defines the steps, and the steps that are repeated after an interruption. ``run_files`` defines
the files of a run. ``reimage.yml`` calls ``tasks``, ``hardware`` and ``acceptance``. ``bmc`` switches nodes
through ``redfish`` or ``ipmi``. ``discovery`` and ``boot_reports`` find new nodes, and ``forecast`` simulates
a fleet.
"""
