#!/usr/bin/env bash
# model.compute=bf16: other weights than f32's, but the same ones however many ranks and workers there are, also after a kill; engine and
# trainer agree to the bit. A run does not go on in another type.
. "$(dirname "$0")/lib.sh"
small_config
bf16=(--set model.compute=bf16)

"$K2RL" master --cfg "$SCRATCH/small.json" --run-dir "$SCRATCH/dry" "${bf16[@]}" --dry-run >"$SCRATCH/dry.out" || fail "--dry-run"
grep -q 'products in bf16' "$SCRATCH/dry.out" || fail "--dry-run does not say what products are in"

run f32
other=$(json "$result" weights_digest)
run one "${bf16[@]}"
want=$(json "$result" weights_digest)
[ "$want" != "$other" ] || fail "bf16 gives the weights of f32"
start two "${bf16[@]}" --set trainer.ranks=2 --set rollout.workers=2
await "iteration 3" "grep -q '\"iteration\": *3' $SCRATCH/two/metrics.jsonl"
kill -9 "$master" 2>/dev/null || true
wait "$wrapper_of" 2>/dev/null || true
run two "${bf16[@]}" --set trainer.ranks=2 --set rollout.workers=2
same "$(json "$result" weights_digest)" "$want" "weights_digest with two ranks, killed and resumed"

mismatch=$(cat "$SCRATCH"/{one,two}/metrics.jsonl | grep -o '"mismatch_max": *[^,]*' | sort -u)
same "$mismatch" '"mismatch_max": 0' "mismatch between engine and trainer"

rc=0
"$K2RL" master --cfg "$SCRATCH/small.json" --run-dir "$SCRATCH/one" --set iterations=6 >"$SCRATCH/changed.out" 2>&1 || rc=$?
same "$rc" 2 "status of a run that goes on in f32"
echo "weights_digest $want in bf16"
