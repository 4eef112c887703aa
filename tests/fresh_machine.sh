#!/usr/bin/env bash
# The two commands on a fresh Debian, in a folder of this machine: ./workshop run, ./workshop test.
#
#   sudo tests/fresh_machine.sh RELEASE [FOLDER] [-- what follows ./workshop test]
#
# RELEASE is bookworm (Debian 12), trixie (13), forky or sid. It has python3-venv and git, and for the
# second command build-essential. FOLDER keeps the system for another try; without one it is
# removed at the end. Needs root, debootstrap, about 5 GB and 20 minutes.
#
# Settings of pip, proxies and uv are taken from here; folders that they name: FRESH_BIND="DIR ...".
set -euo pipefail

usage() { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
stop() { echo "fresh_machine: $*" >&2; exit 1; }

release=${1:-}
[[ $release =~ ^[a-z]+$ ]] || usage
shift
folder=
if [[ $# -gt 0 && $1 != -- ]]; then folder=$1; shift; fi
[[ ${1:-} != -- ]] || shift
[[ $(id -u) == 0 ]] || stop "needs root: sudo $0 $release"
command -v debootstrap >/dev/null || stop "debootstrap is missing. Type: apt install debootstrap"
repo=$(cd "$(dirname "$0")/.." && pwd)
root=${folder:-$(mktemp -d /var/tmp/fresh-XXXXXX)}
[[ -n $folder ]] || trap 'rm -rf --one-file-system "$root"' EXIT

mark=$root/.fresh_machine # so that no folder of another kind is written into
if [[ ! -e $mark ]]; then
  [[ ! -e $root || -z $(ls -A "$root") ]] || stop "$root is not empty. Name a new folder."
  mirror=$(grep -rhoE 'https?://\S+/debian/?(\s|$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    head -n 1 | tr -d '[:space:]') || true
  scripts=/usr/share/debootstrap/scripts # a release that came later is made as sid is
  [[ -e $scripts/$release ]] && script=$scripts/$release || script=$scripts/sid
  debootstrap --variant=minbase --include=python3,python3-venv,git,ca-certificates "$release" "$root" \
    ${mirror:+"$mirror" "$script"}
  touch "$mark"
fi

# The network as here: names, certificates, pip's settings.
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
[[ ! -e /etc/pip.conf ]] || cp /etc/pip.conf "$root/etc/"
own=${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf
[[ ! -e $own ]] || install -D -m 644 "$own" "$root/root/.config/pip/pip.conf"
kept=()
while IFS= read -r name; do kept+=("$name=${!name}"); done \
  < <(compgen -e | grep -iE '^(pip|uv)_|_proxy$|^ssl_cert')

rm -rf "$root/workshop"
git clone -q "$repo" "$root/workshop"

inside() { # in a mount namespace of its own: nothing stays mounted
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child bash -euc '
    root=$1; shift
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    for bound in $FRESH_BIND; do mkdir -p "$root$bound"; mount --bind "$bound" "$root$bound"; done
    exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"
  ' bash "$root" ${kept[@]+"${kept[@]}"} bash -euc 'cd /workshop; "$@"' bash "$@"
}
export FRESH_BIND=${FRESH_BIND:-}

inside python3 --version
inside ./workshop run --steps "${FRESH_STEPS:-100}"
inside env DEBIAN_FRONTEND=noninteractive bash -c \
  'apt-get -q update && apt-get -qy install --no-install-recommends build-essential' >/dev/null
inside g++ --version | head -n 1
inside ./workshop setup --test --horovod
inside ./workshop test "$@"
echo "fresh_machine: both commands passed on $release"
