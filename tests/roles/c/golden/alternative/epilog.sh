#!/bin/bash
# Made by Rackproof's role slurm from the inventory; changes by hand are lost.
# Runs as root on each node of a job after the job. Failing drains the node. It calls no Slurm command.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

fail() {
  logger -t rackproof-epilog -p daemon.err -- "job ${SLURM_JOB_ID:-?}: $*"
  exit 1
}

[[ ${SLURM_JOB_ID:-} =~ ^[0-9]+$ && ${SLURM_JOB_UID:-} =~ ^[0-9]+$ ]] || fail "no job id or user id in the environment"
exit 0
