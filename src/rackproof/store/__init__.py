"""What is kept: run folders, host claims, and the history database."""
