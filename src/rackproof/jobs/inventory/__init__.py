"""Check an inventory, and make one of an existing cluster: read its sources, guess the SKUs, write a folder.

No node is queried.
"""
