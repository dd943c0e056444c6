#!/usr/bin/env bash
# `k2rl stacks`: a stopped worker comes first, with its frames, and stays stopped; the run goes on as if nobody had looked.
. "$(dirname "$0")/lib.sh"
small_config

# A lease so long that nobody is replaced; a reward command that is a Python by its name, and a py-spy that answers for it.
sed -i 's|"checkpoint_every": 2|"checkpoint_every": 100|; s|"eval": {|"master": {"lease_ms": 60000}, "eval": {|; s|"command": \["bash"|"command": ["'"$SCRATCH"'/python3"|' "$SCRATCH/small.json"
cp "$(command -v bash)" "$SCRATCH/python3"
mkdir "$SCRATCH/bin"
cat >"$SCRATCH/bin/py-spy" <<'EOS'
#!/bin/sh
echo "py-spy was asked: $*"
EOS
chmod +x "$SCRATCH/bin/py-spy"
PATH=$SCRATCH/bin:$PATH

in_force() { grep -q "weights in force version=$1 " "$SCRATCH/$2/logs/master-0.log"; }
state() { sed 's/.*) \(.\) .*/\1/' "/proc/$1/stat"; }
is_stopped() { [ "$(state "$1")" = T ]; }

run calm
want=$(json "$result" weights_digest)

start looked_at
await "the first weights" "in_force 0 looked_at"
out=$("$K2RL" stacks "$SCRATCH/looked_at") || fail "stacks ended with status $?"
grep -q 'may not be traced' <<<"$out" && { grep 'may not be traced' <<<"$out" | head -n 1; skip "the kernel does not let us trace here"; }
for role in master trainer rollout proxy; do
  grep -q "^  $role-0 .* threads, held " <<<"$out" || fail "$role-0 is not in: $out"
  grep -q "^ *k2_${role}_main (.*\.c:[0-9]*)" <<<"$out" || fail "k2_${role}_main is in no stack: $out"
done
await "the version after" "in_force 1 looked_at"

read -r victim < <(workers trainer "$master") || fail "no trainer process found"
kill -STOP "$victim"
await "the stop" "is_stopped $victim"
out=$("$K2RL" stacks "$SCRATCH/looked_at")
await "the trainer to be stopped as before" "is_stopped $victim"
grep -q "^  trainer-0 .*pid $victim .*stopped by a signal" <<<"$out" || fail "trainer-0 is not shown as stopped: $out"
first=$(sed -n '/^1\. /,/^$/p' <<<"$out")
grep -q '^1\. trainer-0 ' <<<"$first" && grep -q 'k2_loop_run\|k2_' <<<"$first" || fail "the stopped one is not the first: $out"
grep -q "py-spy was asked: dump --pid [0-9]" <<<"$out" || fail "py-spy was not asked: $out"

kill -STOP "$master" # nobody is asked: a stopped master is found, too
await "the master's stop" "is_stopped $master"
out=$("$K2RL" stacks "$SCRATCH/looked_at")
grep -q '^[12]\. master-0 ' <<<"$out" && grep -q '^[12]\. trainer-0 ' <<<"$out" || fail "master and trainer do not come first: $out"
await "the master to be stopped as before" "is_stopped $master"
kill -CONT "$master"

line=$("$K2RL" stacks "$SCRATCH/looked_at" --json --all)
[ "$(wc -l <<<"$line")" = 1 ] || fail "--json prints more than a line"
same "$(json "$line" left_out)" 0 "threads left out with --all"
grep -q '"function": "k2_trainer_main"' <<<"$line" || fail "no k2_trainer_main in $line"
kill -CONT "$victim"
wait "$wrapper_of" || fail "the run that was looked at ended with status $?"
same "$(json "$(tail -n 1 "$SCRATCH/looked_at.out")" weights_digest)" "$want" "weights_digest after looks"

for bad in "$SCRATCH" "$SCRATCH/looked_at"; do # no run; a run that has ended
  rc=0
  "$K2RL" stacks "$bad" 2>"$SCRATCH/none.err" >"$SCRATCH/none.out" || rc=$?
  same "$rc" 2 "status for $bad"
  same "$(wc -l <"$SCRATCH/none.err")" 1 "lines on stderr"
done
