"""Plan the waves of provision.yml, record what it changed, and summarize."""
