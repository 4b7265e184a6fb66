"""The validate job: a night of the fleet, from snapshots to drains."""
