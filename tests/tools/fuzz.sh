#!/bin/sh
# fuzz.sh TARGET FOLDER [UNIT_SECONDS] - run one fuzz target for $K2_FUZZ_SECONDS (20), from the committed corpus FOLDER/corpus/<name>, with
# FOLDER/<name>.dict where that is there, and print one line of figures. A finding, also an input that takes longer than UNIT_SECONDS (1) or more than 1 GiB,
# ends with status 1; the input stays beside the target, and a line says how to replay it. The limit of time is the wall's, so on a busy machine it
# is ten times as long while fuzzing, and what passes it counts if it passes UNIT_SECONDS alone, too.
# What was learned is kept in $K2_FUZZ_KEEP/<name> where that is set, to go on from there, else dropped.
set -u
target=$1 folder=$2 unit=${3:-1} seconds=${K2_FUZZ_SECONDS:-20}
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
"$target" -max_total_time="$seconds" -timeout=$((unit * 10)) -rss_limit_mb=1024 -print_final_stats=1 $dict -artifact_prefix="$target-" "$learned" "$seeds" \
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
if [ "$rc" = 70 ] && "$target" -timeout="$unit" -rss_limit_mb=1024 "$input" >/dev/null 2>&1; then
    echo "$name: an input took over $((unit * 10)) s on a busy machine, and less than $unit s alone: $input"
    exit 0
fi
grep -vE '^(#[0-9]|INFO)' "$work/log" | tail -n 40
echo "$name: FINDING (status $rc). The input: ${input:-not known}"
echo "replay: $target -timeout=$unit -rss_limit_mb=1024 ${input:-INPUT}"
exit 1
