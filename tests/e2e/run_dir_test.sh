#!/usr/bin/env bash
# A run directory belongs to one configuration and one set of data; it is resumed, refused or left alone, never mixed up.
. "$(dirname "$0")/lib.sh"
small_config
cd "$SCRATCH"

refuse() { # refuse PATTERN [options]: status 2, one line on stderr that matches
  local want=$1 rc=0
  shift
  timeout 60 "$K2RL" master --cfg small.json --json "$@" >out.txt 2>err.txt || rc=$?
  [ "$rc" = 2 ] || fail "status $rc, expected 2: $* ($(head -n 3 err.txt))"
  [ "$(wc -l <err.txt)" = 1 ] || fail "$(wc -l <err.txt) lines on stderr: $*"
  grep -qE -- "$want" err.txt || fail "'$(cat err.txt)' does not match '$want'"
}

refuse 'none: no run to resume' --run-dir none --resume
[ ! -e none ] || fail "--resume made the directory"
run a --iterations 2
first=$(json "$result" weights_digest)
refuse 'a run of another configuration' --run-dir a --set seed=8
sed -i 's/"rope_theta": 10000.0/"rope_theta": 20000.0/' model.json
refuse "model.json: the model's sizes are not what" --run-dir a
sed -i 's/"rope_theta": 20000.0/"rope_theta": 10000.0/' model.json
mv a/journal kept
refuse 'a/journal/data.mdb: is missing' --run-dir a
[ ! -e a/journal ] || fail "a new journal was begun"
mv kept a/journal
run a --resume --iterations 2 # nothing is left to do, and nothing is done
same "$(json "$result" weights_digest)" "$first" "weights_digest of a finished run"
same "$(json "$result" iterations)" 2 "iterations of a finished run"
run a # more iterations, and other workers, are the same run
run b
same "$(json "$(tail -n 1 a.out)" weights_digest)" "$(json "$result" weights_digest)" "weights_digest of 2 + 3 and of 5 iterations"

cp -r a/data own
set -- --set data.prompts=own/prompts.jsonl --set data.heldout=own/heldout.jsonl --set data.corpus=own/corpus
run c "$@" --iterations 1
sed -i '1s/copy\|back\|twin\|fold/&/; $d' own/prompts.jsonl
refuse 'own/prompts.jsonl: its content is not what' --run-dir c "$@"

# Two signals end it at once; what was finished is kept.
start d
await "iteration 1" "grep -q '\"iteration\": *1' $SCRATCH/d/metrics.jsonl"
kill -INT "$master"
kill -TERM "$master"
rc=0
wait "$wrapper_of" || rc=$?
[ "$rc" = 1 ] || [ "$rc" = 0 ] || fail "two signals ended the run with status $rc"
for role in trainer rollout proxy; do [ -z "$(workers $role "$master")" ] || fail "a $role is left"; done
run d
same "$(json "$result" weights_digest)" "$(json "$(tail -n 1 b.out)" weights_digest)" "weights_digest after two signals and a second start"
for f in manifest.json config.json metrics.jsonl logs/master-0.log logs/rollout-0.log logs/trainer-0.log logs/proxy-0.log checkpoints/latest; do
  [ -s "d/$f" ] || fail "the run left no $f"
done
[ "$(ls d/checkpoints | grep -c '^step_')" -le 2 ] || fail "more than run.checkpoints_kept are kept: $(ls d/checkpoints)"
echo "run directories are kept apart"
