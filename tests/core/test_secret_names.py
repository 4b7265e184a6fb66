"""Test how variables with secrets are recognized (core/secret_names.py).

Plans and records keep the environment of a run, and must not keep a token or password. A variable is a secret
by its name (HF_TOKEN) or its value (a login in a URL, a private key). These tests also have names that only
sound like a secret, such as MAX_TOKENS.
"""

from __future__ import annotations

import pytest

from rackproof.core.secret_names import HIDDEN, hide_secrets, refuse_secrets, secret_variables

NAMES = """
    WANDB_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID
    AWS_SESSION_TOKEN NGC_API_KEY NGC_CLI_APIKEY OPENAI_API_KEY GITHUB_TOKEN GITHUB_PAT
    MLFLOW_TRACKING_PASSWORD PGPASSWORD MYSQL_PWD SSHPASS DB_PASS GOOGLE_APPLICATION_CREDENTIALS
    COMET_API_KEY SENTRY_DSN SLACK_WEBHOOK_URL AZURE_STORAGE_KEY AZURE_CLIENT_SECRET KEY_PASSPHRASE
    REGISTRY_AUTH wandb_api_key api-key ENCRYPTION_KEY HTTP_AUTHORIZATION SESSION_COOKIE
"""
"""Variables of common services that hold a secret."""
EVERYDAY = """
    SLURM_MPI_TYPE NCCL_DEBUG NCCL_IB_PKEY UCX_IB_PKEY TOKENIZERS_PARALLELISM TOKENIZER_PATH
    MAX_TOKENS STANDIN_SECONDS DATADIR MODEL NCCL_TEST OMP_NUM_THREADS PWD PATH PATTERN MONKEY
    KEYBOARD PASSES AUTHOR COMPASS_X CUDA_VISIBLE_DEVICES
"""
"""Variables of common programs that hold no secret."""


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "NGC_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
        *(
            "AWS_SESSION_TOKEN",
            "PGPASSWORD",
            "MYSQL_PWD",
            "DB_PASSWD",
            "hf_token",
            "HUGGINGFACEHUB_API_TOKEN",
        ),
        *("GITHUB_PAT", "OPENAI_APIKEY", "CLIENT_SECRET", "GOOGLE_APPLICATION_CREDENTIALS", "REGISTRY_AUTH"),
        *("SSH_PRIVATE_KEY", "COMET_API_KEY", "WANDBTOKEN"),
    ],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert secret_variables({name: "x", "OMP_NUM_THREADS": "8"}) == [name]


@pytest.mark.parametrize(
    "value",
    ["http://user:made-up@proxy:3128", "postgresql+psycopg://a:b@db/x", "s3 https://k:v@minio:9000/bucket"],
)
def test_a_login_in_a_url_is_a_secret(value: str) -> None:
    assert secret_variables({"HTTPS_PROXY": value}) == ["HTTPS_PROXY"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("TOKENIZER_PATH", "/data/tokenizer"),
        ("MAX_TOKENS", "4096"),
        ("PAD_TOKEN", "0"),
        ("EOS_TOKEN", "2"),
        ("NCCL_IB_PKEY", "0x7fff"),
        ("PWD", "/work"),
        ("MONKEY", "1"),
        ("PATH", "/usr/bin"),
        ("COMPAT", "1"),
        ("NCCL_SOCKET_IFNAME", "=eth0:1@x"),
        ("HTTPS_PROXY", "http://proxy.example:3128"),
        ("REMOTE", "git@host.example:project.git"),
        ("DATADIR", "/data/a:b@c"),
    ],
)
def test_a_variable_that_only_sounds_like_a_secret_is_none(name: str, value: str) -> None:
    assert secret_variables({name: value}) == []


def test_the_refusal_names_the_secrets_without_their_values() -> None:
    refuse_secrets({"OMP_NUM_THREADS": "8"})
    with pytest.raises(ValueError, match=r"HF_TOKEN, DB_URL: a secret .* bench_secret_environment") as caught:
        refuse_secrets({"HF_TOKEN": "canary-1", "DB_URL": "mysql://a:canary-2@db"})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES.split())
def test_variables_of_common_services_are_secrets(name: str) -> None:
    assert secret_variables({name: "x"}) == [name]


@pytest.mark.parametrize("name", EVERYDAY.split())
def test_everyday_names_are_accepted(name: str) -> None:
    refuse_secrets({name: "1"})


@pytest.mark.parametrize(
    "value",
    [
        "https://ops:canary@mirror.example/data",
        "postgresql://rack:canary@db/x",
        "redis://:canary@cache:6379",
        "-----BEGIN OPENSSH PRIVATE KEY-----\ncanary",
        "AKIA" + "CANARY7CANARY7CA",
        "hf_" + "canary" * 4,
        "nvapi-" + "canary" * 4,
        "ghp_" + "canary" * 4,
        "Bearer " + "canary" * 4,
        "eyJ" + "canary" * 3 + "." + "canary" * 3 + ".canary",
    ],
)
def test_a_secrets_value_is_known_whatever_its_name(value: str) -> None:
    assert secret_variables({"HARMLESS": value}) == ["HARMLESS"]


@pytest.mark.parametrize(
    "value",
    ["https://mirror.example:443/a@b", "http://[::1]:9000/x", "/data/set", "mlx5_0:1,mlx5_1:1", "git@host:x"],
)
def test_everyday_values_are_accepted(value: str) -> None:
    assert secret_variables({"HARMLESS": value}) == []


def test_the_secrets_of_an_old_record_are_not_shown() -> None:
    shown = hide_secrets({"HF_TOKEN": "canary", "A": "1", "B": "http://u:canary@h/"})
    assert shown == {"HF_TOKEN": HIDDEN, "A": "1", "B": HIDDEN}
    # A hidden value is not refused again.
    refuse_secrets({"HF_TOKEN": HIDDEN})
