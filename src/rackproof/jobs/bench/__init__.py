"""The bench job: plan runs, launch and follow them, record and judge what came."""
