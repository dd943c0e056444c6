#!/usr/bin/env bash
# `k2rl why` names a stopped process in under 5 seconds: every role, in every phase. (One cannot be held still, since it is one
# callback of the master: batch. tests/unit/master/waits_test.c walks it, and every other phase with every role.)
#
# One process is stopped so that a phase cannot end: `why` must call it the culprit. Then all others are stopped too: each must
# have its line. Then the master. The next phase is held by stopping the one that it will need before the last one goes on.
. "$(dirname "$0")/lib.sh"
small_config

# A lease so long that nobody is replaced here; phases in the log; a reward that waits while there is a file, in a way that needs
# no process of its own: opening a FIFO, until somebody has opened its other end.
sed -i 's|"iterations": 5|"iterations": 8, "log": {"level": "debug"}, "master": {"lease_ms": 60000}|; s|"checkpoint_every": 2|"checkpoint_every": 1|
        s|"steps": 60|"steps": 400|; s|"reward": {|"reward": {"timeout_ms": 60000, |; s|"trainer": {|"trainer": {"ranks": 2, |
        s|"rollout": {|"rollout": {"workers": 2, |' "$SCRATCH/small.json"
sed -i "s|^  id=|  [ ! -e $SCRATCH/hold ] \|\| : <$SCRATCH/gate\n  id=|" "$SCRATCH/reward.sh"
mkfifo "$SCRATCH/gate"
gate=

# Two phases are over too soon to be met: there is a library that holds them, where it may be preloaded.
export K2_HOLD=$SCRATCH/hold_in
preload=$(dirname "$K2RL")/k2_hold.so
LD_PRELOAD=$preload true 2>"$SCRATCH/preload.txt" && [ ! -s "$SCRATCH/preload.txt" ] || { preload= && echo "nothing can be preloaded here: publish and latest are left out"; }

slowest=0 asked=0
declare -A pid held

# begin NAME [options]: a run whose master is ours to stop; waits for nothing.
begin() {
  name=$1 pid=() held=()
  shift
  LD_PRELOAD=$preload "$K2RL" master --cfg "$SCRATCH/small.json" --run-dir "$SCRATCH/$name" --json "$@" >"$SCRATCH/$name.out" 2>"$SCRATCH/$name.err" &
  master=$!
  masters+=("$master")
}

# Sets pid[NAME] of every worker that the master has started by now. A child that has not become one yet is passed over.
look() {
  local kids kid args
  kids=$(<"/proc/$master/task/$master/children") || return 0
  for kid in $kids; do
    mapfile -d '' args 2>/dev/null <"/proc/$kid/cmdline" || continue
    [ "${args[2]:-}" = --master ] && pid[${args[1]}-${args[5]}]=$kid
  done
  return 0
}

hold() { local n; for n; do kill -STOP "${pid[$n]}"; held[$n]=1; done; }
free() { local n; for n; do kill -CONT "${pid[$n]}"; unset "held[$n]"; done; }

# A run that has not all its workers: $late is one that was stopped before it could say a word. Who is caught after its HELLO is
# let go; when that happens to all of them, it is tried anew.
begin_late() { # NAME
  local n try said
  for ((try = 0; try < 50; try++)); do
    begin "$1"
    while [ ${#pid[@]} -lt 5 ]; do
      look
      for n in "${!pid[@]}"; do [[ $n == trainer-* || -n ${held[$n]:-} ]] || hold "$n"; done
    done
    await "the trainers of $1" "grep -q 'trainer-0 is up' $SCRATCH/$1/logs/master-0.log && grep -q 'trainer-1 is up' $SCRATCH/$1/logs/master-0.log"
    ask
    late=$(sed -n 's/.*process was started and has not said HELLO: \([a-z]*-[01]\) .*/\1/p' <<<"$chain" | tail -n 1)
    for n in "${!held[@]}"; do [ "$n" = "$late" ] || free "$n"; done
    [ -z "$late" ] || return 0
    kill -9 "$master"
    wait "$master" 2>/dev/null || true
    rm -rf "${SCRATCH:?}/$1"
  done
  fail "no worker could be stopped before its HELLO"
}

ask() { # $chain is what `why` prints; it has 5 seconds
  local from=${EPOCHREALTIME/[.,]/} took
  chain=$(timeout 5 "$K2RL" why "$SCRATCH/$name") || fail "why gave no answer in phase $(phase)"
  took=$(((${EPOCHREALTIME/[.,]/} - from) / 1000)) asked=$((asked + 1))
  [ "$took" -le "$slowest" ] || slowest=$took
}
chain_has() { ask && [[ $chain == *"$1"* ]]; } # for await
phase() { # the last that the log tells; the first is not told
  local p
  p=$(sed -n 's/.* phase \([a-z]*\)$/\1/p' "$SCRATCH/$name/logs/master-0.log" | tail -n 1)
  echo "${p:-start}"
}
phase_is() { [ "$(phase)" = "$1" ]; }
stopped() { grep ": $1 (pid ${pid[$1]})" <<<"$chain" | grep -q 'stopped by a signal'; }

# hold_in PHASE NAME: stop it in a phase that comes again and again, and is short: when it was missed, the next one is tried.
hold_in() {
  local try
  for ((try = 0; try < 50; try++)); do
    await "phase $1" "phase_is $1"
    hold "$2"
    ask
    [[ $chain != *", phase $1"$'\n'* ]] || [[ $chain != *": $2 (pid "* ]] || return 0
    free "$2"
  done
  fail "$2 could not be stopped in phase $1"
}

# walk PHASE WHO [NEEDLE]: the run stands in PHASE because of WHO (a pattern of names).
walk() {
  local line n others=()
  await "phase $1" "phase_is $1"
  ask
  [[ $chain == *", phase $1"$'\n'* ]] || fail "why does not say phase $1: $chain"
  [[ $chain == *"${3:-}"* ]] || fail "why in phase $1 does not say '$3': $chain"
  line=$(grep '<== culprit' <<<"$chain") || fail "no culprit in phase $1: $chain"
  [[ $line =~ :\ $2\ \(pid ]] || fail "the culprit of phase $1 is not $2: $chain"
  for n in "${!pid[@]}"; do [ -n "${held[$n]:-}" ] || others+=("$n"); done
  hold "${others[@]}"
  ask
  for n in "${!pid[@]}"; do stopped "$n" || fail "$n is stopped in phase $1 and not named: $chain"; done
  kill -STOP "$master"
  ask
  grep -q "master-0 (pid $master), stopped by a signal  <== culprit" <<<"$chain" || fail "the master is stopped in phase $1: $chain"
  kill -CONT "$master"
  [ "${#others[@]}" -eq 0 ] || free "${others[@]}"
  echo "phase $1: $2 and the others are named${3:+ ($3)}"
}

hold_phase() { [ -z "$preload" ] || mkfifo "$K2_HOLD.$1"; } # from when it comes
end_phase() { # the end for writing stays open: who is only about to open the other one is let go, too
  local end
  exec {end}<>"$K2_HOLD.$1"
  rm "$K2_HOLD.$1"
}

# walk_held PHASE NAME...: they are stopped in that phase, and stay so. Then the phase may end.
walk_held() {
  local phase=$1
  shift
  [ -z "$preload" ] || await "phase $phase" "phase_is $phase"
  hold "$@"
  [ -n "$preload" ] || return 0
  walk "$phase" "($(IFS='|' && echo "$*"))"
  end_phase "$phase"
}

# The reward command that has an answer is stopped itself.
walk_reward() { # PHASE
  await "a reward command" 'chain_has "reward command has an answer"'
  walk "$1" 'reward-[01]' "reward command has an answer"
  ask
  local command
  command=$(sed -n 's/.*: reward-[01] (pid \([0-9]*\)).*/\1/p' <<<"$chain" | head -n 1)
  kill -STOP "$command"
  ask
  grep "(pid $command)" <<<"$chain" | grep -q 'stopped by a signal' || fail "a stopped reward command is not named: $chain"
  kill -CONT "$command"
}

engines_ready() { # as the proxy says
  local url
  url=$(sed -n 's|.*listening url=http://127.0.0.1:||p' "$SCRATCH/$name/logs/proxy-0.log" | tail -n 1)
  exec 8<>"/dev/tcp/127.0.0.1/$url"
  printf 'GET /k2/requests HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n' >&8
  grep -q '"ready":2' <&8
}

hold_rewards() {
  [ -z "$gate" ] || exec {gate}>&-
  touch "$SCRATCH/hold"
}
let_rewards_go() { # the other end stays open for those that have seen the file and come to the gate only now
  rm "$SCRATCH/hold"
  exec {gate}<>"$SCRATCH/gate"
}

run calm
want=$(json "$result" weights_digest)

begin_late walk
await "all others" 'chain_has "4 of 5 workers are ready"'
walk start "$late" "process was started and has not said HELLO"
hold trainer-1
free "$late"
walk join trainer-1 "process owes the end of JOIN"
await "trainer-0's end of JOIN" 'chain_has "1 of 2 trainers"'
hold trainer-0
free trainer-1
walk init trainer-0 "process owes the end of INIT"
free trainer-0
hold_in pretrain trainer-1
walk pretrain trainer-1 "process owes the end of PRETRAIN"
hold rollout-1
free trainer-1 # over save, latest and publish
walk distribute rollout-1 "version 0 to every engine"
hold proxy-0
free rollout-1
await "weights in both engines" 'ask; [[ $chain != *rollout-* ]]'
walk distribute proxy-0
hold_rewards
hold rollout-0 rollout-1
free proxy-0
await "the proxy to give both engines up" 'chain_has "request waits in the proxy for an engine"' # it soon has when it was stopped too
walk eval 'rollout-[01]' "request waits in the proxy for an engine"
free rollout-0 rollout-1
walk_reward eval
let_rewards_go
await "generation" "phase_is generate"
hold_rewards # in the middle of this iteration or of the next
walk_reward generate
hold trainer-1
let_rewards_go # over batch
walk train trainer-1 "process owes the end of TRAIN"
hold rollout-1
hold_phase publish
free trainer-1
walk_held publish trainer-0
free trainer-0
await "the weight update" "phase_is distribute"
hold trainer-1
free rollout-1
walk save trainer-1 "process owes the end of SAVE"
await "two healthy engines" engines_ready
hold_phase latest
free trainer-1
walk_held latest rollout-0 rollout-1
await "requests at the engines" 'chain_has "request at engine"'
walk generate 'rollout-[01]' "request at engine rollout-"
hold_rewards
free rollout-0 rollout-1
await "a reward command" 'chain_has "reward command has an answer"'
kill -TERM "$master" # drain: the iteration's end, then stop
hold trainer-1
let_rewards_go
await "the training step" "phase_is train"
hold rollout-1
free trainer-1
await "the weight update" "phase_is distribute"
hold trainer-1
free rollout-1
await "the checkpoint" "phase_is save"
hold rollout-0 rollout-1 proxy-0
free trainer-1
await "the trainers' end" "! kill -0 ${pid[trainer-0]} && ! kill -0 ${pid[trainer-1]}"
unset "pid[trainer-0]" "pid[trainer-1]"
walk stop '(rollout-[01]|proxy-0)' "process owes the end of STOP"
free rollout-0 rollout-1 proxy-0
wait "$master" || fail "the run ended with status $?"

# Where a dead run stood; and it goes on as if nothing had been.
ask
[[ $chain == *"no master runs in"*" of 8 iterations have ended"*"it stood at: between two iterations"*"last checkpoint: step_"* ]] ||
  fail "a dead run: $chain"
same "$(json "$("$K2RL" why "$SCRATCH/$name" --json)" alive)" false "alive of a dead run"
run walk
same "$(json "$result" weights_digest)" "$want" "weights_digest after all that"

# Stop again, with the trainers.
begin_late early
await "all others" 'chain_has "4 of 5 workers are ready"'
for n in "${!pid[@]}"; do [ "$n" = "$late" ] || hold "$n"; done
kill -TERM "$master"
walk stop '[a-z]*-[01]' "process owes the end of STOP"
free "${!pid[@]}"
wait "$master" || fail "the run that was stopped early ended with status $?"

# Pretraining alone.
begin pretrain --pretrain --set pretrain.steps=2000
for n in 0 1; do
  await "the trainers" 'look; [ ${#pid[@]} -eq 2 ] && phase_is pretrain'
  hold_in pretrain "trainer-$n"
  walk pretrain "trainer-$n" "process owes the end of PRETRAIN"
  free "trainer-$n"
done
kill -9 "$master"
wait "$master" 2>/dev/null || true
ask
[[ $chain == *"it stood at: pretraining"* || $chain == *"last checkpoint"* ]] || fail "a dead pretraining: $chain"

# What is no run.
refused() { # DIR
  local rc=0
  "$K2RL" why "$1" >"$SCRATCH/none.out" 2>"$SCRATCH/none.err" || rc=$?
  same "$rc" 2 "status for $1"
  same "$(wc -l <"$SCRATCH/none.err")" 1 "lines on stderr for $1"
  same "$(wc -c <"$SCRATCH/none.out")" 0 "bytes on stdout for $1"
}
refused "$SCRATCH"
refused "$SCRATCH/nowhere"
refused "$SCRATCH/small.json"
cp -r "$SCRATCH/early" "$SCRATCH/torn"
: >"$SCRATCH/torn/config.json"
refused "$SCRATCH/torn"
cp "$SCRATCH/early/config.json" "$SCRATCH/torn/config.json"
printf 'no journal' >"$SCRATCH/torn/journal/data.mdb"
refused "$SCRATCH/torn"
echo "$asked times asked, the slowest answer after $slowest ms"
