"""Plan the waves of provision.yml, and record and summarize its changes."""
