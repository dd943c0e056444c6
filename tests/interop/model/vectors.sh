#!/bin/sh
# vectors.sh TEST_PROGRAM - fresh vectors from Hugging Face, with other random weights than the committed ones, through the same
# test. Python is K2_PYTHON or python3; without it, torch or transformers: exit code 77 with the reason.
set -eu
python=${K2_PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
    echo "skipped: no $python on PATH (set K2_PYTHON)"
    exit 77
fi
dir=$(mktemp -d /tmp/k2-vectors.XXXXXX)
trap 'rm -rf "$dir"' EXIT
"$python" "$(dirname "$0")/make_vectors.py" "$dir" 500 20 || exit $?
K2_VECTORS=$dir "$1"
