"""Run the provision job, with its waves, records and summary."""
