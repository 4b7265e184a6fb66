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

answer=$(mktemp /run/rackproof-prolog.XXXXXX) || fail "cannot write to /run"

# Write the list of GPUs to $answer within a number of seconds. Status 201: it was late. 202: it cannot be killed.
list_gpus() {
  # Start it in the background, because a call that hangs in the driver cannot be killed, and must not block the job.
  nvidia-smi -L >"$answer" 2>&1 &
  local query=$! tenth
  for ((tenth = 0; tenth < $1 * 10; tenth++)); do
    kill -0 "$query" 2>/dev/null || break
    sleep 0.1
  done
  if ! kill -0 "$query" 2>/dev/null; then
    wait "$query"
    return
  fi
  kill -KILL "$query"
  for ((tenth = 0; tenth < 20; tenth++)); do
    kill -0 "$query" 2>/dev/null || return 201
    sleep 0.1
  done
  return 202
}

list_gpus 30
status=$?
if [[ $status -eq 201 ]]; then
  # One late answer is not a fault, because the last job may still keep the node busy.
  list_gpus 90
  status=$?
fi
output=$(head -c 300 "$answer")
gpus=$(grep -c '^GPU ' "$answer")
rm -f "$answer"
case $status in
  0) ;;
  201) fail "nvidia-smi did not answer within 30 s, nor then within 90 s" ;;
  202) fail "nvidia-smi did not answer within 30 s, and cannot be killed" ;;
  *) fail "nvidia-smi failed: $output" ;;
esac
[[ $gpus -eq 4 ]] || fail "nvidia-smi lists $gpus instead of 4 GPUs"

scratch=/var/lib/rackproof/jobs
# The epilog of another job of the user removes shared memory only while it holds this lock. No user can open it.
lock=/run/rackproof-scratch.lock
( umask 077; : >>"$lock" ) && exec 9>>"$lock" || fail "cannot write to /run"
flock -w 60 9 || fail "an epilog has held $lock for 60 s"
# Root owns the folder above, so no user can put a link in the place of the job's folder.
{ mkdir -p "$scratch" && chown root:root "$scratch" && chmod 0755 "$scratch" &&
  install -d -m 0700 -o "$SLURM_JOB_UID" "$scratch/$SLURM_JOB_ID"; } || fail "cannot make $scratch/$SLURM_JOB_ID"
exec 9>&-
exit 0
