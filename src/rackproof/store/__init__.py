"""Store what Rackproof records, in the results folder and in the history's database."""
