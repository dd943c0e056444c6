#!/usr/bin/env bash
# What trainers and rollout workers take at most in a whole run (pretraining, reinforcement learning, publishing, saving) is what
# was planned for them, within a tenth. Measured is the peak of the resident set, VmHWM, which each process logs at its end.
. "$(dirname "$0")/lib.sh"
grep -q '\[always\]' /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null && skip "this machine rounds each stack and buffer up to pages of 2 MiB"
small_config

model() { # NAME VOCAB WIDTH LAYERS EXPERTS
  sed -e "s/\"vocab_size\": [0-9]*/\"vocab_size\": $2/" -e "s/\"hidden_size\": [0-9]*/\"hidden_size\": $3/" \
    -e "s/\"num_hidden_layers\": [0-9]*/\"num_hidden_layers\": $4/" -e "s/\"n_routed_experts\": [0-9]*/\"n_routed_experts\": $5/" \
    -e "s/\"intermediate_size\": [0-9]*/\"intermediate_size\": $((2 * $3))/" \
    -e "s/\"moe_intermediate_size\": [0-9]*/\"moe_intermediate_size\": $3/" "$SCRATCH/model.json" >"$SCRATCH/$1.json"
}
model wide 2000 128 4 8
model mini 8000 320 6 12

failed=0
held() { # RUN LOG PREDICTED PEAK
  local off=$(((${3/./} - ${4/./}) * 1000 / ${4/./}))
  printf '%-28s %-12s planned %7s MiB, peak %7s MiB, %+d per mille\n' "$1" "$2" "$3" "$4" "$off"
  [ "${off#-}" -le 100 ] || failed=1
}

measure() { # NAME MODEL [options]
  local name=$1 with=$2 log line
  shift 2
  run "$name" --set model.config="$SCRATCH/$with.json" --set iterations=3 --set run.checkpoint_every=2 --set pretrain.steps=4 --set trainer.micro_tokens=1024 \
    --set pretrain.sequence_tokens=128 --set rollout.budget_tokens=20 --set rollout.cache_tokens=8192 "$@"
  for log in "$SCRATCH/$name"/logs/{trainer,rollout}-*.log; do
    line=$(grep -h 'memory of the' "$log" | tail -n 1)
    [[ $line =~ planned=([0-9.]+)MiB\ peak=([0-9.]+)MiB ]] || fail "$name: $log does not say what was planned"
    held "$name" "$(basename "$log" .log)" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
  done
}

measure one wide
measure two_ranks wide --set trainer.ranks=2
measure two_lanes wide --set trainer.threads=2
measure one_lane_of_two_threads wide --set trainer.threads=2 --set trainer.grad_lanes=1
measure full wide --set trainer.recompute=full --set trainer.minibatches=2
measure bf16 wide --set model.compute=bf16 --set trainer.threads=2
measure selective_muon wide --set trainer.recompute=selective --set trainer.optimizer.kind=muon
measure tcp wide --set trainer.ranks=2 --set xfer.transport=tcp
measure kl wide --set trainer.kl.weight=0.01 --set trainer.kl.reference="$SCRATCH/one/checkpoints/$(<"$SCRATCH/one/checkpoints/latest")"
measure mini mini --set trainer.ranks=2 --set trainer.optimizer.kind=muon --set trainer.recompute=full
[ "$failed" = 0 ] || fail "planned and taken differ by more than a tenth"
