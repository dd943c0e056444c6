#!/bin/sh
# fuzz.sh BUILD SECONDS - run every fuzz target of a build for so long, each on its committed corpus. A finding ends with status 1.
set -u
build=$1
seconds=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d /tmp/k2rl_fuzz_XXXXXX)
trap 'rm -rf "$work"' EXIT
ran=0 bad=0
for target in "$build"/*_fuzz; do
  [ -x "$target" ] || continue
  name=$(basename "$target")
  folder=$(dirname "$(grep -rlE "NAME $name( |\$)" "$root/tests/fuzz" --include=CMakeLists.txt | head -n 1)")
  corpus=$folder/corpus
  [ -d "$corpus/${name%_fuzz}" ] && corpus=$corpus/${name%_fuzz}
  mkdir -p "$work/$name"
  if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$build/$name-" "$work/$name" \
    "$corpus" >"$work/$name.log" 2>&1; then
    echo "$name: $(grep -E '^Done' "$work/$name.log" | tail -n 1)"
  else
    echo "$name: FINDING, input kept as $build/$name-*"
    tail -n 25 "$work/$name.log"
    bad=$((bad + 1))
  fi
  ran=$((ran + 1))
done
echo "$ran fuzz targets, $bad with findings"
[ "$ran" -gt 0 ] && [ "$bad" = 0 ]
