"""The first tables of the history.

A migration is never edited once released and uses nothing of the present schema module, which moves
on. The types below are those of schema.Moment and schema.RecordText at this revision.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _moment() -> sa.types.TypeEngine[Any]:
    return sa.BigInteger().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")


def _record() -> sa.types.TypeEngine[Any]:
    return sa.LargeBinary().with_variant(sa.Text(), "postgresql")


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "hardware",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("sku", sa.String(length=200), nullable=False),
        sa.Column("serial", sa.String(length=200), nullable=False),
        sa.Column("chassis_serial", sa.String(length=200), nullable=False),
        sa.Column("product", sa.String(length=200), nullable=False),
        sa.Column("first_seen", _moment(), nullable=False),
        sa.Column("last_seen", _moment(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hardware")),
        sa.UniqueConstraint("kind", "key", name=op.f("uq_hardware_kind_key")),
    )
    op.create_index(op.f("ix_hardware_chassis_serial"), "hardware", ["chassis_serial"], unique=False)
    op.create_index(op.f("ix_hardware_key"), "hardware", ["key"], unique=False)
    op.create_index(op.f("ix_hardware_serial"), "hardware", ["serial"], unique=False)
    op.create_table(
        "quantities",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("unit", sa.String(length=200), nullable=False),
        sa.Column("benchmark", sa.String(length=200), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("metric", sa.String(length=200), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("direction", sa.String(length=8), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quantities")),
        sa.UniqueConstraint("digest", "unit", name=op.f("uq_quantities_digest_unit")),
    )
    op.create_index(
        op.f("ix_quantities_metric_benchmark"), "quantities", ["metric", "benchmark"], unique=False
    )
    op.create_table(
        "baselines",
        sa.Column("quantity_id", sa.Integer(), nullable=False),
        sa.Column("hardware_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=121), nullable=False),
        sa.Column("moment", _moment(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("low", sa.Float(), nullable=True),
        sa.Column("high", sa.Float(), nullable=True),
        sa.Column("warn", sa.Float(), nullable=True),
        sa.Column("accepted", _moment(), nullable=False),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_baselines_hardware_id")),
        sa.ForeignKeyConstraint(["quantity_id"], ["quantities.id"], name=op.f("fk_baselines_quantity_id")),
        sa.PrimaryKeyConstraint("quantity_id", "hardware_id", "run_id", name=op.f("pk_baselines")),
    )
    op.create_index(op.f("ix_baselines_run_id"), "baselines", ["run_id"], unique=False)
    op.create_table(
        "hardware_members",
        sa.Column("whole_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("member_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["member_id"], ["hardware.id"], name=op.f("fk_hardware_members_member_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["whole_id"], ["hardware.id"], name=op.f("fk_hardware_members_whole_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("whole_id", "position", name=op.f("pk_hardware_members")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_hardware_members_member_id"), "hardware_members", ["member_id"], unique=False)
    op.create_table(
        "host_names",
        sa.Column("hardware_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("first_seen", _moment(), nullable=False),
        sa.Column("last_seen", _moment(), nullable=False),
        sa.ForeignKeyConstraint(
            ["hardware_id"], ["hardware.id"], name=op.f("fk_host_names_hardware_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("hardware_id", "name", name=op.f("pk_host_names")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_host_names_name"), "host_names", ["name"], unique=False)
    op.create_table(
        "placements",
        sa.Column("gpu_id", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.Integer(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("first_seen", _moment(), nullable=False),
        sa.Column("last_seen", _moment(), nullable=False),
        sa.ForeignKeyConstraint(
            ["gpu_id"], ["hardware.id"], name=op.f("fk_placements_gpu_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["node_id"], ["hardware.id"], name=op.f("fk_placements_node_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("gpu_id", "node_id", name=op.f("pk_placements")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_placements_node_id"), "placements", ["node_id"], unique=False)
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=121), nullable=False),
        sa.Column("plan_id", sa.String(length=200), nullable=False),
        sa.Column("benchmark", sa.String(length=200), nullable=False),
        sa.Column("suite", sa.String(length=200), nullable=False),
        sa.Column("provenance", sa.String(length=16), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("parameters_digest", sa.String(length=64), nullable=False),
        sa.Column("hardware_id", sa.Integer(), nullable=True),
        sa.Column("moment", _moment(), nullable=False),
        sa.Column("started", _moment(), nullable=True),
        sa.Column("ended", _moment(), nullable=True),
        sa.Column("exit_status", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=400), nullable=False),
        sa.Column("record_sha256", sa.String(length=64), nullable=False),
        sa.Column("kept", _moment(), nullable=False),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_runs_hardware_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("run_id", name=op.f("uq_runs_run_id")),
    )
    op.create_index(
        op.f("ix_runs_benchmark_parameters_digest_moment"),
        "runs",
        ["benchmark", "parameters_digest", "moment"],
        unique=False,
    )
    op.create_index(op.f("ix_runs_hardware_id_moment"), "runs", ["hardware_id", "moment"], unique=False)
    op.create_index(op.f("ix_runs_moment"), "runs", ["moment"], unique=False)
    op.create_index(op.f("ix_runs_plan_id"), "runs", ["plan_id"], unique=False)
    op.create_table(
        "judgements",
        sa.Column("run_pk", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("quantity_id", sa.Integer(), nullable=False),
        sa.Column("hardware_id", sa.Integer(), nullable=True),
        sa.Column("node_id", sa.Integer(), nullable=True),
        sa.Column("moment", _moment(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("gating", sa.Boolean(), nullable=False),
        sa.Column("candidate", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(length=400), nullable=False),
        sa.Column("reference", sa.Float(), nullable=True),
        sa.Column("low", sa.Float(), nullable=True),
        sa.Column("high", sa.Float(), nullable=True),
        sa.Column("warn", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_judgements_hardware_id")),
        sa.ForeignKeyConstraint(["node_id"], ["hardware.id"], name=op.f("fk_judgements_node_id")),
        sa.ForeignKeyConstraint(["quantity_id"], ["quantities.id"], name=op.f("fk_judgements_quantity_id")),
        sa.ForeignKeyConstraint(
            ["run_pk"], ["runs.id"], name=op.f("fk_judgements_run_pk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_pk", "ordinal", name=op.f("pk_judgements")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_judgements_candidate",
        "judgements",
        ["moment"],
        unique=False,
        sqlite_where=sa.text("candidate"),
        postgresql_where=sa.text("candidate"),
    )
    op.create_index("ix_judgements_hardware", "judgements", ["hardware_id", "moment"], unique=False)
    op.create_table(
        "measurements",
        sa.Column("run_pk", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("quantity_id", sa.Integer(), nullable=False),
        sa.Column("hardware_id", sa.Integer(), nullable=True),
        sa.Column("node_id", sa.Integer(), nullable=True),
        sa.Column("moment", _moment(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("special", sa.String(length=4), nullable=True),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_measurements_hardware_id")),
        sa.ForeignKeyConstraint(["node_id"], ["hardware.id"], name=op.f("fk_measurements_node_id")),
        sa.ForeignKeyConstraint(["quantity_id"], ["quantities.id"], name=op.f("fk_measurements_quantity_id")),
        sa.ForeignKeyConstraint(
            ["run_pk"], ["runs.id"], name=op.f("fk_measurements_run_pk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_pk", "ordinal", name=op.f("pk_measurements")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_measurements_hardware_id_quantity_id_moment"),
        "measurements",
        ["hardware_id", "quantity_id", "moment"],
        unique=False,
    )
    op.create_index(
        op.f("ix_measurements_node_id_moment"), "measurements", ["node_id", "moment"], unique=False
    )
    op.create_index(
        op.f("ix_measurements_quantity_id_moment"), "measurements", ["quantity_id", "moment"], unique=False
    )
    op.create_table(
        "records",
        sa.Column("run_pk", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("record", _record(), nullable=False),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.id"], name=op.f("fk_records_run_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_pk", name=op.f("pk_records")),
    )
    op.create_table(
        "run_nodes",
        sa.Column("run_pk", sa.Integer(), nullable=False),
        sa.Column("hardware_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_run_nodes_hardware_id")),
        sa.ForeignKeyConstraint(
            ["run_pk"], ["runs.id"], name=op.f("fk_run_nodes_run_pk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_pk", "hardware_id", name=op.f("pk_run_nodes")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_run_nodes_hardware_id"), "run_nodes", ["hardware_id"], unique=False)
    op.create_index(op.f("ix_run_nodes_name"), "run_nodes", ["name"], unique=False)
