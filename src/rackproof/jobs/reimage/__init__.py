"""Nodes go out of service, get a new image, and pass their acceptance before they take work.

``lifecycle`` has the steps and the repetitions after an interruption, ``run_files`` the files of a run;
``reimage.yml`` calls ``tasks``, ``hardware`` and ``acceptance``. ``bmc`` switches
nodes by ``redfish`` or ``ipmi``, ``discovery`` and ``boot_reports`` find new ones, ``forecast`` simulates a
thousand.
"""
