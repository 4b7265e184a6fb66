"""Measure the nodes of a night, and decide which of them to drain and to resume.

Job validate calls these modules. Their input is the snapshots, the earlier nights and Slurm's states.
``probe_scheduler`` measures with ``node_readings``, ``optional_tests``, ``retest``, ``pair_runner`` and
``pairing``. ``drain_policy`` decides about drains, with the evidence that ``healing`` lists. No job calls
``reference_lint``, which checks the references of SKUs in a test.
"""
