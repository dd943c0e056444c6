#!/usr/bin/env bash
# One process after the other is killed, or stopped so that it hangs, in one run after every iteration; the master itself twice.
# The weights come out as in a calm run.
. "$(dirname "$0")/lib.sh"
small_config
more=(--set iterations=9 --set master.lease_ms=2000 --set master.restarts_max=20)
arranged=(--set trainer.ranks=2 --set rollout.workers=3 --set xfer.transport=tcp)

run calm "${more[@]}"
want=$(json "$result" weights_digest)

lines() { grep -c '"kind": "iteration"' "$SCRATCH/chaos/metrics.jsonl"; }
ended() { ! kill -0 "$master" 2>/dev/null; }

start chaos "${more[@]}" "${arranged[@]}"
done=0
for what in rollout:KILL trainer:KILL proxy:KILL master:KILL rollout:STOP trainer:KILL rollout:KILL master:KILL proxy:STOP trainer:STOP; do
  await "an iteration after $done" "[ \$(lines) -gt $done ] || ended"
  ended && break
  done=$(lines)
  role=${what%:*}
  if [ "$role" = master ]; then
    kill -9 "$master" 2>/dev/null || true
    wait "$wrapper_of" 2>/dev/null || true
    start chaos "${more[@]}" "${arranged[@]}"
    continue
  fi
  victim=$(workers "$role" "$master")
  victim=${victim%%$'\n'*}
  [ -z "$victim" ] || kill -"${what#*:}" "$victim" 2>/dev/null || true
done
wait "$wrapper_of" || fail "the run ended with status $?"
result=$(tail -n 1 "$SCRATCH/chaos.out")
same "$(json "$result" weights_digest)" "$want" "weights_digest after $done deaths"
same "$(json "$result" iterations)" 9 iterations
[ "$done" -ge 5 ] || fail "only $done iterations were disturbed"
echo "same weights after every process has died or hung in turn"
