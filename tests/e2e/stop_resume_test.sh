#!/usr/bin/env bash
# Ctrl-C drains and saves, and the same command goes on to the same weights, also where checkpoints are bf16 in shards; a
# pretraining run likewise; --dry-run starts nothing.
. "$(dirname "$0")/lib.sh"
small_config

"$K2RL" master --cfg "$SCRATCH/small.json" --run-dir "$SCRATCH/dry" --dry-run >"$SCRATCH/dry.out" || fail "--dry-run"
[ ! -e "$SCRATCH/dry" ] || fail "--dry-run made the run directory"
grep -q rollout "$SCRATCH/dry.out" || fail "--dry-run printed no plan"

run calm
want=$(json "$result" weights_digest)
bf16=(--set run.checkpoint_dtype=bf16 --set run.shard_bytes=40000)
start stopped "${bf16[@]}"
await "iteration 2" "grep -q '\"iteration\": *2' $SCRATCH/stopped/metrics.jsonl"
kill -INT "$master"
wait "$wrapper_of" || fail "Ctrl-C ended the run with status $?"
for role in trainer rollout proxy; do [ -z "$(workers $role "$master")" ] || fail "a $role is left"; done
"$K2RL" ckpt verify "$SCRATCH/stopped/checkpoints/$(cat "$SCRATCH/stopped/checkpoints/latest")" >"$SCRATCH/ckpt.out" ||
  fail "k2rl ckpt verify of a bf16 checkpoint"
grep -qE 'tensors in [2-9] files' "$SCRATCH/ckpt.out" || fail "the checkpoint has no shards: $(cat "$SCRATCH/ckpt.out")"
run stopped --set rollout.workers=2 "${bf16[@]}"
same "$(json "$result" weights_digest)" "$want" "weights_digest after Ctrl-C and a second start"
same "$(json "$result" iterations)" 5 iterations

pre=(--pretrain --set pretrain.steps=30 --set run.checkpoint_every=1)
run pre_calm "${pre[@]}"
want=$(json "$result" weights_digest)
start pre_killed "${pre[@]}"
await "a checkpoint" "test -e $SCRATCH/pre_killed/checkpoints/latest"
kill -9 "$master" 2>/dev/null || true
wait "$wrapper_of" 2>/dev/null || true
run pre_killed "${pre[@]}"
same "$(json "$result" weights_digest)" "$want" "weights_digest of pretraining after kill -9 and a second start"
for f in manifest.json config.json metrics.jsonl logs/master-0.log logs/trainer-0.log; do
  [ -s "$SCRATCH/pre_calm/$f" ] || fail "the run left no $f"
done
ls "$SCRATCH"/pre_calm/tensorboard/events.out.tfevents.* >/dev/null || fail "the run left no TensorBoard events"
[ -z "$(find "$SCRATCH/pre_calm/logs" -name 'rollout*')" ] || fail "a rollout ran in pretraining"
echo "stopped, killed and resumed runs end with the same weights"
