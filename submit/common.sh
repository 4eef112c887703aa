# shellcheck shell=bash disable=SC2153,SC2154
# What the job scripts share; they source it. Nothing here depends on a site or a batch system.
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
#                    (Polaris: the Python of the site's conda module)
#   ENTER="..."      the full command that enters another kind of container
#   LAUNCHER="..."   instead of the site's launcher; empty: none, one process
#   PROFILE=1        record a profile (stages 04, 05 and 06)
#   TIMELINE=1       record Horovod's timeline
#   CHOOSE=0         06: do not look for the fastest switches
#   MNIST_NPZ=FILE   the data of a stage, if it is not at data/mnist.npz

fail() {
    echo "submit: $*" >&2
    exit 1
}

# check_project PROJECT ADVICE
# Slurm converts the name to lower case.
check_project() {
    if [[ ${1^^} == CHANGE_ME ]]; then
        fail "no project to charge: $2"
    fi
}

# load_modules MODULE...   in this order
load_modules() {
    set +u # the site's module command often uses unset variables
    module load "$@" || fail "module load $* failed: see module avail"
    set -u
}

count_gpus() {
    local gpus
    gpus=$(nvidia-smi -L 2>/dev/null) || true
    grep -c '^GPU ' <<<"$gpus" || true
}

# Called before any arithmetic: bash would execute a command that is written in place of a number.
check_ranks() {
    [[ $nodes =~ ^[1-9][0-9]{0,5}$ ]] || fail "$nodes nodes: must be a number"
    [[ $RANKS != 0 ]] || fail "no GPU on this node: request some, or set RANKS"
    [[ $RANKS =~ ^[1-9][0-9]{0,5}$ ]] || fail "RANKS=$RANKS: must be a number, the ranks on each node"
}

# choose_stage 02 (or 02_tf_function)
# Sets $stage, the folder, and $script.
choose_stage() {
    local scripts
    [[ ${1:-} =~ ^[0-9][0-9] ]] || fail "name a stage first, 00 to 06 or all, not '${1:-}'"
    scripts=("$repo/$1"*/train_MNIST.py)
    [[ ${#scripts[@]} == 1 && -f ${scripts[0]} ]] || fail "no stage $1. The stages are 00 to 06"
    script=${scripts[0]}
    stage=$(basename "$(dirname "$script")")
    if [[ $stage == 01_* ]]; then
        script="$repo/$stage/train_MNIST_iofix.py" # as ./workshop run does
    fi
}

# Sets $inside, the command that runs another command where TensorFlow is.
choose_python() {
    local image=${CONTAINER:-$repo/container/workshop.sif}
    local venv=${WORKSHOP_VENV:-$repo/.venv}
    inside=()
    if [[ -n ${ENTER:-} ]]; then
        read -ra inside <<<"$ENTER"
    elif [[ $image != none ]]; then
        enter_image "$image"
    elif [[ -x $venv/bin/python3 ]]; then
        PATH="$venv/bin:$PATH"
    fi
    if ((${#inside[@]})); then
        unset PYTHONPATH PYTHONHOME # a module's packages must not come before the image's
    fi
}

# enter_image IMAGE   sets $inside
enter_image() {
    local engine folder
    engine=$(command -v apptainer || command -v singularity) ||
        fail "neither apptainer nor singularity is on PATH: load its module"
    [[ -e $1 ]] ||
        fail "no image at $1: build it (container/README.md) or name one with CONTAINER=FILE"
    inside=("$(basename "$engine")" exec --nv "${image_options[@]}" -B "$repo")
    for folder in "${binds[@]}"; do
        inside+=(-B "$folder")
    done
    for folder in "$(dirname "$data")" "$results"; do
        if [[ $folder/ != "$repo"/* ]]; then
            inside+=(-B "$folder")
        fi
    done
    inside+=("$1")
}

# A stage never downloads. Where a job has a network, this does it once, before the ranks start.
get_data() {
    if [[ ! -f $data ]]; then
        echo "submit: no data at $data, trying to download it"
        "${inside[@]}" env WORKSHOP_PYTHON_ENV=system "$repo/workshop" data || true
    fi
    [[ -f $data ]] ||
        fail "no data at $data: type ./workshop data where there is a network, then submit again"
}

# Adds what PROFILE asks for to $options, the training script's.
add_profile() {
    case ${stage:0:2} in
        04 | 05) options+=(--logdir "$results/logs/$name") ;; # always
        06)
            if [[ ${PROFILE:-0} == 1 ]]; then
                options+=(--logdir "$results/logs/$name")
            fi
            ;;
        *) [[ ${PROFILE:-0} != 1 ]] || fail "PROFILE=1 is for stages 04, 05 and 06" ;;
    esac
}

# add_switches OPTIONS...
# Adds the fastest switches for 06 on this node, unless the options name one. choose.py finds them
# before the ranks start, and remembers them for the next job.
add_switches() {
    local choose=("${inside[@]}" python3 "$repo/$stage/choose.py" --data "$data")
    local switches
    if [[ $stage != 06_* || ${CHOOSE:-1} == 0 ]]; then
        return
    fi
    if [[ "$*" =~ --(xla|precision|steps-per-call|threads) ]]; then
        return
    fi
    if [[ "$*" =~ --batch[-_]size[\ =]+([0-9]+) ]]; then
        choose+=(--batch-size "${BASH_REMATCH[1]}")
    fi
    echo "submit: finding the fastest switches for 06 (takes minutes, once; CHOOSE=0 skips it)"
    if switches=$("${choose[@]}"); then
        read -ra switches <<<"$switches"
        options+=("${switches[@]}")
    else
        echo "submit: choose.py found none: using the defaults"
    fi
}

# Only Horovod knows whether the ranks found each other; N separate trainings are not a result.
check_results() {
    local seen
    [[ -f $file ]] || fail "the training wrote no results"
    seen=$(sed -n 's/^ *"ranks": \([0-9]*\),*$/\1/p' "$file")
    if [[ $seen != "$ranks" ]]; then
        rm -f "$file"
        fail "$ranks ranks requested, Horovod saw $seen: launcher and MPI are incompatible"
    fi
    echo "submit: results in $file"
}

show_command() {
    printf '%q ' "$@"
    echo
}

# train STAGE OPTIONS...   the whole job; STAGE may be all
train() {
    local stage script data results name file ranks command status=0
    local inside=() options=()
    cd -P "$repo" || exit # a path without symbolic links: they break mounts
    repo=$PWD
    results=${WORKSHOP_RESULTS:-$repo/results}
    export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2} # errors only, also from the launcher
    unset HOROVOD_RANK HOROVOD_SIZE # left in the user's shell, they would confuse Horovod
    if [[ ${1:-} == all ]]; then
        measure_everything "${@:2}"
        return
    fi
    choose_stage "${1:-}"
    shift
    data=$(realpath -m "${MNIST_NPZ:-$repo/data/mnist.npz}")
    ranks=$((nodes * RANKS))
    name="$stage-np$ranks-$job"
    file="$results/$name.json"
    choose_python
    add_profile
    if [[ ${TIMELINE:-0} == 1 ]]; then
        export HOROVOD_TIMELINE="$results/$name.timeline.json"
    fi
    mkdir -p "$results"
    get_data
    add_switches "$@"
    command=("$repo/submit/one_rank.sh" python3 "$script" --data "$data" --results "$file")
    command+=("${options[@]}" "$@")
    if ((nodes > 1)); then
        command=("${launcher[@]}" "${inside[@]}" "${command[@]}")
    else
        command=("${inside[@]}" "${launcher[@]}" "${command[@]}")
    fi
    echo "submit: $stage on $nodes node(s), $ranks rank(s):"
    show_command "${command[@]}"
    "${command[@]}" || status=$?
    if ((status)); then
        fail "the training ended with exit status $status"
    fi
    check_results
}

# --- all ---

# measure_everything OPTIONS...
# What there is to measure of a device, in one folder. A part that fails does not stop the others.
measure_everything() {
    local folder="$results/all-$job" rank_counts=() failed=() count word sampler switches
    local workshop python short
    ((nodes == 1)) || fail "all is for one node; name a stage"
    for word in "$@"; do
        [[ $word =~ ^(--(steps|repeats|batch-size)|[0-9]+)$ ]] ||
            fail "all takes --steps, --repeats and --batch-size, each with a number, not $word"
    done
    data=$(realpath -m "$repo/data/mnist.npz")
    choose_python
    [[ ! -e $folder ]] || fail "$folder exists already: move it away"
    mkdir -p "$results"
    get_data
    mkdir "$folder"
    for ((count = 1; count < RANKS; count *= 2)); do
        rank_counts+=("$count")
    done
    export WORKSHOP_RESULTS=$folder WORKSHOP_PYTHON_ENV=system
    workshop=("${inside[@]}" "$repo/workshop")
    python=("${inside[@]}" python3)
    short=(--data "$data" --steps 30)
    if [[ "$*" =~ --batch-size\ ([0-9]+) ]]; then
        short+=(--batch-size "${BASH_REMATCH[1]}")
    fi
    sample_gpus >"$folder/gpu.csv" 2>/dev/null &
    sampler=$!
    part doctor "${workshop[@]}" doctor
    part ladder "${workshop[@]}" run --steps 200 --repeats 3 "$@"
    # The ladder has recorded 04 and 05. 02 has no profiler: 04 without XLA is the same step with one.
    part profile_02 "${python[@]}" "$repo/04_tf_profiler/train_MNIST.py" "${short[@]}" --xla off \
        --logdir "$folder/logs/02_as_04_without_xla"
    # 06 with the switches that the ladder has trained it with.
    switches=$(sed -n 's/.*"switches": "\(.*\)".*/\1/p' "$folder/ladder.json" 2>/dev/null) || true
    read -ra switches <<<"$switches"
    part profile_06 "${python[@]}" "$repo/06_optimized/train_MNIST.py" "${short[@]}" \
        "${switches[@]}" --logdir "$folder/logs/06_optimized"
    part bench "${workshop[@]}" bench "$@"
    part scale "${workshop[@]}" scale --ranks "${rank_counts[@]}" "$RANKS" "$@"
    stop_sampling "$sampler"
    echo "submit: results in $folder"
    if ((${#failed[@]})); then
        fail "of these, failed: ${failed[*]}"
    fi
}

# part NAME COMMAND...
# One part of `all`: its output goes to NAME.txt as well, and how it ended to parts.txt.
part() {
    local name=$1 status=0 line start=$SECONDS
    shift
    echo "submit: $name:"
    show_command "$@"
    "$@" 2>&1 | tee "$folder/$name.txt" || status=$?
    line="$name: done, $((SECONDS - start)) s"
    if ((status)); then
        failed+=("$name")
        line="$name: FAILED with exit status $status, see $name.txt"
    fi
    echo "$line" | tee -a "$folder/parts.txt"
}

# Power and clocks of the GPUs, every 5 seconds until it is killed.
sample_gpus() {
    local columns=timestamp,index,power.draw,clocks.sm,clocks.mem,temperature.gpu
    echo "$columns"
    while nvidia-smi --query-gpu="$columns" --format=csv,noheader,nounits; do
        sleep 5
    done
}

# stop_sampling PROCESS
stop_sampling() {
    local line="gpu: done, power and clocks are in gpu.csv"
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
    if ! command -v nvidia-smi >/dev/null; then
        rm "$folder/gpu.csv"
        line="gpu: no power and clocks, there is no nvidia-smi on this node"
    elif (($(wc -l <"$folder/gpu.csv") < 2)); then
        failed+=(gpu)
        line="gpu: FAILED, nvidia-smi printed nothing"
    fi
    echo "$line" | tee -a "$folder/parts.txt"
}
