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

# Every token of every iteration, in all these arrangements: engine and trainer give it the same log-probability, to the bit.
mismatch=$(cat "$SCRATCH"/*/metrics.jsonl | grep -o '"mismatch_max": *[^,]*' | sort -u)
same "$mismatch" '"mismatch_max": 0' "mismatch between engine and trainer"

run other --set seed=8
[ "$(json "$result" weights_digest)" != "$want" ] || fail "another seed gave the same weights"
echo "weights_digest $want with every arrangement"
