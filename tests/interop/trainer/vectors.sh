#!/bin/sh
# vectors.sh SCRIPT SEED TEST_PROGRAM - fresh vectors from SCRIPT, drawn differently from the committed ones, through the same test.
# Python is K2_PYTHON or python3; without it, or without torch: exit code 77 with the reason.
set -eu
python=${K2_PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
    echo "skipped: no $python on PATH (set K2_PYTHON)"
    exit 77
fi
dir=$(mktemp -d /tmp/k2-vectors.XXXXXX)
trap 'rm -rf "$dir"' EXIT
PYTHONDONTWRITEBYTECODE=1 "$python" "$(dirname "$0")/$1" "$dir" "$2" || exit $?
K2_VECTORS=$dir "$3"
