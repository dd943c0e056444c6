#!/usr/bin/env bash
# A crash writes its own stack and ends as crashes do; every end is reported, with what came first; a passed deadline leaves the stacks
# of all processes in a file, with the one that hung still in them.
. "$(dirname "$0")/lib.sh"
small_config
sed -i 's|"checkpoint_every": 2|"checkpoint_every": 100|' "$SCRATCH/small.json"

in_force() { grep -q "weights in force version=$1 " "$SCRATCH/$2/logs/master-0.log"; }
log_of() { cat "$SCRATCH/$1/logs/master-0.log"; }
has() { grep -q -- "$2" <<<"$1"; }
same_weights() { same "$(json "$(tail -n 1 "$SCRATCH/$1.out")" weights_digest)" "$want" "weights_digest of $1"; }
stacks_file() { # NAME: the file that the log names, once it does
  await "the stacks of $1" "log_of $1 | grep -q 'stacks of all processes are in'"
  file=$SCRATCH/$1/$(log_of "$1" | sed -n 's|.*are in \(logs/stacks-[^ ]*\.txt\) .*|\1|p' | head -n 1)
  [ -s "$file" ] || fail "the log names $file, which is not there"
}

"$K2RL" proxy --listen 127.0.0.1:0 --engine http://127.0.0.1:9 >"$SCRATCH/proxy.out" 2>"$SCRATCH/proxy.err" &
alone=$!
masters+=("$alone")
await "the proxy" "grep -q 127.0.0.1 $SCRATCH/proxy.out $SCRATCH/proxy.err"
kill -ABRT "$alone"
rc=0
wait "$alone" 2>/dev/null || rc=$?
same "$rc" 134 "status after SIGABRT"
grep -q 'k2rl: crash: SIGABRT' "$SCRATCH/proxy.err" || skip "builds with sanitizers report crashes themselves"
grep -q 'k2rl: crash: .* k2_proxy_main (.*\.c:[0-9]*)' "$SCRATCH/proxy.err" || grep -q 'stack could not be taken from outside' "$SCRATCH/proxy.err" ||
  fail "no stack: $(cat "$SCRATCH/proxy.err")"
grep -q 'stack could not be taken from outside' "$SCRATCH/proxy.err" && skip "the kernel does not let us trace here"

run calm
want=$(json "$result" weights_digest)

# A trainer crashes: its log, the report, the others' stacks, the file; the run goes on.
start crash
await "the first weights" "in_force 0 crash"
read -r victim < <(workers trainer "$master") || fail "no trainer process found"
for n in 10 11 12 13 14 15 16 17 18 19 20; do # of runs before: too many
  : >"$SCRATCH/crash/logs/stacks-2020010${n:0:1}T0000${n}.000Z.txt" >"$SCRATCH/crash/logs/stacks-2021010${n:0:1}T0000${n}.000Z.txt"
done
kill -SEGV "$victim"
wait "$wrapper_of" || fail "the run whose trainer crashed ended with status $?"
grep -q "k2rl: crash: SIGSEGV sent by pid $$, pid $victim" "$SCRATCH/crash/logs/trainer-0.log" || fail "no report in the trainer's log"
grep -q "k2rl: crash:   k2_trainer_main (.*\.c:[0-9]*)" "$SCRATCH/crash/logs/trainer-0.log" || fail "no frame of ours in the trainer's log"
log=$(log_of crash)
has "$log" "exit: trainer-0 (incarnation [0-9]*, pid $victim) was ended by SIGSEGV after [0-9.]* s: SIGSEGV sent by pid $$ in .*k2_trainer_main" ||
  fail "no report of the exit: $log"
has "$log" "trainer-0 wrote: k2rl: crash:   k2_trainer_main" || fail "the report has no stack: $log"
grep -q '"signal_name": "SIGSEGV".*"worker": "trainer-0"' "$SCRATCH/crash/logs/exits.jsonl" || fail "no line in exits.jsonl"
stacks_file crash
same "$(ls "$SCRATCH"/crash/logs/stacks-*.txt | wc -l)" 16 "files of stacks that are kept"
grep -q '^  rollout-0 .*threads, held' "$file" || fail "no rollout-0 in $(cat "$file")"
same_weights crash

# A stopped engine loses its lease: it is in the file as it hung, since it was not killed before.
start hang --set master.lease_ms=1500
await "the first weights" "in_force 0 hang"
read -r victim < <(workers rollout "$master") || fail "no rollout process found"
kill -STOP "$victim"
stacks_file hang
grep -q "^  rollout-0 .*pid $victim .*stopped by a signal" "$file" || fail "the stopped one is not in $(cat "$file")"
grep -q "k2_rollout_main" "$file" || fail "no frame of the stopped one in $(cat "$file")"
wait "$wrapper_of" || fail "the run whose rollout worker hung ended with status $?"
has "$(log_of hang)" "exit: rollout-0 .* was ended by the master: it said nothing for 1500 ms (its lease) after" || fail "no report: $(log_of hang)"
same_weights hang

# Two go down for good: the end names the first, and so does `why`.
start both --set master.restarts_max=0 --set trainer.ranks=2
await "the first weights" "in_force 0 both"
read -r victim < <(workers proxy "$master") || fail "no proxy process found"
kill -SEGV "$victim"
rc=0
wait "$wrapper_of" || rc=$?
same "$rc" 2 "status of a run without restarts left"
grep -q 'proxy-0 died 1 times.*was ended by SIGSEGV' "$SCRATCH/both.err" || fail "$(cat "$SCRATCH/both.err")"
out=$("$K2RL" why "$SCRATCH/both")
has "$out" "last exit: .*Z proxy-0 .*pid $victim) was ended by SIGSEGV" || fail "why does not name the exit: $out"
has "$("$K2RL" why "$SCRATCH/both" --json)" '"exits": \[{.*"worker": "proxy-0".*\], "master_crash": ""}' || fail "why --json: $("$K2RL" why "$SCRATCH/both" --json)"

# The master itself.
start master
await "the first weights" "in_force 0 master"
kill -FPE "$master"
wait "$wrapper_of" 2>/dev/null && fail "a crashed master ended with status 0"
grep -q 'k2rl: crash:   k2_master_main (.*\.c:[0-9]*)' "$SCRATCH/master.err" || fail "no stack on the master's stderr"
log_of master | grep -q 'k2rl: crash:   k2_master_main' || fail "no stack in the master's log"
has "$("$K2RL" why "$SCRATCH/master")" 'the master crashed: SIGFPE sent by pid .* in ' || fail "$("$K2RL" why "$SCRATCH/master")"
run master
same_weights master
