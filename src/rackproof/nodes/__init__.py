"""Turn a node's raw answers into facts and a snapshot, and check health, packages and Slurm.

No module here contacts a node. The jobs gather the answers, and call these modules with them.
"""
