# Sourced by the scripts of this folder: the end-to-end library, a Python that has what is asked for, and a served checkpoint.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/../../e2e/lib.sh"
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TRANSFORMERS_VERBOSITY=error OMP_NUM_THREADS=1

# python_with MODULE...: $python is an interpreter that imports them all; else the test is skipped.
python_with() {
  local module
  python=${K2_PYTHON:-$(command -v python3 || true)}
  [ -n "$python" ] || skip "no python3 on PATH; K2_PYTHON may name one"
  for module in "$@"; do
    "$python" -c "import $module" 2>/dev/null || skip "$python has no module $module; K2_PYTHON may name an interpreter that has it"
  done
}

# start_server WHAT COMMAND...: a server of ours in the background; $address is the address that it prints.
start_server() {
  local what=$1
  shift
  "$@" >"$SCRATCH/$what.out" 2>"$SCRATCH/$what.err" &
  masters+=($!)
  await "the address of the $what" "grep -q http://[0-9.]*:[0-9] $SCRATCH/$what.out"
  address=$(sed -n 's|.*\(http://[0-9.]*:[0-9]*\).*|\1|p' "$SCRATCH/$what.out" | head -n 1)
}

# serve_latest NAME: an engine on the latest checkpoint of run NAME, and a proxy in front of it at $address.
serve_latest() {
  checkpoint=$SCRATCH/$1/checkpoints/$(cat "$SCRATCH/$1/checkpoints/latest")
  start_server engine "$K2RL" rollout --model "$checkpoint" --listen 127.0.0.1:0
  start_server proxy "$K2RL" proxy --listen 127.0.0.1:0 --engine "$address"
}
