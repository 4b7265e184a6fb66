#!/bin/bash
# Fake of the vendor's hook, off until it is in /etc/enroot/hooks.d: by it a rank in a container finds its PMI server.
set -euo pipefail

[[ -n ${SLURM_JOB_ID-} && -n ${SLURM_STEP_ID-} ]] || exit 0

keep() {
  local name
  for name in $(compgen -e "$1"); do echo "$name=${!name}"; done >> "$ENROOT_ENVIRON"
}

keep SLURM_
keep PMI_
if [[ ${SLURM_MPI_TYPE-pmix} == pmix* && -n $(compgen -e PMIX_) ]]; then
  keep PMIX_
  # A client of another release reads these names.
  for pair in ptl:PMIX_PTL_MODULE psec:PMIX_SECURITY_MODE gds:PMIX_GDS_MODULE; do
    ours=PMIX_MCA_${pair%%:*} theirs=${pair#*:}
    [[ -z ${!theirs-} || -n ${!ours-} ]] || echo "$ours=${!theirs}" >> "$ENROOT_ENVIRON"
  done
  [[ -z ${PMIX_SERVER_TMPDIR-} ]] || echo "$PMIX_SERVER_TMPDIR" >> "$ENROOT_MOUNTS"
fi
