#!/bin/bash
# Fake of the vendor's hook, off until it is in /etc/enroot/hooks.d: what torch.distributed reads, in images of PyTorch.
set -eu

grep -q '^PYTORCH_VERSION=' "$ENROOT_ENVIRON" || exit 0

add() {
  [[ -z $2 ]] || grep -q "^$1=" "$ENROOT_ENVIRON" || echo "$1=$2" >> "$ENROOT_ENVIRON"
}

add MASTER_ADDR "$(scontrol show hostname "${SLURM_STEP_NODELIST-}" 2> /dev/null | head -n1)"
add MASTER_PORT "${SLURM_JOB_ID:+$((SLURM_JOB_ID % 4536 + 61000))}"
add WORLD_SIZE "${SLURM_NTASKS-}"
add RANK "${SLURM_PROCID-}"
add LOCAL_RANK "${SLURM_LOCALID-}"
