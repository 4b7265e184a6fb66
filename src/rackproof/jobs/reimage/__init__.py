"""Drain nodes, write a new image, and check them before they resume work.

``lifecycle`` defines the steps and what is repeated after an interruption, and ``run_files`` the files of a
run. ``reimage.yml`` calls ``tasks``, ``hardware`` and ``acceptance``. ``bmc`` switches nodes through
``redfish`` or ``ipmi``. ``discovery`` and ``boot_reports`` find new nodes, and ``forecast`` simulates a
fleet.
"""
