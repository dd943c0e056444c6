#!/usr/bin/env bash
# `k2rl top`: once for programs, live on a terminal, which it leaves as it was; a stopped master is told and asked again.
. "$(dirname "$0")/lib.sh"
small_config
sed -i 's|"iterations": 5|"iterations": 100000, "master": {"lease_ms": 60000}|' "$SCRATCH/small.json"
start seen
await "the first iteration" "grep -q '\"iteration\": *1' $SCRATCH/seen/metrics.jsonl"

out=$("$K2RL" top "$SCRATCH/seen") || fail "top ended with status $?"
for words in "k2rl seen-" "phase    " "waits    " "rollout " "tokens/s" "answers  " "proxy    " "trainers 1/1, rollouts 1/1, proxies 1/1 are up" \
  "WORKER " "trainer-0 " "rollout-0 " "proxy-0 "; do
  grep -qF "$words" <<<"$out" || fail "'$words' is not in: $out"
done
out=$("$K2RL" top "$SCRATCH/seen" --json)
same "$(wc -l <<<"$out")" 1 "lines of JSON"
same "$(json "$out" iterations)" 100000 "iterations"
for key in rollout_tokens_per_s requests_per_s train_tokens_per_s queued running unscored left_seconds proxy_queued held_actions; do
  grep -q "\"$key\": [0-9]" <<<"$out" || fail "$key is not in: $out"
done

# Live, through a terminal of 30 x 100.
script -qec true /dev/null </dev/null >/dev/null 2>&1 || { echo "script is not installed, or there are no terminals to be had: nothing live"; exit 0; }
mkfifo "$SCRATCH/keys"
SHELL=$BASH script -qfec "set -m; stty rows 30 cols 100; $K2RL top $SCRATCH/seen; echo shell again; fg" /dev/null <"$SCRATCH/keys" >"$SCRATCH/screen" 2>&1 &
terminal=$!
masters+=("$terminal")
exec 7>"$SCRATCH/keys"
await "a picture" "grep -q 'WORKER ' $SCRATCH/screen"
kill -STOP "$master"
await "word of the stopped master" "grep -q 'the master does not answer (pid $master).*stopped by a signal' $SCRATCH/screen"
: >"$SCRATCH/screen"
kill -CONT "$master"
await "a picture again" "tr '\r' '\n' <$SCRATCH/screen | tail -n 40 | grep -a -q 'phase    [a-z]* for'"
printf '\032' >&7 # Ctrl-Z, then fg
await "the shell and another picture" "tr '\r' '\n' <$SCRATCH/screen | sed '1,/shell again/d' | grep -a -q 'phase    [a-z]* for'"
tr -d '\n' <"$SCRATCH/screen" | grep -aq $'\033\\[?25h\033\\[?1049l.*shell again.*\033\\[?1049h' || fail "Ctrl-Z does not give the terminal back"
printf '\003' >&7 # Ctrl-C
wait "$terminal" || fail "top ended with status $? at Ctrl-C"
exec 7>&-
grep -aq $'\033\\[?25h\033\\[?1049l' "$SCRATCH/screen" || fail "the terminal is not given back"
tr -d '\0' <"$SCRATCH/screen" | sed 's/\x1b\[[?0-9]*[a-zA-Z]//g' | tr -d '\r' | awk 'length > 99 { exit 1 }' || fail "a line is too long"

kill -9 "$master"
wait "$wrapper_of" 2>/dev/null || true
for args in "$SCRATCH/seen" "$SCRATCH" "$SCRATCH/seen --interval 0" "$SCRATCH/seen --often"; do
  rc=0
  # shellcheck disable=SC2086
  "$K2RL" top $args >"$SCRATCH/none.out" 2>"$SCRATCH/none.err" || rc=$?
  same "$rc" 2 "status of top $args"
  same "$(wc -l <"$SCRATCH/none.err")" 1 "lines on stderr of top $args"
done
