#!/usr/bin/env bash
# The command that a failure prints repeats it: with the mistake it fails in the same check, without the mistake it goes well.
set -euo pipefail
bin=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "shrink_test: $*" >&2; cat "$work"/* >&2; exit 1; }

"$bin" --planted SCORE_LOST --seeds 1000 >"$work/first" 2>&1 && fail "the planted mistake was not found"
repeat=$(sed -n 's/^repeat: \.\/run sim //p' "$work/first")
found=$(sed -n 's/^seed \([0-9]*\) at .* s: \([a-z]*\): .*/\1 \2/p' "$work/first")
count=$(sed -n 's/^faults: \([0-9]*\) of .*/\1/p' "$work/first")
[ -n "$repeat" ] && [ -n "$found" ] || fail "no command to repeat it"
[ "$count" -le 3 ] || fail "$count faults are left, expected 3 at most"
# shellcheck disable=SC2086
"$bin" $repeat --no-shrink >"$work/second" 2>&1 && fail "the command does not fail: $repeat"
[ "$(sed -n 's/^seed \([0-9]*\) at .* s: \([a-z]*\): .*/\1 \2/p' "$work/second")" = "$found" ] || fail "it fails elsewhere"
# shellcheck disable=SC2086
"$bin" ${repeat% --planted *} >"$work/third" 2>&1 || fail "it fails without the mistake"

for bad in "--faults drop" "--faults nothing:1:2" "--faults drop:x:2" "--faults drop:1:x" "--planted NOTHING" "--list /none" "--seeds x"; do
  rc=0
  # shellcheck disable=SC2086
  "$bin" $bad >"$work/bad" 2>&1 || rc=$?
  [ "$rc" = 2 ] && [ "$(wc -l <"$work/bad")" = 1 ] || fail "$bad: status $rc"
done
echo "shrink_test: $found shrunk to $count"
