#!/usr/bin/env bash
# Runs with tokenizers of other kinds than bytes: the same weights with one worker and two, text to ids and back, and clear refusals.
. "$(dirname "$0")/lib.sh"
small_config
cd "$SCRATCH"
vectors=$SRC/tests/unit/token/vectors
for i in 1 2 3 4 5 6 7 8; do echo "{\"prompt\": \"Say $i, 你好 <|im_end|>\", \"answer\": \"$i\"}"; done >prompts.jsonl
head -n 4 prompts.jsonl >heldout.jsonl
own=(--set data.task= --set data.prompts=prompts.jsonl --set data.heldout=heldout.jsonl --set pretrain.steps=0 --set eval.prompts=4
  --set rollout.groups=4 --iterations 2)

refuse() { # refuse PATTERN [options]: status 2, one line on stderr that matches
  local want=$1 rc=0
  shift
  timeout 60 "$K2RL" master --cfg small.json --json --run-dir refused "${own[@]}" "$@" >out.txt 2>err.txt || rc=$?
  [ "$rc" = 2 ] || fail "status $rc, expected 2: $* ($(head -n 3 err.txt))"
  [ "$(wc -l <err.txt)" = 1 ] || fail "$(wc -l <err.txt) lines on stderr: $*"
  grep -qE -- "$want" err.txt || fail "'$(cat err.txt)' does not match '$want'"
}

refuse 'has 856 ids, the model.s vocab_size is 264' --set tokenizer.kind=auto --set tokenizer.path="$vectors/kimi"
refuse 'no tokenizer file is known there' --set tokenizer.kind=auto --set tokenizer.path="$vectors"
refuse 'tokenizer.path: is empty' --set tokenizer.kind=json
refuse 'has its patterns in its file' --set tokenizer.kind=json --set tokenizer.path="$vectors/qwen2.json" --set tokenizer.pattern=kimi

sed -i 's/"vocab_size": 264/"vocab_size": 896/' model.json
tool='{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}'
echo "{\"prompt\": \"Say 1\", \"answer\": \"1\", \"tools\": [$tool]}" >tools.jsonl
refuse 'tools.jsonl:1: tools: the chat layout "chatml" has none' --set tokenizer.kind=auto --set tokenizer.path="$vectors/qwen2.json" \
  --set data.prompts=tools.jsonl
for kind in kimi qwen2.json; do
  [ "$kind" = kimi ] && for i in 9 10; do # two prompts with tools, one of them behind a tool's answer
    call="{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"functions.f:0\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}"
    more=,$call,"{\"role\":\"tool\",\"tool_call_id\":\"functions.f:0\",\"name\":\"f\",\"content\":\"$i\"}"
    [ $i = 9 ] && more=
    echo "{\"messages\":[{\"role\":\"user\",\"content\":\"Say $i\"}$more],\"answer\":\"$i\",\"tools\":[$tool]}" >>prompts.jsonl
  done
  [ "$kind" = kimi ] || sed -i /tools/d prompts.jsonl # ChatML has none
  for workers in 1 2; do
    run "$kind-$workers" "${own[@]}" --set tokenizer.kind=auto --set tokenizer.path="$vectors/$kind" --set rollout.workers=$workers
    [ "$workers" = 1 ] && first=$(json "$result" weights_digest)
  done
  same "$(json "$result" weights_digest)" "$first" "weights_digest with two workers, tokenizer $kind"
  # A checkpoint is a directory that others load: with its tokenizer, under the name that they look for.
  saved="$SCRATCH/$kind-1/checkpoints/$(<"$SCRATCH/$kind-1/checkpoints/latest")"
  same "$("$K2RL" data tokens --tokenizer "$saved" --ids "Hello, 世界!")" "$("$K2RL" data tokens --tokenizer "$vectors/$kind" --ids "Hello, 世界!")" \
    "ids by the tokenizer that was saved with the weights ($kind)"
  text='Hello, 世界! <|im_end|>'
  ids=$("$K2RL" data tokens --tokenizer "$vectors/$kind" --ids "$text" | head -n 1)
  same "$("$K2RL" data tokens --tokenizer "$vectors/$kind" --decode "$ids")" "$text" "text through tokens of $kind"
done

# A worker that finds another tokenizer or model than the master has is refused by name, and the run ends saying so.
swapped() { # NAME ROLE FILE CHANGE WHAT: while the run goes on the file changes, and the worker must start anew
  local status=0
  mkdir -p "$SCRATCH/$1.files"
  cp "$vectors/kimi/"* model.json "$SCRATCH/$1.files/"
  start "$1" "${own[@]}" --set iterations=1000 --set tokenizer.kind=auto --set tokenizer.path="$SCRATCH/$1.files" \
    --set model.config="$SCRATCH/$1.files/model.json" --set master.restarts_max=1
  await "the first iteration of $1" "grep -q 'iteration 1/' $SCRATCH/$1/logs/master-0.log"
  sed -i "$4" "$SCRATCH/$1.files/$3"
  kill -9 $(workers "$2" "$master")
  wait "$wrapper_of" || status=$?
  [ "$status" = 2 ] || [ "$status" = 1 ] || fail "$1 ended with status $status"
  grep -q "$2-0 died.*exited with 2.*the $5 here is not the master's" "$SCRATCH/$1.err" || fail "$1: $(tail -n 2 "$SCRATCH/$1.err")"
}
swapped other-tokenizer rollout tokenizer_config.json '1s/^{/{ /' tokenizer
swapped other-model trainer model.json 's/"rope_theta": 10000.0/"rope_theta": 20000.0/' model
