"""Nodes go out of service, get a new image, and pass their acceptance before they take work.

The steps and what has to be repeated after an interruption are in ``lifecycle``, what is written down in
``run_files``, what ``reimage.yml`` calls in ``tasks``, ``hardware`` and ``acceptance``. ``bmc`` switches
nodes by ``redfish`` or ``ipmi``, ``discovery`` and ``boot_reports`` find new ones, ``forecast`` simulates a
thousand.
"""
