#!/usr/bin/env bash
# A worker is stopped for longer than its lease, where its master cannot kill it, and is replaced; continued, it finds so, says so, ends by
# itself, and has changed nothing: what it still had to say is refused and logged with both incarnations, and the weights are those of a
# calm run. For each role, while it is at work.
. "$(dirname "$0")/../e2e/lib.sh"
small_config
detach=$(dirname "$K2RL")/k2_detach.so
[ -e "$detach" ] || skip "no $detach"
LD_PRELOAD=$detach K2_DETACH=none true 2>"$SCRATCH/preload.txt" && [ ! -s "$SCRATCH/preload.txt" ] || skip "nothing can be preloaded here"
sed -i 's|"data":|"master": {"lease_ms": 1000},\n "data":|; s|"reward": {|&"timeout_ms": 60000, |' "$SCRATCH/small.json"
# The last evaluation waits while there is a file, opening a FIFO until somebody opens its other end: the run is not over before the stopped
# one has come back.
sed -i "s|^  read -rt 0.01|  [[ \$id != *92233720368547* \|\| ! -e $SCRATCH/hold ]] \|\| : <$SCRATCH/gate\n&|" "$SCRATCH/reward.sh"
mkfifo "$SCRATCH/gate"

run calm
want=$(json "$result" weights_digest)

says() { grep -qE -- "$2" "$SCRATCH/$1/logs/${3:-master-0}.log"; }
phases() { grep -c " phase $2\$" "$SCRATCH/$1/logs/master-0.log"; }
up() { sed -n "s/.* $2 is up pid=\([0-9]*\) incarnation=\([0-9]*\).*/\1 \2/p" "$SCRATCH/$1/logs/master-0.log" | tail -n 1; }
ended() { ! kill -0 "$1" 2>/dev/null || grep -q '^State:.Z' "/proc/$1/status"; }

for case in trainer:train:2 rollout:generate:1 proxy:generate:1 trainer:generate:1 rollout:distribute:1; do
  IFS=: read -r role phase ranks <<<"$case"
  name=fenced_${role}_$phase
  LD_PRELOAD=$detach K2_DETACH=$role start "$name" --set log.level=debug --set rollout.workers=2 --set "trainer.ranks=$ranks"
  await "phase $phase of $name" "[ \$(phases $name $phase) -ge 2 ]"
  read -r pid old < <(up "$name" "$role-0")
  masters+=("$pid") # nobody else ends it if a check fails
  touch "$SCRATCH/hold"
  at=$(phases "$name" generate)
  kill -STOP "$pid" || fail "$role-0 of $name is not there"
  await "$role-0 to be given up" "says $name '$role-0 said nothing for 1000 ms .its lease.; incarnation $old ended'"
  await "the next $role-0" "[ \"\$(up $name $role-0)\" != '$pid $old' ]"
  read -r _ new < <(up "$name" "$role-0")
  await "$name to go on without the stopped $role-0" "[ \$(phases $name generate) -gt $at ]"
  [ "$new" -gt "$old" ] || fail "incarnation $new of $role-0 came after $old"
  ended "$pid" && fail "the stopped $role-0 was killed after all"
  kill -CONT "$pid"
  await "the end of the old $role-0" "ended $pid"
  rm "$SCRATCH/hold"
  exec {gate}<>"$SCRATCH/gate"
  wait "$wrapper_of" || fail "the run whose $role was replaced ended with status $?"
  says "$name" "fenced: a (POLL|DONE) was refused: incarnation $old of $role-0 is over, [0-9]+ has its place" ||
    fail "the master's log does not say that incarnation $old of $role-0 was refused"
  says "$name" "master is lost: incarnation $old of $role-0 is over, [0-9]+ has its place" "$role-0" ||
    fail "the log of $role-0 does not say that it was fenced"
  same "$(json "$(tail -n 1 "$SCRATCH/$name.out")" weights_digest)" "$want" "weights_digest after $role-0 was fenced"
  exec {gate}>&-
  echo "$role in $phase: replaced, fenced when it came back, same weights"
done
