#!/usr/bin/env bash
# Runs in every rank before Python and MPI start: assigns one GPU, and the cores next to it.
#
#   GPU_ORDER=reversed   the last GPU for the first rank, if the node is wired that way
#   CORES="0-7 8-15"     cores of the local ranks 0, 1, ...; if unset, the launcher or Linux decides
#   HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=120   how long ranks wait at an exchange for one that is stuck
set -euo pipefail

fail() {
    echo "submit: $*" >&2
    exit 1
}

# Horovod names the missing ranks after the first time, and ends the job after the second.
export HOROVOD_STALL_CHECK_TIME_SECONDS=${HOROVOD_STALL_CHECK_TIME_SECONDS:-60}
export HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=${HOROVOD_STALL_SHUTDOWN_TIME_SECONDS:-120}

# The rank on this node, from the launcher that has started it.
rank=0
for variable in OMPI_COMM_WORLD_LOCAL_RANK HOROVOD_LOCAL_RANK PMI_LOCAL_RANK PALS_LOCAL_RANKID \
    SLURM_LOCALID; do
    if [[ -n ${!variable:-} ]]; then
        rank=${!variable}
        break
    fi
done
if [[ ! $rank =~ ^(0|[1-9][0-9]{0,5})$ ]]; then # arithmetic would execute a command written there
    fail "$variable=$rank is not the number of a rank: unset it"
fi

gpus=()
if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
    IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
elif command -v nvidia-smi >/dev/null; then
    mapfile -t gpus < <(nvidia-smi --query-gpu=index --format=csv,noheader)
fi
if ((${#gpus[@]})); then
    if ((rank >= ${#gpus[@]})); then # two ranks on one GPU would be slower than one
        fail "no GPU for local rank $rank, this node shows ${#gpus[@]}: set RANKS"
    fi
    gpu=$rank
    if [[ ${GPU_ORDER:-straight} == reversed ]]; then
        gpu=$((${#gpus[@]} - 1 - rank))
    fi
    export CUDA_VISIBLE_DEVICES=${gpus[gpu]}
fi

read -ra cores <<<"${CORES:-}"
if [[ -n ${cores[rank]:-} ]]; then
    exec taskset -c "${cores[rank]}" "$@"
fi
exec "$@"
