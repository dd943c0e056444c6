#!/usr/bin/env bash
# What does harm is put aside, counted, and the run goes on to weights that do not depend on who died of it how often: a step that
# meets infinity, a prompt that ends its engine, a reward that hangs, a reward that ends its worker. Each is repeated alone.
. "$(dirname "$0")/lib.sh"
small_config
sed -i 's/"iterations": 5/"iterations": 3/' "$SCRATCH/small.json"

# reward_of ID WHAT: $with_reward is an option with a reward command that does WHAT for one trajectory, and scores the others.
reward_of() {
  cat >"$SCRATCH/reward-$1-$3.sh" <<EOF
LC_ALL=C
while IFS= read -r line; do
  id=\${line#*\"trajectory\":} id=\${id%%,*} text=\${line#*\"text\":\"} text=\${text%%\"*}
  if [ "\$id" = $1 ]; then
    $2
  else
    printf '{"trajectory":%s,"reward":%d}\n' "\$id" \$((\${#text} % 2))
  fi
done
EOF
  with_reward="--set=reward.command=[\"bash\", \"$SCRATCH/reward-$1-$3.sh\"]"
}

# twice NAME OPTIONS: with one worker and one rank, and with several; the weights must be the same.
twice() {
  local name=$1 first
  shift
  run "$name-1" "$@"
  first=$(json "$result" weights_digest)
  run "$name-2" "$@" --set rollout.workers=3 --set trainer.ranks=2
  same "$(json "$result" weights_digest)" "$first" "weights_digest of $name with more workers"
}

counts() { # counts NAME KEY WANT: of the last run
  same "$(json "$result" "$2")" "$3" "$2 of $1"
}

# stops NAME POLICY WANT OPTIONS: the run stops and says by which policy; the same command without it goes on to the weights WANT.
stops() {
  local name=$1 policy=$2 want=$3 rc=0
  shift 3
  timeout 100 "$K2RL" master --cfg "$SCRATCH/small.json" --run-dir "$SCRATCH/$name" "$@" --set "policy.$policy=stop" \
    >"$SCRATCH/$name.out" 2>"$SCRATCH/$name.err" || rc=$?
  [ "$rc" != 0 ] && [ "$rc" != 124 ] || fail "policy.$policy=stop: status $rc"
  grep -q "policy.$policy is \"stop\"" "$SCRATCH/$name.err" || fail "what stopped it is not said: $(cat "$SCRATCH/$name.err")"
  run "$name" "$@"
  same "$(json "$result" weights_digest)" "$want" "weights_digest of $name, stopped by policy.$policy and gone on with"
}

# replay STATUS PATTERN DIR [OPTIONS]
replay() {
  local want=$1 pattern=$2 rc=0
  shift 2
  timeout 60 "$K2RL" replay-step "$@" >"$SCRATCH/replay.out" 2>"$SCRATCH/replay.err" || rc=$?
  [ "$rc" = "$want" ] || fail "replay-step $*: status $rc, expected $want: $(tail -n 4 "$SCRATCH/replay.out" "$SCRATCH/replay.err")"
  grep -qE -- "$pattern" "$SCRATCH/replay.out" "$SCRATCH/replay.err" || fail "replay-step $*: no '$pattern': $(cat "$SCRATCH/replay.out")"
}

# A reward whose gradient is finite but whose square is not: the second moments would be infinite.
reward_of 3073 'printf "{\"trajectory\":%s,\"reward\":1e30}\n" "$id"' nan
unclipped=("$with_reward" --set trainer.optimizer.clip_norm=0)
twice nan "${unclipped[@]}"
counts nan skipped_batches 1
nan=$(json "$result" weights_digest)
step=$(cd "$SCRATCH/nan-1/quarantine" && echo step-*)
[ -d "$SCRATCH/nan-2/quarantine/$step" ] || fail "the second run put nothing aside at $step"
for r in 1 2; do
  replay 0 'first that is not finite: .* after the update' "$SCRATCH/nan-$r/quarantine/$step"
  grep -q '^reproduced$' "$SCRATCH/replay.out" || fail "$step of nan-$r is not reproduced"
done
replay 0 '"reproduced": true' "$SCRATCH/nan-1/quarantine/$step" --json
stops nan-stop nan "$nan" "${unclipped[@]}"
echo "infinity: skipped, put aside, repeated; policy.nan=stop stops"

# A prompt at which every engine dies.
poison=${K2RL%/*}/libk2_poison.so
[ -e "$poison" ] || fail "$poison is not there"
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0" K2_POISON='"trajectory":3073,' LD_PRELOAD=$poison
twice prompt
counts prompt dropped_poison 1
counts prompt dropped 4
stops prompt-stop poison "$(json "$result" weights_digest)"
grep -q 'poison: trajectory 3073 ended 3 worker processes' "$SCRATCH/prompt-2/logs/master-0.log" || fail "the master names no poison"
replay 0 'ended by signal 6' "$SCRATCH/prompt-1/quarantine/prompt-3073"
unset LD_PRELOAD
replay 1 'NOT reproduced' "$SCRATCH/prompt-1/quarantine/prompt-3073"
echo "a prompt that ends its engine: found out, dropped with its group, repeated"

# A reward that never comes, of a command that has started something.
reward_of 3073 'sleep 1001' hang
twice hang "$with_reward" --set reward.timeout_ms=1000 --set reward.retries=1
counts hang dropped_reward 1
counts hang dropped 1
stops hang-stop reward "$(json "$result" weights_digest)" "$with_reward" --set reward.timeout_ms=300 --set reward.retries=1
! grep -lsx 'sleep.1001.' /proc/[0-9]*/cmdline >/dev/null || fail "what a hanging reward command had started is left"
replay 0 'no reward: .*within 1000 ms' "$SCRATCH/hang-2/quarantine/reward-3073"
echo "a reward that hangs: dropped, put aside, repeated"

# Where nothing can be put aside the run goes on all the same.
mkdir "$SCRATCH/full" && : >"$SCRATCH/full/quarantine"
run full "$with_reward" --set reward.timeout_ms=1000 --set reward.retries=0 --set rollout.workers=2
counts full dropped_reward 1
grep -q 'not put aside kind=reward trajectory=3073: .*quarantine: is not a directory' "$SCRATCH/full/logs/master-0.log" ||
  fail "it is not said that nothing was put aside"

# A reward that ends its worker, which is its parent's parent: a shell stands between the two.
reward_of 3073 'read -r _ _ _ worker _ </proc/$PPID/stat; kill -9 $worker' killer
twice killer "$with_reward"
counts killer dropped_poison 1
counts killer dropped 4
replay 0 'ended by signal 9' "$SCRATCH/killer-2/quarantine/reward-3073"
echo "a reward that ends its worker: found out, dropped with its group, repeated"

# What cannot be repeated is said in one line.
replay 2 'quarantine.json: cannot open' "$SCRATCH"
replay 2 'no batches: none was made since its last checkpoint' "$SCRATCH/hang-1" --step 2
replay 2 'expected one directory' "$SCRATCH" "$SCRATCH"
