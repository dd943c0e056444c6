#!/usr/bin/env bash
# The final weights do not depend on how many workers there are, on the transport, or on page, batch and chunk sizes.
. "$(dirname "$0")/lib.sh"
small_config

run one
want=$(json "$result" weights_digest)
[ ${#want} = 32 ] || fail "no weights_digest in: $result"
[ "$(json "$result" cut)" -gt 0 ] || fail "nothing was cut: $result"
[ "$(json "$result" resumed)" -gt 0 ] || fail "nothing was resumed: $result"
same "$(json "$result" iterations)" 5 iterations

for set in "rollout.workers=3" "trainer.ranks=2" "xfer.transport=tcp" \
  "rollout.page_tokens=3 rollout.batch_max=5 rollout.prefill_chunk=4" "rollout.cache_tokens=96"; do
  args=()
  for s in $set; do args+=(--set "$s"); done
  run "v${set//[^a-z0-9]/_}" "${args[@]}"
  same "$(json "$result" weights_digest)" "$want" "weights_digest with $set"
done

# What is held besides the model: the frozen one that REINFORCE++ is held to.
away=(--set "trainer.kl.reference=$SCRATCH/one/checkpoints/$(cat "$SCRATCH/one/checkpoints/latest")" --set trainer.loss=reinforce++
  --set trainer.kl.weight=0.2 --set trainer.kl.place=reward --set trainer.kl.estimator=k1)
run away "${away[@]}"
away_from=$(json "$result" weights_digest)
[ "$away_from" != "$want" ] || fail "a reference model changed nothing"
grep -q '"kl": -\{0,1\}[0-9.e-]*[1-9]' "$SCRATCH/away/metrics.jsonl" || fail "no distance to the reference model is told"
run away_ranks "${away[@]}" --set trainer.ranks=2
same "$(json "$result" weights_digest)" "$away_from" "weights_digest with a reference model and two ranks"

# Every token of every iteration, in all these arrangements: engine and trainer give it the same log-probability, to the bit.
mismatch=$(cat "$SCRATCH"/*/metrics.jsonl | grep -o '"mismatch_max": *[^,]*' | sort -u)
same "$mismatch" '"mismatch_max": 0' "mismatch between engine and trainer"

run other --set seed=8
[ "$(json "$result" weights_digest)" != "$want" ] || fail "another seed gave the same weights"
echo "weights_digest $want with every arrangement"
