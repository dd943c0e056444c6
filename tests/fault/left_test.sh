#!/usr/bin/env bash
# Nothing is left behind, however a run ends: no process, no socket, no shared memory, no half-written file. Looked at in namespaces of its
# own, where everything that is there is the run's.
if [ "${1:-}" != inside ]; then
  unshare -rmpf --kill-child --mount-proc true 2>/dev/null || { echo "SKIPPED: no user, mount and process namespaces here (unshare -rmpf)"; exit 77; }
  case $K2RL in /tmp/*) echo "SKIPPED: $K2RL is in /tmp, which is replaced here"; exit 77 ;; esac
  exec unshare -rmpf --kill-child --mount-proc bash "$0" inside
fi
mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm || { echo "SKIPPED: no tmpfs can be mounted here"; exit 77; }
unset XDG_RUNTIME_DIR # long socket paths are then made in /tmp
. "$(dirname "$0")/../e2e/lib.sh"
small_config
sed -i 's|"data":|"master": {"lease_ms": 1000},\n "data":|' "$SCRATCH/small.json"
detach=$(dirname "$K2RL")/k2_detach.so

processes() { # all but this script
  local dir args
  left=
  for dir in /proc/[0-9]*; do
    [ "${dir#/proc/}" != $$ ] && ! grep -q '^State:.Z' "$dir/status" 2>/dev/null || continue
    mapfile -d '' args 2>/dev/null <"$dir/cmdline" || continue
    [ -z "${args[*]}" ] || left+="${dir#/proc/}: ${args[*]}; "
  done
}
gone() { processes; [ -z "$left" ]; }

things() { # besides the runs' own files: shared memory, sockets, what stands in /tmp, temporary files
  find /dev/shm -mindepth 1
  find /tmp "$SCRATCH" -type s -o -name '*.tmp'
  find /tmp -mindepth 1 -path "$SCRATCH" -prune -o ! -type d -print
}

clean() { # WHAT [pattern of things that may be there]
  local n
  for ((n = 0; n < 200; n++)); do gone && break; read -rt 0.05 <> <(:) || true; done
  gone || fail "$1: processes are left: $left"
  things | grep -vE "${2:-^$}" >"$SCRATCH/things" || true
  [ ! -s "$SCRATCH/things" ] || fail "$1: left behind: $(tr '\n' ' ' <"$SCRATCH/things")"
  echo "$1: nothing left behind"
}

iteration_runs() { grep -q "\"iteration\": *$1" "$SCRATCH/$2/metrics.jsonl"; }

begin() { # NAME [options]: a run in its second iteration
  start "$@"
  await "iteration 1 of $1" "iteration_runs 1 $1"
}

run whole --set trainer.ranks=2
clean "a run to its end"

long=$(printf 'long_%.0s' {1..25})
run "$long"
clean "a run whose socket is in a directory of its own"

begin tcp --set xfer.transport=tcp --set trainer.ranks=2 --set master.listen=tcp://127.0.0.1:0
kill -INT "$master"
wait "$wrapper_of" || fail "a drained run ended with status $?"
clean "Ctrl-C"

begin twice
kill -INT "$master"
kill -INT "$master"
wait "$wrapper_of" || true
clean "Ctrl-C twice"

begin term
kill -TERM "$master"
wait "$wrapper_of" || fail "a run that was told to end ended with status $?"
clean "SIGTERM"

for role in trainer rollout proxy; do
  begin "killed_$role"
  read -r victim < <(workers "$role" "$master") && kill -9 "$victim"
  kill -9 "$master"
  wait "$wrapper_of" 2>/dev/null || true
  clean "kill -9 of $role and master" "killed_$role/.*(master\.sock|\.tmp)$"
  run "killed_$role"
  clean "the same command again"
done

for role in trainer rollout proxy; do # out of the reach of its master's kill: it ends by itself when the lease is over
  [ -e "$detach" ] || break
  LD_PRELOAD=$detach K2_DETACH=$role begin "alone_$role"
  kill -9 "$master"
  wait "$wrapper_of" 2>/dev/null || true
  clean "a $role without a master" "alone_$role/.*(master\.sock|\.tmp)$"
  rm -r "$SCRATCH/alone_$role"
done

# Half-written things of a process that was killed.
mkdir "$SCRATCH/killed_proxy/checkpoints/step_0000099.tmp"
touch "$SCRATCH"/killed_proxy/{config.json.4711.tmp,data/x.4711.tmp,checkpoints/latest.4711.tmp,checkpoints/step_0000099.tmp/model.safetensors}
run killed_proxy
clean "what others left half-written"

rc=0
timeout 60 "$K2RL" master --cfg "$SCRATCH/small.json" --run-dir "$SCRATCH/refused" --set reward.command='["false"]' >/dev/null 2>&1 || rc=$?
[ "$rc" != 0 ] || fail "a run without a reward went well"
clean "a run that fails"
