"""The four jobs: bench, provision, validate, reimage."""
