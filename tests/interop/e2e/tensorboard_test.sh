#!/usr/bin/env bash
# TensorBoard's own reader finds in a run's event files what stands in its metrics.jsonl.
. "$(dirname "$0")/interop_lib.sh"
python_with tensorboard
small_config
run one --set run.eval_every=2
"$python" "$HERE/read_run.py" "$SCRATCH/one" || fail "read_run.py"
