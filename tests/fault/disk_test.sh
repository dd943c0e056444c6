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

# Read-only in the middle: what every call says when the file system has given up.
mkdir "$SCRATCH/worn"
readonly=$(dirname "$K2RL")/k2_readonly.so
LD_PRELOAD=$readonly K2_READONLY=$SCRATCH/worn/readonly start worn
await "iteration 2 of worn" "grep -q '\"iteration\": *2' $SCRATCH/worn/metrics.jsonl"
touch "$SCRATCH/worn/readonly"
rc=0
wait "$wrapper_of" || rc=$?
same "$rc" 1 "status of the run whose disk became read-only"
same "$(wc -l <"$SCRATCH/worn.err")" 1 "lines on stderr of the run whose disk became read-only"
grep -q 'Read-only file system' "$SCRATCH/worn.err" || fail "it does not say so: $(cat "$SCRATCH/worn.err")"
rm "$SCRATCH/worn/readonly"
goes_on worn
echo "read-only in the middle: ended, then the same weights"

# Full just for checkpoints; then just for what is only reported, which costs the run nothing but a line in its log - if that has room.
mkdir "$SCRATCH/checks" "$SCRATCH/small_disk"
mount -t tmpfs -o size=300k tmpfs "$SCRATCH/small_disk"
ln -s "$SCRATCH/small_disk" "$SCRATCH/checks/checkpoints"
refused checks 1 'small_disk|checkpoints/.*No space left on device'
mount -o remount,size=64m "$SCRATCH/small_disk"
goes_on checks
umount "$SCRATCH/small_disk"
for what in metrics.jsonl tensorboard logs; do
  dir=$SCRATCH/no_$what
  mkdir "$dir"
  case $what in
    metrics.jsonl) ln -s /dev/full "$dir/$what" ;;
    tensorboard)
      mount -t tmpfs -o size=4k tmpfs "$SCRATCH/small_disk"
      ln -s "$SCRATCH/small_disk" "$dir/$what"
      ;;
    logs)
      mkdir "$dir/logs"
      for name in master-0 trainer-0 rollout-0 proxy-0; do ln -s /dev/full "$dir/logs/$name.log"; done
      ;;
  esac
  goes_on "no_$what"
  [ "$what" = logs ] || grep -q "No space left on device; the run goes on" "$dir/logs/master-0.log" || fail "the log does not tell of $what"
done
umount "$SCRATCH/small_disk"
echo "full for checkpoints: ended, then the same weights; full for reports: the same weights"

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

# Of a run that was killed: cut at its end, within a page and over several. Each start either says what is missing, or goes on.
start killed
await "iteration 3 of killed" "grep -q '\"iteration\": *3' $SCRATCH/killed/metrics.jsonl"
kill -9 "$master"
wait "$wrapper_of" 2>/dev/null || true
size=$(stat -c %s "$SCRATCH/killed/journal/data.mdb")
took=0 said=0
for cut in 1 100 4096 4097 8191 12289; do
  name=cut_$cut
  cp -r "$SCRATCH/killed" "$SCRATCH/$name"
  truncate -s $((size - cut)) "$SCRATCH/$name/journal/data.mdb"
  rc=0
  timeout 120 "$K2RL" master --cfg "$SCRATCH/small.json" --run-dir "$SCRATCH/$name" --json >"$SCRATCH/out.txt" 2>"$SCRATCH/one.err" || rc=$?
  case $rc in
    0)
      took=$((took + 1)) # nothing that is in use was cut
      same "$(json "$(tail -n 1 "$SCRATCH/out.txt")" weights_digest)" "$want" "weights_digest after $cut bytes were cut from the journal"
      ;;
    2)
      said=$((said + 1))
      same "$(wc -l <"$SCRATCH/one.err")" 1 "lines on stderr after $cut bytes were cut"
      grep -qE "data.mdb was cut: it has $((size - cut)) bytes, [0-9]+ are in use" "$SCRATCH/one.err" || fail "it says '$(cat "$SCRATCH/one.err")'"
      cp "$SCRATCH/killed/journal/data.mdb" "$SCRATCH/$name/journal/"
      goes_on "$name"
      ;;
    *) fail "status $rc after $cut bytes were cut: $(cat "$SCRATCH/one.err")" ;;
  esac
  rm -rf "$SCRATCH/$name"
done
echo "a journal cut at its end: $took went on, $said were refused and then went on, all to the same weights"
