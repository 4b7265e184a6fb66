"""One module per change of the history's tables, in order."""
