"""The provision job: the summary of what changed and what needs attention."""
