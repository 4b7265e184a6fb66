"""Run the validate job, which is a night of the fleet from snapshots to drains."""
