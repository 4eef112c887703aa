# shellcheck shell=bash disable=SC2153,SC2154
# What the job scripts share; they source it. Nothing here depends on a site or batch system.
#
# A job script sets, before it calls train:
#   repo        the top folder of this repository
#   job         the job's number
#   nodes       how many nodes it has, with RANKS ranks on each
#   launcher    the command that starts the ranks: in the container on one node, outside on several
#   image_options, binds   extra options and folders for apptainer, if the site needs them
#
# You may set, in the environment of the job:
#   RANKS=2          ranks (GPUs) on each node; default: all
#   CONTAINER=FILE   the image; none: the venv of ./workshop if there is one, else Python on PATH
#   ENTER="..."      the full command that enters another kind of container
#   LAUNCHER="..."   instead of the site's launcher; empty: none, one process
#   PROFILE=1        record a profile (stages 04, 05 and 06)
#   TIMELINE=1       record Horovod's timeline
#   CHOOSE=0         06: do not look for the fastest switches
#   MNIST_NPZ=FILE   the data of a stage, if it is not at data/mnist.npz

stop() {
    echo "submit: $*" >&2
    exit 1
}

# The scheduler knows the project, whether it is in the script or on the command line. (Slurm
# converts it to lower case.)
check_project() { # PROJECT, HOW TO NAME ONE
    [[ ${1^^} != CHANGE_ME ]] || stop "no project to charge: $2"
}

load_modules() { # several in one call: in that order
    set +u # the site's module command often uses unset variables
    module load "$@" || stop "module load $* failed: see module avail"
    set -u
}

gpus_of_this_node() {
    local lines
    lines=$(nvidia-smi -L 2>/dev/null) || true
    grep -c '^GPU ' <<<"$lines" || true
}

check_ranks() { # before any arithmetic, which would run what is written in them
    [[ $nodes =~ ^[1-9][0-9]{0,5}$ ]] || stop "$nodes nodes: must be a number"
    [[ $RANKS != 0 ]] || stop "no GPU on this node: request some, or set RANKS"
    [[ $RANKS =~ ^[1-9][0-9]{0,5}$ ]] || stop "RANKS=$RANKS: must be a number, the ranks on each node"
}

# 02 or 02_tf_function: sets $stage, the folder, and $script.
choose_stage() {
    local found
    [[ ${1:-} =~ ^[0-9][0-9] ]] || stop "name a stage first, 00 to 06 or all, not '${1:-}'"
    found=("$repo/$1"*/train_MNIST.py)
    [[ ${#found[@]} == 1 && -f ${found[0]} ]] || stop "no stage $1. The stages are 00 to 06"
    stage=$(basename "$(dirname "${found[0]}")")
    script="$repo/$stage/train_MNIST.py"
    [[ $stage != 01_* ]] || script="$repo/$stage/train_MNIST_iofix.py" # as ./workshop run does
}

# Sets $inside: the command prefix that runs a command where TensorFlow is.
choose_python() {
    local image=${CONTAINER:-$repo/container/workshop.sif} venv=${WORKSHOP_VENV:-$repo/.venv}
    local engine folder folders=("$repo" "${binds[@]}")
    inside=()
    if [[ -z ${ENTER:-} && $image == none ]]; then
        [[ ! -x $venv/bin/python3 ]] || PATH="$venv/bin:$PATH"
        return
    fi
    unset PYTHONPATH PYTHONHOME # a module's packages must not come before the image's
    if [[ -n ${ENTER:-} ]]; then
        read -ra inside <<<"$ENTER"
    else
        engine=$(command -v apptainer || command -v singularity) ||
            stop "neither apptainer nor singularity is on PATH: load its module"
        [[ -e $image ]] ||
            stop "no image at $image: build it (container/README.md) or name one with CONTAINER=FILE"
        for folder in "$(dirname "$data")" "$results"; do
            [[ $folder/ == "$repo"/* ]] || folders+=("$folder")
        done
        inside=("$(basename "$engine")" exec --nv "${image_options[@]}")
        for folder in "${folders[@]}"; do
            inside+=(-B "$folder")
        done
        inside+=("$image")
    fi
}

# A stage never downloads. Where a job has a network, this does it once, before the ranks start.
get_data() {
    [[ ! -f $data ]] || return 0
    echo "submit: no data at $data, trying to download it"
    (cd "$repo" && "${inside[@]}" env WORKSHOP_PYTHON_ENV=system python3 workshop data) || true
    [[ -f $data ]] ||
        stop "no data at $data: type ./workshop data where there is a network, then submit again"
}

# Sets $extra: what PROFILE and TIMELINE add to the training script's options.
choose_extras() {
    extra=()
    case ${stage:0:2} in
        04 | 05) extra=(--logdir "$results/logs/$name") ;; # always
        06) [[ ${PROFILE:-0} != 1 ]] || extra=(--logdir "$results/logs/$name") ;;
        *) [[ ${PROFILE:-0} != 1 ]] || stop "PROFILE=1 is for stages 04, 05 and 06" ;;
    esac
    [[ ${TIMELINE:-0} != 1 ]] || export HOROVOD_TIMELINE="$results/$name.timeline.json"
}

# Sets $switches: the fastest for 06 on this node, found by choose.py before the ranks start and
# kept for the next job. Skipped if you name a switch yourself.
choose_switches() {
    local words=("${inside[@]}" python3 "$repo/$stage/choose.py" --data "$data") found
    switches=()
    [[ $stage == 06_* && ${CHOOSE:-1} != 0 ]] || return 0
    [[ ! "$*" =~ --(xla|precision|steps-per-call|threads) ]] || return 0
    [[ ! "$*" =~ --batch[-_]size[\ =]+([0-9]+) ]] || words+=(--batch-size "${BASH_REMATCH[1]}")
    echo "submit: finding the fastest switches for 06 (takes minutes, once; CHOOSE=0 skips it)"
    if found=$("${words[@]}"); then
        read -ra switches <<<"$found"
    else
        echo "submit: choose.py found none: using the defaults"
    fi
}

# Only Horovod knows whether the ranks found each other; N separate trainings are no result.
check_results() {
    local seen
    [[ -f $file ]] || stop "the training wrote no results"
    seen=$(sed -n 's/^ *"ranks": \([0-9]*\),*$/\1/p' "$file")
    if [[ $seen != "$ranks" ]]; then
        rm -f "$file"
        stop "$ranks ranks requested, Horovod saw $seen: launcher and MPI are incompatible"
    fi
    echo "submit: results in $file"
}

# Sets $words: one stage, started by the launcher; on one node, inside the container.
stage_words() {
    words=("$repo/submit/one_rank.sh" python3 "$script" --data "$data" --results "$file")
    words+=("${extra[@]}" "${switches[@]}" "$@")
    if ((nodes > 1)); then
        words=("${launcher[@]}" "${inside[@]}" "${words[@]}")
    else
        words=("${inside[@]}" "${launcher[@]}" "${words[@]}")
    fi
}

# part NAME COMMAND...   one part of `all`: what it prints is in NAME.txt, how it ended in parts.txt
part() {
    local name=$1 status=0 line start=$SECONDS
    shift
    echo "submit: $name:"
    printf '%q ' "$@"
    echo
    "$@" 2>&1 | tee "$folder/$name.txt" || status=$?
    line="$name: done, $((SECONDS - start)) s"
    if ((status)); then
        failed+=("$name")
        line="$name: FAILED with exit status $status, see $name.txt"
    fi
    echo "$line" | tee -a "$folder/parts.txt"
}

# Power and clocks of the GPUs, every 5 seconds until it is stopped.
sample_gpus() {
    local columns=timestamp,index,power.draw,clocks.sm,clocks.mem,temperature.gpu
    echo "$columns"
    while nvidia-smi --query-gpu="$columns" --format=csv,noheader,nounits; do
        sleep 5
    done
}

stop_sampling() { # SAMPLER
    local line="gpu: done, power and clocks are in gpu.csv"
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
    if ! command -v nvidia-smi >/dev/null; then
        rm "$folder/gpu.csv"
        line="gpu: no power and clocks, there is no nvidia-smi on this node"
    elif (($(wc -l <"$folder/gpu.csv") < 2)); then
        failed+=(gpu)
        line="gpu: FAILED, nvidia-smi told nothing"
    fi
    echo "$line" | tee -a "$folder/parts.txt"
}

# everything OPTIONS...   what there is to measure of a device, in one folder. The parts do not
# depend on each other: one that fails does not stop the others.
everything() {
    local folder="$results/all-$job" data failed=() counts=() n sampler workshop python short
    local found switches
    ((nodes == 1)) || stop "all is for one node; name a stage"
    for n in "$@"; do
        [[ $n =~ ^(--(steps|repeats|batch-size)|[0-9]+)$ ]] ||
            stop "all takes --steps, --repeats and --batch-size, each with a number, not $n"
    done
    data=$(realpath -m "$repo/data/mnist.npz")
    choose_python
    [[ ! -e $folder ]] || stop "$folder is there already: move it away"
    mkdir -p "$results"
    get_data
    mkdir "$folder"
    for ((n = 1; n < RANKS; n *= 2)); do
        counts+=("$n")
    done
    export WORKSHOP_RESULTS=$folder WORKSHOP_PYTHON_ENV=system
    python=("${inside[@]}" python3)
    workshop=("${python[@]}" "$repo/workshop")
    short=(--data "$data" --steps 30)
    [[ ! "$*" =~ --batch-size\ ([0-9]+) ]] || short+=(--batch-size "${BASH_REMATCH[1]}")
    sample_gpus >"$folder/gpu.csv" 2>/dev/null &
    sampler=$!
    part doctor "${workshop[@]}" doctor
    part ladder "${workshop[@]}" run --steps 200 --repeats 3 "$@"
    # The ladder has recorded 04 and 05. 02 has no profiler: 04 without XLA is the same step with one.
    part profile_02 "${python[@]}" "$repo/04_tf_profiler/train_MNIST.py" "${short[@]}" --xla off \
        --logdir "$folder/logs/02_as_04_without_xla"
    # 06, as the ladder has trained it.
    found=$(sed -n 's/.*"switches": "\(.*\)".*/\1/p' "$folder/ladder.json" 2>/dev/null) || true
    read -ra switches <<<"$found"
    part profile_06 "${python[@]}" "$repo/06_optimized/train_MNIST.py" "${short[@]}" \
        "${switches[@]}" --logdir "$folder/logs/06_optimized"
    part bench "${workshop[@]}" bench "$@"
    part scale "${workshop[@]}" scale --ranks "${counts[@]}" "$RANKS" "$@"
    stop_sampling "$sampler"
    echo "submit: results in $folder"
    ((${#failed[@]} == 0)) || stop "of these, failed: ${failed[*]}"
}

# train STAGE OPTIONS...   the whole job; STAGE may be all
train() {
    local stage script data results name file ranks status=0 inside extra switches words
    cd -P "$repo" || exit # a path without symbolic links: they break mounts
    repo=$PWD
    results=${WORKSHOP_RESULTS:-$repo/results}
    export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2} # errors only, also from the launcher
    if [[ ${1:-} == all ]]; then
        everything "${@:2}"
        return
    fi
    choose_stage "${1:-}"
    shift
    data=$(realpath -m "${MNIST_NPZ:-$repo/data/mnist.npz}")
    ranks=$((nodes * RANKS))
    name="$stage-np$ranks-$job"
    file="$results/$name.json"
    choose_python
    choose_extras
    mkdir -p "$results"
    get_data
    choose_switches "$@"
    stage_words "$@"
    echo "submit: $stage on $nodes node(s), $ranks rank(s):"
    printf '%q ' "${words[@]}"
    echo
    "${words[@]}" || status=$?
    ((status == 0)) || stop "the training ended with exit status $status"
    check_results
}
