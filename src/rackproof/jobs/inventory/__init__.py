"""Check an inventory, and make one from an existing cluster.

The sources are read, the SKUs are guessed, and a folder is written. No node is queried.
"""
