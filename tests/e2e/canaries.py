"""A canary for every secret that can be given to a playbook, from Vault and from the environment."""

from __future__ import annotations

import base64


def canary(name: str) -> str:
    """Return the canary in place of a secret."""
    return f"canary-{name}-0815"


VAULT = {
    "ngc_api_key": canary("ngc"),
    "reimage_bmc_user": "ops",
    "reimage_bmc_password": canary("bmc"),
    "slurm_munge_key": base64.b64encode(canary("munge").encode() * 40).decode(),
    "storage_s3fs_credentials": [{"access_key": canary("access"), "secret_key": canary("s3")}],
    "bench_results_credentials": [{"access_key": canary("results"), "secret_key": canary("key")}],
    "bench_secret_environment": {"HF_TOKEN": canary("hf"), "WANDB_API_KEY": canary("wandb")},
    "nightly_webhook_url": f"https://hooks.example/{canary('hook')}",
    "nightly_smtp_password": canary("smtp"),
    "nightly_smtp_user": canary("user"),
    "nightly_database_url": f"postgresql://rack:{canary('nightly')}@127.0.0.1:1/history",
}
# From the environment of the playbook, which all programs that it starts have.
ENVIRONMENT = {
    "RACKPROOF_DATABASE_URL": f"postgresql://rack:{canary('database')}@127.0.0.1:1/history",
    "RACKPROOF_WEBHOOK_URL": f"https://hooks.example/{canary('webhook')}",
    "RACKPROOF_SMTP_PASSWORD": canary("mail"),
    "RACKPROOF_SMTP_USER": canary("sender"),
    "NGC_API_KEY": canary("registry"),
}
