"""Store run folders, host claims, and the history database."""
