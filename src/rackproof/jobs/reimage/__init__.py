"""Nodes go out of service, come back with a new image, and prove themselves before they take work.

The states and what holds after an interruption are in ``states``, what is written down in ``journal``, what
``reimage.yml`` calls in ``running``. ``disks`` says which disk may be written, ``bmc`` speaks Redfish,
``fleet`` simulates a thousand nodes.
"""
