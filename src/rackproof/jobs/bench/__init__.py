"""The bench job: plan runs, launch and follow them, record and judge their results."""
