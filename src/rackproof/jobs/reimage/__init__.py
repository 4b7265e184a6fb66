"""Drain nodes, write a new image, and check them before they resume work.

``lifecycle`` defines the steps, and the steps that are repeated after an interruption. ``run_files`` defines
the files of a run. The actions of reimage.yml call ``tasks``, ``hardware`` and ``acceptance``. ``bmc``
switches nodes through ``redfish`` or ``ipmi``. ``discovery`` and ``boot_reports`` find new nodes. ``images``,
``autoinstall`` and ``order_signature`` make what a node boots, and ``image_report`` reads its answer.
``forecast`` simulates a fleet.
"""
