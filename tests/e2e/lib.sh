# Sourced by the scripts of this folder: a scratch directory, one small configuration, and ways to run and to look.
set -euo pipefail
K2RL=${K2RL:?path of the k2rl binary}
SRC=${SRC:?path of the source tree}
SCRATCH=$(mktemp -d /tmp/k2rl_e2e_XXXXXX)
trap 'rc=$?; sanitizers_are_silent || rc=1; cleanup; exit $rc' EXIT
masters=() # masters started in the background, ended at exit if a check failed half-way

# A worker that a sanitizer ended is started anew, and the run may end well: what it wrote tells.
sanitizers_are_silent() {
  local found
  found=$(grep -rhE -A 12 '(ERROR|WARNING): [A-Za-z]*Sanitizer|: runtime error: ' "$SCRATCH" --include='*.log' --include='*.err' 2>/dev/null) || return 0
  printf 'FAILED: a sanitizer has found something:\n%s\n' "$found" >&2
  return 1
}

# Is this process number still one of this script's? Those of processes that have ended are given to others.
ours() { # PID
  local stat args
  read -r stat 2>/dev/null <"/proc/$1/stat" || return 1
  mapfile -d '' args 2>/dev/null <"/proc/$1/cmdline" || return 1
  [[ "${stat##*) }" == ?\ "$$ "* || "${args[*]}" == *"$SCRATCH"* ]]
}

cleanup() {
  local p
  for p in ${masters[@]+"${masters[@]}"}; do
    ours "$p" && kill -9 "$p" 2>/dev/null || true
    wait "$p" 2>/dev/null || true
  done
  [ -n "${KEEP:-}" ] || rm -rf "$SCRATCH"
}

fail() {
  echo "FAILED: $*" >&2
  local log
  for log in "$SCRATCH"/*.err "$SCRATCH"/*/logs/*.log; do
    [ -s "$log" ] && { echo "--- ${log#"$SCRATCH"/}" >&2; tail -n 15 "$log" >&2; }
  done
  blocked
  exit 1
}

blocked() { # who holds up the runs that still live, and where every thread of theirs is
  local look dir
  for dir in "$SCRATCH"/*/; do
    [ -S "$dir/master.sock" ] || continue
    echo "--- who is blocking ${dir#"$SCRATCH"/}" >&2
    for look in why stacks; do timeout 20 "$K2RL" "$look" "$dir" >&2 || true; done
  done
}

skip() { echo "SKIPPED: $*"; exit 77; }

# The value of a key (number or plain string) of a JSON object on one line.
json() { sed -n "s/.*\"$2\": *\"\{0,1\}\([^,\"}]*\)\"\{0,1\}[,}].*/\1/p" <<<"$1" | head -n 1; }

small_config() { # a model and a run that take seconds, with answers long enough to be cut
  cat >"$SCRATCH/model.json" <<'EOF'
{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu", "attention_bias": false,
 "vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2,
 "num_attention_heads": 2, "num_key_value_heads": 2, "n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
 "routed_scaling_factor": 1.0, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
 "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "norm_topk_prob": true, "scoring_func": "sigmoid",
 "topk_method": "noaux_tc", "max_position_embeddings": 256, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
 "tie_word_embeddings": false, "bos_token_id": 256, "eos_token_id": 257}
EOF
  # A reward that differs between answers, so that the weights move; and slow, so that there is a middle of an iteration.
  cat >"$SCRATCH/reward.sh" <<'EOF'
LC_ALL=C
while IFS= read -r line; do
  id=${line#*\"trajectory\":} id=${id%%,*} text=${line#*\"text\":\"} text=${text%%\"*}
  read -rt 0.01 <> <(:)
  printf '{"trajectory":%s,"reward":%d}\n' "$id" $((${#text} % 2))
done
EOF
  cat >"$SCRATCH/small.json" <<EOF
{"seed": 7, "mode": "partial", "iterations": 5,
 "run": {"checkpoint_every": 2, "eval_every": 0},
 "model": {"config": "$SCRATCH/model.json"},
 "data": {"task": "quickstart", "task_corpus": 400, "task_prompts": 64, "task_heldout": 8},
 "pretrain": {"steps": 60, "batch_sequences": 16, "sequence_tokens": 48, "optimizer": {"lr": 0.01}, "schedule": {"warmup_steps": 5}},
 "trainer": {"optimizer": {"lr": 1e-3}, "threads": 1},
 "rollout": {"group_size": 4, "groups": 10, "budget_tokens": 8, "max_tokens": 20, "threads": 1},
 "reward": {"kind": "command", "command": ["bash", "$SCRATCH/reward.sh"]},
 "eval": {"prompts": 8, "max_tokens": 20}}
EOF
}

# run NAME [options of k2rl master]: a whole run in $SCRATCH/NAME; its last line of stdout is left in $result.
run() {
  local name=$1
  shift
  timeout 120 "$K2RL" master --cfg "$SCRATCH/small.json" --run-dir "$SCRATCH/$name" --json "$@" \
    >"$SCRATCH/$name.out" 2>"$SCRATCH/$name.err" || fail "run $name ended with status $?"
  result=$(tail -n 1 "$SCRATCH/$name.out")
}

# start NAME [options]: the same in the background; $master is its process id.
start() {
  local name=$1
  shift
  timeout 180 "$K2RL" master --cfg "$SCRATCH/small.json" --run-dir "$SCRATCH/$name" --json "$@" \
    >"$SCRATCH/$name.out" 2>"$SCRATCH/$name.err" &
  local wrapper=$!
  masters+=("$wrapper")
  await "the master of $name" "child_of $wrapper"
  master=$(child_of "$wrapper")
  masters+=("$master")
  wrapper_of=$wrapper
}

# Process ids whose parent is $1. Nothing is started to find them: a run may be over in a second.
children() {
  local dir stat
  for dir in /proc/[0-9]*; do
    read -r stat 2>/dev/null <"$dir/stat" || continue
    stat=${stat##*) }
    set -- "$1" $stat
    [ "$3" = "$1" ] && echo "${dir#/proc/}"
  done
  return 0
}

child_of() { # the first of them
  local pid
  read -r pid < <(children "$1") && echo "$pid"
}

workers() { # process ids of the workers of a role (trainer, rollout, proxy) that this master started
  local pid args
  for pid in $(children "$2"); do
    mapfile -d '' args 2>/dev/null <"/proc/$pid/cmdline" || continue
    [ "${args[1]:-}" = "$1" ] && echo "$pid"
  done
  return 0
}

# await WHAT COMMAND: until the command is true; looks again after each short wait, gives up after a minute.
await() {
  local what=$1 until=$((SECONDS + 60))
  shift
  while [ "$SECONDS" -lt "$until" ]; do
    eval "$@" >/dev/null 2>&1 && return 0
    read -rt 0.05 <> <(:) || true
  done
  fail "waited a minute for $what"
}

same() { [ "$1" = "$2" ] || fail "$3: found '$1', expected '$2'"; }
