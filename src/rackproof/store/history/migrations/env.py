"""Alembic's entry point; runs on the connection (and in the transaction) of the store being opened."""

from alembic import context

from rackproof.store.history.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    # SQLite changes columns only by making the table anew.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
