"""Check an inventory, and make one from an existing cluster.

``rackproof lint-inventory`` checks with these modules. ``rackproof adopt`` reads sources, guesses SKUs, and
writes a folder, without querying a node.
"""
