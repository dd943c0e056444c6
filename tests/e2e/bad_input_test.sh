#!/usr/bin/env bash
# Bad input: exit status 2, one line on stderr that names the place, nothing left behind.
. "$(dirname "$0")/lib.sh"
small_config
cd "$SCRATCH"

# refuse PATTERN COMMAND...: status 2, exactly one line on stderr, which matches.
count=0
refuse() {
  local want=$1 rc=0
  shift
  timeout 60 "$@" >out.txt 2>err.txt || rc=$?
  [ "$rc" = 2 ] || fail "status $rc, expected 2: $* ($(head -n 3 err.txt))"
  [ "$(wc -l <err.txt)" = 1 ] || fail "$(wc -l <err.txt) lines on stderr, expected 1: $*
$(head -n 5 err.txt)"
  grep -qE -- "$want" err.txt || fail "'$(cat err.txt)' does not match '$want': $*"
  count=$((count + 1))
}
master() { refuse "$1" "$K2RL" master --cfg small.json --run-dir "$SCRATCH/r" "${@:2}"; [ ! -e r ] || fail "r was made by: $*"; }

refuse 'unknown command' "$K2RL" mastre
refuse 'cfg' "$K2RL" master
refuse 'nowhere.json' "$K2RL" master --cfg nowhere.json
for command in master trainer rollout proxy config version 'data text2idx' 'data jsonl2idx' 'data tokens' 'data show' 'data task'; do
  refuse 'unknown option --frob' "$K2RL" $command --frob
  [[ $("$K2RL" $command --help) == "usage: k2rl ${command%% *}"* ]] || fail "$command --help prints no usage"
done
for command in data ckpt; do
  refuse 'unknown command "frob"' "$K2RL" $command frob
  [[ $("$K2RL" $command --help) == "usage: k2rl $command"* ]] || fail "$command --help prints no usage"
done
master 'trainer.rank: unknown key, did you mean trainer.ranks\?' --set trainer.rank=2
master 'iterations: found .*, expected' --set iterations=many
master 'trainer.ranks: found 3, expected a divisor' --set trainer.ranks=3
master 'mode: found "fast"' --set mode=fast

# sizes that cannot be
model() { sed "$1" model.json >bad-model.json; master "$2" --set model.config=bad-model.json; }
model 's/"num_attention_heads": 2/"num_attention_heads": 0/' 'num_attention_heads'
model 's/"num_experts_per_tok": 2/"num_experts_per_tok": 9/' 'num_experts_per_tok'
model 's/"qk_rope_head_dim": 8/"qk_rope_head_dim": 7/' 'qk_rope_head_dim'
model 's/"n_group": 1/"n_group": 3/' 'n_group'
model 's/"hidden_size": 32/"hidden_sise": 32/' 'hidden_sise'
model 's/"hidden_size": 32/"hidden_size": 99999999999/' 'hidden_size'
head -c 100 model.json >cut-model.json
master 'cut-model.json' --set model.config=cut-model.json
master 'no-model' --set model.config= --set model.dir=no-model

# a model directory that is missing a part, or cut
run good --iterations 1 --set run.checkpoint_every=1
ckpt=good/checkpoints/$(cat good/checkpoints/latest)
cp -r "$ckpt" cut-dir && head -c 5000 "$ckpt/model.safetensors" >cut-dir/model.safetensors
master 'model.safetensors' --set model.config= --set model.dir=cut-dir
cp -r "$ckpt" no-weights && rm no-weights/model.safetensors
master 'model.safetensors' --set model.config= --set model.dir=no-weights
sharded() { # the same weights as shards: every tensor in the first one, but for the last, which is said to be in shard $1
  rm -rf shards && cp -r "$ckpt" shards && mv shards/model.safetensors shards/m-1.safetensors
  grep -aoE '"(model|lm_head)[a-z0-9_.]*":' shards/m-1.safetensors | tr -d '":' >names.txt
  {
    printf '{"weight_map": {'
    sed '$d; s/.*/"&": "m-1.safetensors",/' names.txt
    printf '"%s": "%s"}}' "$(tail -n 1 names.txt)" "$1"
  } >shards/model.safetensors.index.json
}
sharded m-1.safetensors
"$K2RL" master --cfg small.json --run-dir "$SCRATCH/r" --set model.config= --set model.dir=shards --dry-run >out.txt 2>err.txt ||
  fail "shards are refused: $(cat err.txt)"
sed 's/"intermediate_size": 64/"intermediate_size": 72/' "$ckpt/config.json" >shards/config.json
master 'm-1.safetensors: tensor .* has the shape' --set model.config= --set model.dir=shards
sharded gone.safetensors
master 'gone.safetensors: cannot open' --set model.config= --set model.dir=shards

# what would fail for every single answer
master 'reward.command: /no/such is no program' --set 'reward.command=["/no/such"]'
master 'reward.command: no-such-program is no program' --set 'reward.command=["no-such-program"]'
master 'rollout.cache_tokens: room for 16 tokens' --set rollout.cache_tokens=16

# data
printf '{"prompt": "copy a", "answer": "a"}\n{"prompt": "copy b", "answer": \n' >faulty.jsonl
master 'faulty.jsonl:2' --set data.prompts=faulty.jsonl --set data.heldout=faulty.jsonl
printf '{"prompt": "copy a"}\n' >no-answer.jsonl
master 'no-answer.jsonl:1.*answer' --set reward.kind=exact --set 'reward.command=[]' --set data.prompts=no-answer.jsonl --set data.heldout=no-answer.jsonl
printf 'one two three\n' >text.txt
"$K2RL" data text2idx corpus text.txt >/dev/null
printf x >>corpus.bin
master 'corpus' --set data.corpus=corpus
head -c 30 corpus.idx >cut.idx && cp corpus.bin cut.bin
master 'cut.idx' --set data.corpus=cut

# more memory than there is
sed 's/"hidden_size": 32/"hidden_size": 16384/; s/"num_hidden_layers": 2/"num_hidden_layers": 60/; s/"vocab_size": 264/"vocab_size": 163840/' \
  model.json >huge-model.json
master 'memory|GiB' --set model.config=huge-model.json

# things in use
start holder --set iterations=100000
await "the first iteration" "grep -q iteration $SCRATCH/holder/metrics.jsonl"
refuse 'in use' "$K2RL" master --cfg small.json --run-dir "$SCRATCH/holder" --set iterations=100000
port=$(sed -n 's/.*127\.0\.0\.1:\([0-9]*\).*/\1/p' holder/logs/proxy-0.log | head -n 1)
[ -n "$port" ] || fail "the proxy's log names no address"
master "proxy.listen: 127.0.0.1:$port is in use" --set "proxy.listen=127.0.0.1:$port"
master 'master.listen: found "foo", expected tcp' --set master.listen=foo
free=$((port > 40000 ? port - 1 : port + 1))
master 'is in use|proxy.listen: found the port of master.listen' --set master.listen=tcp://127.0.0.1:$free --set proxy.listen=127.0.0.1:$free
master 'master.listen: cannot listen on 192.0.2.1:5' --set master.listen=tcp://192.0.2.1:5
refuse "$port" "$K2RL" proxy --listen "127.0.0.1:$port" --engine http://127.0.0.1:1
refuse "$port" "$K2RL" rollout --model "$ckpt" --listen "127.0.0.1:$port"

# bad request bodies: OpenAI-shaped 4xx. bash speaks HTTP well enough for that.
request() { # request PATH BODY -> status line and body in $answer
  exec 9<>"/dev/tcp/127.0.0.1/$port"
  printf 'POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "$1" "${#2}" "$2" >&9
  answer=$(timeout 20 cat <&9)
  exec 9>&-
}
bad_body() {
  request "$2" "$3"
  [[ $answer == "HTTP/1.1 $1"* ]] || fail "expected status $1 for $3: $(head -n 1 <<<"$answer")"
  [[ $answer == *'"error"'*'"message"'* ]] || fail "not OpenAI-shaped for $3: $answer"
  count=$((count + 1))
}
bad_body 400 /v1/completions '{"prompt": '
bad_body 400 /v1/completions '{"model": "k2rl"}'
bad_body 400 /v1/completions '{"model": "k2rl", "prompt": "a", "max_tokens": "many"}'
bad_body 400 /v1/completions '{"model": "k2rl", "prompt": "a", "max_tokens": 1000000}'
bad_body 400 /v1/completions '{"model": "k2rl", "prompt": [1, 99999]}'
bad_body 400 /v1/completions '{"model": "k2rl", "prompt": "a", "temperature": -1}'
bad_body 400 /v1/chat/completions '{"model": "k2rl", "messages": []}'
bad_body 404 /v1/completions '{"model": "gpt-x", "prompt": "a"}'
bad_body 404 /v1/nothing '{}'
kill -INT "$master"
wait "$wrapper_of" || fail "Ctrl-C ended the run with status $?"
echo "$count inputs refused"
