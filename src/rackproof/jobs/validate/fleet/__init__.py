"""Measure the nodes of a night, and decide which of them to drain and to resume.

Job validate calls these modules. Their input is the snapshots, the earlier nights and Slurm's states.
"""
