#!/usr/bin/env bash
# `k2rl trace` names the rank that did not enter a collective, tells what a killed process was doing, and writes a trace that loads.
. "$(dirname "$0")/lib.sh"
small_config
python=${K2_PYTHON:-python3}

# A lease so long that a stopped process is not replaced here.
sed -i 's|"checkpoint_every": 2|"checkpoint_every": 100|; s|"eval": {|"master": {"lease_ms": 60000}, "eval": {|' "$SCRATCH/small.json"

iteration_runs() { grep -q "\"iteration\": *$1" "$SCRATCH/$2/metrics.jsonl"; }
trace() { said=$("$K2RL" trace "$SCRATCH/$1") && trace_file=$SCRATCH/$1/trace.json; }
says() { trace "$1" && grep -qE "$2" <<<"$said"; }
must_say() { says "$@" || fail "trace does not say '$2': $said"; }
loads() { # the file is a trace after the format; without a python that is taken on trust
  command -v "$python" >/dev/null || return 0
  "$python" "$SRC/tests/e2e/trace_check.py" "$trace_file" || fail "$trace_file is no trace"
}
rank() { # process id of trainer $1 of master $2
  local pid args
  for pid in $(workers trainer "$2"); do
    mapfile -d '' args 2>/dev/null <"/proc/$pid/cmdline" || continue
    [[ " ${args[*]} " != *" --index $1 "* ]] || { echo "$pid"; return 0; }
  done
}

# Three ranks, one stopped: the others enter the next collective, and it does not.
start lag --set trainer.ranks=3 --set trainer.grad_lanes=3 --set iterations=1000
await "iteration 2 of lag" "iteration_runs 2 lag"
victim=$(rank 1 "$master")
kill -STOP "$victim"
await "rank 1 to be named" "says lag 'ranks 0, 2 entered .*; rank 1 did not'"
must_say lag "^    rank 1: trainer-1, pid $victim, stopped; the last it (has done|is still in) is [0-9]+ "
must_say lag "^  trainer-0 .* in: phase .*, command .*, collective "
loads
out=$("$K2RL" trace "$SCRATCH/lag" --json-summary --last 5 -o "$SCRATCH/last.json")
trace_file=$SCRATCH/last.json
loads
grep -qE '"entered": \[0, 2\], "missing": \[1\]' <<<"$out" || fail "--json-summary: $out"
same "$(wc -l <<<"$out")" 1 "lines of --json-summary"

# Killed: a new group forms without it, and the old one still tells who was missing.
kill -9 "$victim"
await "a new trainer-1" "says lag '^  trainer-1 +pid $victim +dead ' && [ \$(grep -c '^  trainer-1' <<<\"\$said\") = 2 ]"
must_say lag "rank 1: trainer-1, pid $victim, dead"

# A rollout worker that is killed leaves what it was in; so does the master, by whose death everything else ends.
read -r victim < <(workers rollout "$master")
kill -9 "$victim"
kill -9 "$master"
wait "$wrapper_of" 2>/dev/null || true
must_say lag "^  rollout-0 +pid $victim +dead .*in: phase name=(serving|loading|pulling|switching)"
must_say lag "^  master-0 +pid $master +dead .*in: phase name=[a-z]+ iteration="
loads

# A file that is no ring is left out, a directory without rings is an error, and so is a place that cannot be written to.
echo nonsense >"$SCRATCH/lag/flight/rollout-9.0-0.ring"
trace lag 2>"$SCRATCH/odd.err" || fail "trace with a file that is no ring"
grep -q 'left out: .*rollout-9.0-0.ring' "$SCRATCH/odd.err" || fail "what is no ring is not named: $(cat "$SCRATCH/odd.err")"
rc=0
"$K2RL" trace "$SCRATCH" 2>"$SCRATCH/none.err" || rc=$?
same "$rc $(wc -l <"$SCRATCH/none.err")" "2 1" "status and lines where no run is"
rc=0
"$K2RL" trace "$SCRATCH/lag" -o "$SCRATCH/no/such/file" >"$SCRATCH/none.out" 2>&1 || rc=$?
[ "$rc" != 0 ] || fail "trace into a directory that does not exist ended well"

# Recording is no part of a run's result, and a recorder that cannot be opened is no reason not to run.
run on
want=$(json "$result" weights_digest)
run off --set run.flight_kib=0
same "$(json "$result" weights_digest)" "$want" "weights_digest without the recorder"
[ ! -e "$SCRATCH/off/flight" ] || fail "run.flight_kib=0 recorded all the same"
mkdir -p "$SCRATCH/full"
: >"$SCRATCH/full/flight"
run full
same "$(json "$result" weights_digest)" "$want" "weights_digest where the recorder cannot be opened"
grep -q "flight recorder stays off" "$SCRATCH/full/logs/master-0.log" || fail "the log does not say that nothing is recorded"
