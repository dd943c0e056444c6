#!/usr/bin/env bash
# transformers' generate on a trained quickstart: the greedy tokens of fifty held-out prompts are those of our engine.
. "$(dirname "$0")/trained.sh"
python_with torch transformers
trained_quickstart
"$python" "$HERE/greedy.py" transformers "$checkpoint" "$address" "$heldout" || fail "greedy.py"
