#!/usr/bin/env bash
# transformers loads a run's checkpoint and says of every token what our engine said when it served it.
. "$(dirname "$0")/interop_lib.sh"
python_with torch transformers
small_config
run one --set pretrain.steps=200
serve_latest one
"$python" "$HERE/same_answers.py" "$checkpoint" "$address" || fail "same_answers.py"
