#!/usr/bin/env bash
# A read-only run directory, a disk that is full from the start or becomes so in the middle, a journal that was cut or lost: one clear line and
# an exit status; and when the fault is gone, the same command ends with the weights of a calm run.
. "$(dirname "$0")/../e2e/lib.sh"
small_config
if [ "${1:-}" != inside ]; then
  unshare -rm true 2>/dev/null || skip "no user and mount namespaces here (unshare -rm)"
  unshare -rm bash "$0" inside || exit $?
  exit 0
fi

refused() { # NAME STATUS PATTERN: this status, and one line on stderr that matches
  local rc=0
  timeout 120 "$K2RL" master --cfg "$SCRATCH/small.json" --run-dir "$SCRATCH/$1" --json >"$SCRATCH/out.txt" 2>"$SCRATCH/one.err" || rc=$?
  same "$rc" "$2" "status of $1"
  same "$(wc -l <"$SCRATCH/one.err")" 1 "lines on stderr of $1"
  grep -qE -- "$3" "$SCRATCH/one.err" || fail "'$(cat "$SCRATCH/one.err")' does not match '$3'"
}

goes_on() { # NAME
  run "$1"
  same "$(json "$result" weights_digest)" "$want" "weights_digest of $1 once the fault is gone"
}

run calm
want=$(json "$result" weights_digest)

# Read-only, with a run in it and without.
mkdir "$SCRATCH/ro"
cp -r "$SCRATCH/calm" "$SCRATCH/ro/run"
mount --bind "$SCRATCH/ro" "$SCRATCH/ro" && mount -o remount,ro,bind "$SCRATCH/ro" || skip "no read-only bind mount here"
refused ro/run 1 'ro/run.*Read-only file system'
refused ro/new 1 'ro/new.*Read-only file system'
umount "$SCRATCH/ro"
goes_on ro/run
echo "read-only: refused, then the same weights"

# Full from the start: no room for the table of readers, half the journal's header, its tables, the data, a checkpoint.
mkdir "$SCRATCH/full"
for kib in 4 12 20 28 200 800; do
  mount -t tmpfs -o size=${kib}k tmpfs "$SCRATCH/full" || skip "no tmpfs can be mounted here"
  refused full/run 1 'No space left on device'
  mount -o remount,size=64m "$SCRATCH/full"
  goes_on full/run
  umount "$SCRATCH/full"
done
echo "full from the start: refused, then the same weights"

# Full in the middle of an iteration: what meets it first is the journal or a checkpoint.
mount -t tmpfs -o size=16m tmpfs "$SCRATCH/full"
mkdir "$SCRATCH/full/run"
ln -s full/run "$SCRATCH/later" # what it prints is kept elsewhere
start later
await "iteration 2 of later" "grep -q '\"iteration\": *2' $SCRATCH/later/metrics.jsonl"
cat /dev/zero >"$SCRATCH/full/ballast" 2>/dev/null || true
rc=0
wait "$wrapper_of" || rc=$?
same "$rc" 1 "status of the run whose disk became full"
same "$(wc -l <"$SCRATCH/later.err")" 1 "lines on stderr of the run whose disk became full"
grep -q 'No space left on device' "$SCRATCH/later.err" || fail "it does not say so: $(cat "$SCRATCH/later.err")"
rm "$SCRATCH/full/ballast"
goes_on later
umount "$SCRATCH/full"
echo "full in the middle: ended, then the same weights"

# A journal cut in the middle, one that is empty, one that is gone: never taken for a new run.
rm "$SCRATCH/later"
for what in cut empty gone; do
  cp -r "$SCRATCH/calm" "$SCRATCH/$what"
  data=$SCRATCH/$what/journal/data.mdb
  case $what in
    cut) truncate -s 20000 "$data"; said='data.mdb was cut: it has 20000 bytes, [0-9]+ are in use' ;;
    empty) truncate -s 0 "$data"; said='its journal is empty although it has checkpoints' ;;
    gone) rm -r "$SCRATCH/$what/journal"; said='data.mdb: is missing' ;;
  esac
  refused "$what" 2 "$said"
  [ "$what" = gone ] || cp "$SCRATCH/calm/journal/data.mdb" "$data"
  [ "$what" != gone ] || { rm -rf "$SCRATCH/gone/journal"; cp -r "$SCRATCH/calm/journal" "$SCRATCH/gone/"; }
  goes_on "$what"
done
echo "a damaged journal: refused, then the same weights"
