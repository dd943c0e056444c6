#!/usr/bin/env bash
# The curl command of README.md, word for word but for the port, gets an answer; and so does a stream.
. "$(dirname "$0")/interop_lib.sh"
command -v curl >/dev/null || skip "no curl on PATH"
small_config
run one
serve_latest one

command=$(sed -n '/^curl .*chat\/completions/,/^```/p' "$SRC/README.md" | sed '/^```/d')
[ -n "$command" ] || fail "README.md shows no curl command"
command=${command//http:\/\/127.0.0.1:8000/$address}
answer=$(bash -c "$command") || fail "status $? of: $command"
[[ $answer == *'"object":"chat.completion"'*'"role":"assistant","content":"'* ]] || fail "answered '$answer' to: $command"

stream=$(curl -sSN "$address/v1/chat/completions" -H 'content-type: application/json' \
  -d '{"model": "k2rl", "stream": true, "ignore_eos": true, "max_tokens": 8, "messages": [{"role": "user", "content": "fold abc"}]}')
[ "$(tail -n 1 <<<"$stream")" = "data: [DONE]" ] || fail "the stream ended with '$(tail -n 1 <<<"$stream")'"
[[ $stream == *'"finish_reason":"length"'* ]] || fail "the stream has no end: $stream"
[ "$(curl -s -o /dev/null -w '%{http_code}' "$address/v1/chat/completions" -d '{')" = 400 ] || fail "a broken body was taken"
curl -sS "$address/metrics" | grep -q '^# TYPE ' || fail "/metrics is no Prometheus text"
curl -sSf "$address/health" >/dev/null || fail "/health"

# While a run goes on, its proxy answers at the address that the master prints.
start going --set iterations=100000
await "the address of the run's proxy" "grep -q 'the proxy answers at http' $SCRATCH/going.out"
address=$(sed -n 's/^the proxy answers at //p' "$SCRATCH/going.out" | head -n 1)
running=$(curl -sS "$address/v1/completions" -H 'content-type: application/json' -d '{"model": "k2rl", "prompt": "fold abc", "max_tokens": 4}')
[[ $running == *'"object":"text_completion"'* ]] || fail "a run's proxy answered '$running'"
kill -INT "$master"
wait "$wrapper_of" || fail "Ctrl-C ended the run with status $?"
echo "README's curl: $answer"
