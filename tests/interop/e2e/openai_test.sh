#!/usr/bin/env bash
# The stock OpenAI client, plain and streaming, talks through the proxy to the engine on a run's checkpoint.
. "$(dirname "$0")/interop_lib.sh"
python_with openai
small_config
run one
serve_latest one
"$python" "$HERE/../proxy/openai_client.py" "$address" k2rl || fail "openai_client.py"
