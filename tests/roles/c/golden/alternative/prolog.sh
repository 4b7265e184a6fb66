#!/bin/bash
# Made by Rackproof's role slurm from the inventory; changes by hand are lost.
# Runs as root on each node of a job before the job. Failing drains the node and requeues the job. It calls no
# Slurm command, because all nodes of a large job would call the controller at once.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

fail() {
  logger -t rackproof-prolog -p daemon.err -- "job ${SLURM_JOB_ID:-?}: $*"
  exit 1
}

[[ ${SLURM_JOB_ID:-} =~ ^[0-9]+$ && ${SLURM_JOB_UID:-} =~ ^[0-9]+$ ]] || fail "no job id or user id in the environment"
exit 0
