#!/bin/sh
# fuzz.sh TARGET FOLDER SECONDS [UNIT_SECONDS] - run one fuzz target for so long, from the committed corpus FOLDER/corpus/<name>, and print one line of
# figures. A finding ends with status 1; the input stays beside the target, and the line says how to replay it.
# What was learned is kept in $K2_FUZZ_KEEP/<name> where that is set, to go on from there, else dropped.
set -u
target=$1 folder=$2 seconds=$3 unit=${4:-1}
name=$(basename "$target" _fuzz)
seeds=$folder/corpus/$name
work=$(mktemp -d /tmp/k2rl_fuzz_XXXXXX)
trap 'rm -rf "$work"' EXIT
learned=$work/corpus
[ -n "${K2_FUZZ_KEEP:-}" ] && learned=$K2_FUZZ_KEEP/$name
mkdir -p "$learned"
dict=
[ -f "$folder/$name.dict" ] && dict=-dict=$folder/$name.dict
[ -d "$seeds" ] || { echo "fuzz.sh: $seeds: no corpus" >&2; exit 1; }

# shellcheck disable=SC2086
"$target" -max_total_time="$seconds" -timeout="$unit" -rss_limit_mb=1024 -print_final_stats=1 $dict -artifact_prefix="$target-" "$learned" "$seeds" \
  >"$work/log" 2>&1
rc=$?
runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
last=$(grep -E '^#[0-9]+' "$work/log" | tail -n 1)
cov=$(echo "$last" | sed -n 's/.* cov: \([0-9]*\).*/\1/p')
corp=$(echo "$last" | sed -n 's/.* corp: \([0-9]*\).*/\1/p')
rss=$(sed -n 's/^stat::peak_rss_mb: *//p' "$work/log")
echo "$name: ${runs:-?} executions, ${cov:-?} edges, corpus ${corp:-?} from $(ls "$seeds" | wc -l) seeds, ${rss:-?} MB"
[ "$rc" = 0 ] && exit 0
input=$(sed -n 's/.*Test unit written to //p' "$work/log" | tail -n 1)
grep -vE '^(#[0-9]|INFO)' "$work/log" | tail -n 40
echo "$name: FINDING (status $rc). The input: ${input:-not known}"
echo "replay: $target -timeout=$unit -rss_limit_mb=1024 ${input:-INPUT}"
exit 1
