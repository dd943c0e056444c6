#!/usr/bin/env bash
# kill -9 of any process in the middle of an iteration changes nothing in the end, and leaves no process behind.
. "$(dirname "$0")/lib.sh"
small_config
# What an iteration begins depends on the rewards of those before it, and on its own.
sed -i 's|"task_prompts": 64|&, "sampling": "priority"|; s|"groups": 10|&, "refill_max": 5|' "$SCRATCH/small.json"

run calm
want=$(json "$result" weights_digest)

iteration_runs() { grep -q "\"iteration\": *$1" "$SCRATCH/$2/metrics.jsonl"; } # its end is the beginning of the next

for role in rollout trainer proxy; do
  start "kill_$role" --set rollout.workers=2
  await "iteration 2 of kill_$role" "iteration_runs 2 kill_$role"
  read -r victim < <(workers "$role" "$master") || victim=
  [ -n "$victim" ] || fail "no $role process found"
  kill -9 "$victim"
  wait "$wrapper_of" || fail "the run whose $role was killed ended with status $?"
  grep -q "$role-[01] was ended by SIGKILL" "$SCRATCH/kill_$role/logs/master-0.log" || fail "the run was over before its $role was killed"
  same "$(json "$(tail -n 1 "$SCRATCH/kill_$role.out")" weights_digest)" "$want" "weights_digest after kill -9 of $role"
  echo "kill -9 of $role: same weights"
done

# A reward that has started something which does not look whether anyone is still there.
cat >"$SCRATCH/deep.sh" <<'EOF'
sleep 1000 &
echo $! >"${0%.sh}.pid"
wait
EOF
start deep --set "reward.command=[\"bash\", \"$SCRATCH/deep.sh\"]" --set reward.timeout_ms=60000
await "a reward's own child" "test -s $SCRATCH/deep.pid"
deep=$(cat "$SCRATCH/deep.pid")
kill -0 "$deep" || fail "the reward's own child is not there"
kill -9 "$master"
wait "$wrapper_of" 2>/dev/null || true
await "the end of the reward's own child" "! kill -0 $deep || grep -q 'State:.Z' /proc/$deep/status"
echo "kill -9 of the master: nothing that a reward had started is left"

start kill_master
await "iteration 3 of kill_master" "iteration_runs 3 kill_master"
left=$(for role in rollout trainer proxy; do workers "$role" "$master"; done)
[ -n "$left" ] || fail "the master had no workers"
kill -9 "$master"
wait "$wrapper_of" 2>/dev/null || true
for pid in $left; do await "the end of worker $pid" "! kill -0 $pid"; done
metrics=$SCRATCH/kill_master/metrics.jsonl
printf '{"iteration": 4, "half' >>"$metrics" # what a process may leave that dies while it writes
run kill_master
[ "$(grep -cv '^{.*}$' "$metrics")" = 0 ] || fail "metrics.jsonl has half a line: $(grep -v '^{.*}$' "$metrics")"
same "$(json "$result" weights_digest)" "$want" "weights_digest after kill -9 of the master and a second start"
echo "kill -9 of the master: no process behind, same weights after the same command"
