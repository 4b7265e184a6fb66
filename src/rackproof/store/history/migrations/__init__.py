"""Alembic migrations of the history, run when a store is opened."""
