#!/usr/bin/env bash
# `k2rl why` names a stopped process in under 5 seconds, whatever its role and the phase; and says where a dead run stood.
. "$(dirname "$0")/lib.sh"
small_config

# A lease so long that nobody is replaced here, an evaluation that lasts, and no checkpoint in between.
sed -i 's|"checkpoint_every": 2|"checkpoint_every": 100|; s|"task_heldout": 8|"task_heldout": 64|; s|"eval": {"prompts": 8|"master": {"lease_ms": 60000}, "eval": {"prompts": 64|' "$SCRATCH/small.json"

now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }
in_force() { grep -q "weights in force version=$1 " "$SCRATCH/$2/logs/master-0.log"; }
iteration_runs() { grep -q "\"iteration\": *$1" "$SCRATCH/$2/metrics.jsonl"; }
phase_is() { chain=$("$K2RL" why "$SCRATCH/$2") && [[ $chain == *", phase $1"* ]]; }
named() { # NAME-OF-RUN PID: a line says that it is silent; $chain is what was printed
  chain=$("$K2RL" why "$SCRATCH/$1") && grep "(pid $2)" <<<"$chain" | grep -q 'silent for'
}
culprit() { named "$1" "$2" && grep '<== culprit' <<<"$chain" | grep -q "(pid $2)"; }

# must_name CHECK WHAT RUN PID: the process is stopped now, or was before; polls until it is named.
must_name() {
  local from took
  from=$(now_ms)
  kill -STOP "$4"
  await "$2 to be named" "$1 $3 $4"
  took=$(($(now_ms) - from))
  echo "$2: named after $took ms in $(sed -n '1s/.*phase/phase/p' <<<"$chain")"
  [ "$took" -lt 5000 ] || fail "$2 was named after $took ms, 5000 are allowed: $chain"
}

run calm
want=$(json "$result" weights_digest)

for role in trainer rollout proxy; do
  name=stop_$role
  start "$name"
  await "the first weights of $name" "in_force 0 $name" # evaluation follows
  read -r victim < <(workers "$role" "$master") || fail "no $role process found"
  read -r trainer < <(workers trainer "$master") || fail "no trainer process found"
  must_name culprit "$role in evaluation" "$name" "$victim"
  kill -CONT "$victim"
  await "version 1 of $name" "in_force 1 $name" # generation follows
  must_name culprit "$role in generation" "$name" "$victim"
  kill -CONT "$victim"
  # A stopped trainer holds the run in its training step; continued, it makes weights that somebody else, stopped, does not take.
  await "version 2 of $name" "in_force 2 $name"
  kill -STOP "$trainer"
  await "the training step" "phase_is train $name"
  must_name named "$role in training" "$name" "$victim"
  other=$victim
  [ "$role" != trainer ] || read -r other < <(workers rollout "$master")
  kill -STOP "$other"
  kill -CONT "$trainer"
  await "the weight update" "phase_is distribute $name"
  must_name named "$role in the weight update" "$name" "$victim"
  kill -CONT "$victim" "$other"
  wait "$wrapper_of" || fail "the run whose $role was stopped ended with status $?"
  same "$(json "$(tail -n 1 "$SCRATCH/$name.out")" weights_digest)" "$want" "weights_digest after SIGSTOP of $role"
done

# The master itself; then a dead run.
start stop_master
await "iteration 2 of stop_master" "iteration_runs 2 stop_master"
must_name culprit master stop_master "$master"
kill -9 "$master"
wait "$wrapper_of" 2>/dev/null || true
out=$("$K2RL" why "$SCRATCH/stop_master") || fail "why on a dead run ended with status $?"
grep -q "no master runs in" <<<"$out" && grep -q "[2-5] of 5 iterations have ended" <<<"$out" || fail "a dead run: $out"
out=$("$K2RL" why "$SCRATCH/stop_master" --json)
same "$(json "$out" alive)" false "alive of a dead run"
run stop_master
same "$(json "$result" weights_digest)" "$want" "weights_digest after a look at the dead run"

rc=0
"$K2RL" why "$SCRATCH" 2>"$SCRATCH/none.err" || rc=$?
same "$rc" 2 "status in no run's directory"
same "$(wc -l <"$SCRATCH/none.err")" 1 "lines on stderr"
