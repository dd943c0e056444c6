#!/usr/bin/env bash
# The kernel kills for lack of memory in the run's cgroup: the report of the worker's end says so.
. "$(dirname "$0")/lib.sh"
small_config

group=
leave() { [ -z "$group" ] || { for p in $(cat "$group/cgroup.procs" 2>/dev/null); do [ "$p" = $$ ] || kill -9 "$p"; done; echo $$ >"${group%/*}/cgroup.procs"; rmdir "$group"; } 2>/dev/null; }
trap 'rc=$?; cleanup; leave || true; exit $rc' EXIT

own() { sed -n "s/^[0-9]*:$1:\(.*\)/\1/p" /proc/self/cgroup | head -n 1; }
if v1=$(own memory) && [ -n "$v1" ]; then
  base=/sys/fs/cgroup/memory${v1%/} limit=memory.limit_in_bytes
else
  v2=$(own '') base=/sys/fs/cgroup${v2%/} limit=memory.max
fi
mkdir "$base/k2rl_test_$$" 2>/dev/null || skip "no cgroup can be made under $base"
group=$base/k2rl_test_$$
echo $((512 << 20)) 2>/dev/null >"$group/$limit" || skip "the cgroup has no limit of memory ($limit)"
echo $$ 2>/dev/null >"$group/cgroup.procs" || skip "we may not enter the cgroup"

# The first reward command wants more than there is; what comes after it is as always.
cat >"$SCRATCH/hungry.sh" <<EOS
[ -e "$SCRATCH/eaten" ] || { : >"$SCRATCH/eaten"; head -c 1G /dev/zero | tail -c 1G >/dev/null; }
. "$SCRATCH/reward.sh"
EOS
sed -i "s|$SCRATCH/reward.sh|$SCRATCH/hungry.sh|" "$SCRATCH/small.json"
kills() { sed -n 's/^oom_kill //p' "$group"/memory.oom_control "$group"/memory.events 2>/dev/null | head -n 1; }
start oom
await "a kill for lack of memory" '[ "$(kills)" -gt 0 ]'
read -r victim < <(workers rollout "$master") || fail "no rollout process found"
kill -9 "$victim"
wait "$wrapper_of" || fail "the run ended with status $?"
grep -q "exit: rollout-0 .*pid $victim) was ended by SIGKILL .*; its cgroup counts [0-9]* more kills\{0,1\} for lack of memory" "$SCRATCH/oom/logs/master-0.log" ||
  fail "no word of the kill: $(grep exit: "$SCRATCH/oom/logs/master-0.log")"
