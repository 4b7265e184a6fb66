"""Run a night of the fleet for validate.yml, from snapshots to drains."""
