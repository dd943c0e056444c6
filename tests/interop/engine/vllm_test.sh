#!/usr/bin/env bash
# vLLM serves a trained quickstart: the greedy tokens of fifty held-out prompts are those of our engine. K2_VLLM names a Python that has
# vLLM, where that of K2_PYTHON has not.
. "$(dirname "$0")/trained.sh"
K2_PYTHON=${K2_VLLM:-${K2_PYTHON:-}} python_with vllm
trained_quickstart
"$python" "$HERE/greedy.py" vllm "$checkpoint" "$address" "$heldout" || fail "greedy.py"
