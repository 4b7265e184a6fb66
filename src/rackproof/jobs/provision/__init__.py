"""The provision job: the summary of changes and open problems."""
