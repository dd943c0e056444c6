# Sourced by the scripts of this folder: a trained quickstart, served, and its held-out prompts.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/interop_lib.sh"
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# trained_quickstart: $checkpoint and $heldout of the run that K2_ENGINE_RUN names, or of a quickstart that is cut short; $address
# answers for it.
trained_quickstart() {
  local run=${K2_ENGINE_RUN:-$SCRATCH/run}
  if [ -z "${K2_ENGINE_RUN:-}" ]; then
    (cd "$SRC" && timeout 200 "$K2RL" master --cfg configs/quickstart.json --run-dir "$run" --set pretrain.steps=80 --set iterations=2 \
      --set run.eval_every=0 --set rollout.groups=8 --set data.task_corpus=5000 --set data.task_prompts=64 --set data.task_heldout=50 \
      >"$SCRATCH/run.out" 2>"$SCRATCH/run.err") || fail "the run ended with status $?"
  fi
  checkpoint=$run/checkpoints/$(cat "$run/checkpoints/latest")
  heldout=$run/data/heldout.jsonl
  start_server engine "$K2RL" rollout --model "$checkpoint" --listen 127.0.0.1:0
}
