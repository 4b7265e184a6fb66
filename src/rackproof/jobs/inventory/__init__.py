"""Check an inventory, and make one from an existing cluster.

``rackproof lint-inventory`` calls ``lint``. ``rackproof adopt`` reads sources (``slurm_source``,
``csv_source``, ``netbox_source``, ``ansible_source``), joins their nodes (``nodes``), guesses SKUs
(``sku_guess``), makes the files (``inventory_files``), and writes a folder (``folder``, ``merge``). Neither
command queries a node.
"""
