#!/usr/bin/env bash
# Every configuration of configs/ parses, checks and plans; the pretraining one trains, is killed, and goes on from a bare clone.
. "$(dirname "$0")/lib.sh"
cd "$SRC" # as a reader of README.md does: the paths in configs/ are relative to the tree

count=0
for cfg in configs/*.json; do
  grep -q '"model_type"' "$cfg" && continue # the sizes of a model
  "$K2RL" master --cfg "$cfg" --run-dir "$SCRATCH/dry" --dry-run >"$SCRATCH/dry.out" 2>"$SCRATCH/dry.err" || fail "--dry-run of $cfg"
  grep -q '^nothing was started$' "$SCRATCH/dry.out" || fail "--dry-run of $cfg printed no plan"
  [ ! -s "$SCRATCH/dry.err" ] || fail "--dry-run of $cfg complains: $(cat "$SCRATCH/dry.err")"
  [ ! -e "$SCRATCH/dry" ] || fail "--dry-run of $cfg made the run directory"
  count=$((count + 1))
done
[ "$count" -ge 2 ] || fail "$count configurations in configs/, expected quickstart and pretrain-tiny at least"
for cfg in $(grep -o 'configs/[a-z0-9-]*\.json' README.md | sort -u); do [ -f "$cfg" ] || fail "README.md names $cfg, which is not there"; done

short=(--set pretrain.steps=30 --set pretrain.batch_sequences=8 --set pretrain.schedule.warmup_steps=3 --set run.checkpoint_every=1)
cp configs/pretrain-tiny.json "$SCRATCH/small.json"
run calm "${short[@]}"
same "$(json "$result" pretrain_steps)" 30 pretrain_steps
want=$(json "$result" weights_digest)
losses=$(sed -n 's/.*"kind": "pretrain".*"loss": \([0-9.]*\).*/\1/p' "$SCRATCH/calm/metrics.jsonl")
read -r first last < <(echo $losses | awk '{ print $1, $NF }')
awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a - 0.5) }' || fail "the loss went from $first to $last"
[ -z "$(find "$SCRATCH/calm/data" -name '*.jsonl')" ] || fail "prompts were made for pretraining"

start killed "${short[@]}"
await "a checkpoint" "test -e $SCRATCH/killed/checkpoints/latest"
kill -9 "$master" 2>/dev/null || true
wait "$wrapper_of" 2>/dev/null || true
run killed "${short[@]}"
same "$(json "$result" weights_digest)" "$want" "weights_digest after kill -9 and a second start"
echo "$count configurations planned; pretraining on the licences went from $first to $last"
