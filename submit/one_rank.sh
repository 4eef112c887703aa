#!/usr/bin/env bash
# Runs in every rank before Python and MPI start: assigns one GPU, and the cores next to it.
#
#   GPU_ORDER=reversed   the last GPU for the first rank, if the node is wired that way
#   HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=120   how long ranks wait at an exchange for one that is stuck
#   CORES="0-7 8-15"     cores of the local ranks 0, 1, ...; if unset, the launcher or Linux decides
set -euo pipefail

# Horovod names the missing ranks after the first time, and ends the job after the second.
export HOROVOD_STALL_CHECK_TIME_SECONDS=${HOROVOD_STALL_CHECK_TIME_SECONDS:-60}
export HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=${HOROVOD_STALL_SHUTDOWN_TIME_SECONDS:-120}

rank=0
for name in OMPI_COMM_WORLD_LOCAL_RANK HOROVOD_LOCAL_RANK PMI_LOCAL_RANK PALS_LOCAL_RANKID \
    SLURM_LOCALID; do
    if [[ -n ${!name:-} ]]; then
        rank=${!name}
        break
    fi
done
if [[ ! $rank =~ ^(0|[1-9][0-9]{0,5})$ ]]; then # arithmetic would run what is written in it
    echo "submit: $name=$rank is not the number of a rank: unset it" >&2
    exit 1
fi

if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
    IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
else
    gpus=()
    if command -v nvidia-smi >/dev/null; then
        mapfile -t gpus < <(nvidia-smi --query-gpu=index --format=csv,noheader)
    fi
fi

if ((${#gpus[@]})); then
    if ((rank >= ${#gpus[@]})); then
        echo "submit: no GPU for local rank $rank, this node shows ${#gpus[@]}: set RANKS" >&2
        exit 1
    fi
    mine=$rank
    [[ ${GPU_ORDER:-straight} != reversed ]] || mine=$((${#gpus[@]} - 1 - rank))
    export CUDA_VISIBLE_DEVICES=${gpus[mine]}
fi

read -ra cores <<<"${CORES:-}"
if [[ -n ${cores[rank]:-} ]]; then
    exec taskset -c "${cores[rank]}" "$@"
fi
exec "$@"
