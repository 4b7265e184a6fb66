"""Plan benchmark runs, launch and follow them, and record and judge their results."""
