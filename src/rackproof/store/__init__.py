"""Read and write Rackproof's records in the results folder and in the history's database."""
