# shellcheck shell=sh
# Makes or completes the environment, as ./workshop (which reads this file) has planned it in $wanted.
#
# uv downloads everything before it installs anything. The layer test is added in place; otherwise the
# environment is made anew, and the old one comes back if that fails or is interrupted.
# shellcheck disable=SC2154 # ./workshop has set the variables

uv_version=0.13.7
oldest=10 # Python 3.10, to 3.$newest
no_network="Without a network: type ./workshop setup where there is one (a login node), or set HTTPS_PROXY."
child=

# A command that ends when this script is ended; a shell alone would leave it running.
guarded() {
    "$@" &
    child=$!
    status=0
    wait "$child" || status=$?
    child=
    return "$status"
}

# Nothing half-made stays; the last good environment comes back.
put_back() {
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    if [ ! -e "$stamp" ] && [ -e "$stamp.part" ]; then
        rm -rf "$venv"
    fi
    if [ ! -e "$venv" ] && [ -e "$venv.old" ]; then
        mv "$venv.old" "$venv"
    fi
}

# Sets $uv: the one on PATH, or ours, which any Python that has pip or ensurepip can install.
find_uv() {
    uv=uv
    ! uv --version >/dev/null 2>&1 || return 0
    uv=$cache/uv/bin/uv
    [ ! -x "$uv" ] || return 0
    say "Installing uv $uv_version into $cache/uv."
    part=$cache/uv.part
    { rm -rf "$part" && mkdir -p "$part"; } 2>/dev/null ||
        fail "cannot write to $cache; name another folder: WORKSHOP_CACHE=FOLDER ./workshop ..."
    set -- -m pip install -qq --disable-pip-version-check --no-input "uv==$uv_version"
    find_python 6 || true # which then fails below
    if "$python" -m pip --version >/dev/null 2>&1; then
        PIP_USER=0 guarded "$python" "$@" --target "$part" ||
            fail "pip could not install uv (it says why, above). $no_network"
    elif "$python" -c 'import ensurepip' 2>/dev/null; then
        guarded "$python" -m venv "$part" || fail "$python could not make a venv for uv"
        guarded "$part/bin/python" "$@" ||
            fail "pip could not install uv (it says why, above). $no_network"
    else
        fail "needs uv, or a python3 with pip to install it. Type: sudo apt install python3-venv" \
            "(on a cluster: load a Python module)"
    fi
    rm -rf "$cache/uv"
    mv "$part" "$cache/uv"
}

pip_setting() { # as pip does: the environment before [install] before [global]
    for section in :env: install global; do
        printf '%s\n' "$pip_settings" | sed -n -e 's/\\n/ /g' -e "s/^$section\.$1='\(.*\)'\$/\1/p"
    done | head -n 1
}

# VARIABLE SETTING: what pip is configured with, as a variable of uv's that is not set yet.
pass_on() {
    eval "value=\${$1:-}"
    [ -n "$value" ] || value=$(pip_setting "$2")
    [ -z "$value" ] || export "$1=$value"
}

use_pip_settings() {
    for python in "${WORKSHOP_PYTHON:-python3}" python3 "$cache/uv/bin/python"; do
        pip_settings=$("$python" -m pip config list 2>/dev/null) && break
    done
    pass_on UV_DEFAULT_INDEX index-url
    pass_on UV_INDEX extra-index-url
    pass_on UV_FIND_LINKS find-links
    pass_on UV_INSECURE_HOST trusted-host
    pass_on SSL_CERT_FILE cert
    pass_on ALL_PROXY proxy
    [ -z "${UV_FIND_LINKS:-}" ] || UV_FIND_LINKS=$(echo "$UV_FIND_LINKS" | tr -s ' ' ,)
    export UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}" # of all indexes, as pip does
}

# An empty venv; the old one is moved aside.
make_venv() {
    if [ -e "$stamp" ]; then
        say "The environment is made anew: add again what you have installed yourself, and Horovod."
        rm -rf "$venv.old"
        mv "$venv" "$venv.old"
    elif [ -e "$venv" ] && ! rmdir "$venv" 2>/dev/null; then
        fail "$venv was not made by ./workshop. Move it away, or name another folder:" \
            "WORKSHOP_VENV=FOLDER ./workshop ..."
    fi
    mkdir "$venv"
    touch "$stamp.part" # it is ours, should this be interrupted
    guarded "$uv" venv -q --allow-existing --python "${request:->=3.$oldest,<3.$((newest + 1))}" "$venv" ||
        fail "no Python 3.$oldest to 3.$newest (uv says why, above). Install one, or name it:" \
            "WORKSHOP_PYTHON=/path/to/python3.$newest ./workshop ..."
    "$venv/bin/python" -c "import sys; sys.exit(not (3, $oldest) <= sys.version_info[:2] <= (3, $newest))" ||
        fail "WORKSHOP_PYTHON=$request is not one of Python 3.$oldest to 3.$newest"
}

install() {
    started=$(date +%s)
    find_uv
    use_pip_settings
    export UV_CACHE_DIR="${UV_CACHE_DIR:-$cache/uv-cache}"
    export UV_PYTHON_INSTALL_DIR="${UV_PYTHON_INSTALL_DIR:-$cache/python}"
    case $installed in
        "$run"*) [ -x "$venv/bin/python" ] || make_venv ;;
        *) make_venv ;;
    esac
    if is_ready; then # but somebody may have removed a package since
        wanted=${installed%.}
    else
        say "Installing $package and what else is needed into $venv ..."
    fi
    printf %s "$wanted" >"$stamp.part"
    quiet=yes
    [ ! -t 2 ] || quiet=
    guarded "$uv" pip install ${quiet:+-q} --project "$root" --python "$venv/bin/python" \
        --only-binary :all: -r "$stamp.part" ||
        fail "uv could not install the environment (it says why, above). $no_network"
    mv "$stamp.part" "$stamp"
    rm -rf "$venv.old"
    say "The environment is ready, after $(($(date +%s) - started)) s."
}

# A second ./workshop waits for the first.
{ mkdir -p "$(dirname "$venv")" && : >>"$venv.lock"; } 2>/dev/null ||
    fail "cannot write to $(dirname "$venv"); name another folder: WORKSHOP_VENV=FOLDER ./workshop ..."
exec 9>>"$venv.lock"
trap put_back EXIT
trap 'say "workshop: interrupted"; exit 130' INT TERM HUP
if command -v flock >/dev/null && ! flock -n 9; then
    say "Another ./workshop is making the environment: waiting for it."
    guarded flock 9 || true # a file system without locks
fi
put_back # what a killed one has left
choose_requirements
if [ "$command" = setup ] || ! is_ready; then
    install
fi
trap - EXIT INT TERM HUP
exec 9>&-
