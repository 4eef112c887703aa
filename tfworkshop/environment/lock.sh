#!/bin/sh
# Writes requirements*.txt anew from the lists in pyproject.toml: the newest versions that fit.
set -eu
cd "$(dirname "$0")/../.."

# lock GROUP FILE [uv's options]
lock() {
    group=$1 file=$2
    shift 2
    {
        echo "# Made by tfworkshop/environment/lock.sh from the group $group of pyproject.toml."
        uv pip compile -q --universal --python-version 3.10 --no-header --no-annotate --group "$group" "$@"
    } >"$file.part"
    mv "$file.part" "$file"
}

lock run requirements.txt
lock test requirements-test.txt -c requirements.txt
lock 2.17 requirements-2.17.txt -c requirements-test.txt
