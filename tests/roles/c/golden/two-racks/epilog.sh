#!/bin/bash
# Made by Rackproof's role slurm from the inventory; changes by hand are lost.
# Runs as root on each node of a job after the job. Failing drains the node. It calls no Slurm command.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

fail() {
  logger -t rackproof-epilog -p daemon.err -- "job ${SLURM_JOB_ID:-?}: $*"
  exit 1
}

[[ ${SLURM_JOB_ID:-} =~ ^[0-9]+$ && ${SLURM_JOB_UID:-} =~ ^[0-9]+$ ]] || fail "no job id or user id in the environment"
scratch=/var/lib/rackproof/jobs
rm -rf --one-file-system -- "${scratch:?}/${SLURM_JOB_ID:?}" || fail "cannot remove $scratch/$SLURM_JOB_ID"

# Remove a user's files in shared memory after the user's last job on the node. Each running job has a folder. The
# prolog of the user's next job waits for the lock, so that no file of that job is removed.
lock=/run/rackproof-scratch.lock
if [[ $SLURM_JOB_UID -ge 1000 && -d $scratch ]] && ( umask 077; : >>"$lock" ) && exec 9>>"$lock" && flock -w 60 9 &&
   [[ -z $(find "$scratch" -mindepth 1 -maxdepth 1 -uid "$SLURM_JOB_UID" -print -quit) ]]; then
  find /dev/shm -mindepth 1 -xdev -uid "$SLURM_JOB_UID" -delete 2>/dev/null
fi
exit 0
