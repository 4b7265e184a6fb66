"""Check, measure and judge the fleet for validate.yml, and decide which nodes to drain or resume.

A night is one run of validate.yml. ``tasks`` begins and closes it, and ``probes`` measures the nodes.
``judge`` uses ``measurements`` and ``fleet`` to give each node its verdict. ``messages``, ``pages``,
``explain`` and ``rma`` describe the result. ``nightly`` starts the playbook and sends the night's messages.
"""
