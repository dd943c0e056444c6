#!/bin/sh
# bench.sh BUILD_DIR [NAME...] - run every bench program of a build (BUILD_DIR/*_bench) and every tests/bench/*/run.sh BUILD_DIR, one after the
# other, and print one CSV. With names, only those: the program without _bench, or the folder of the script.
# A bench prints lines `name,value,unit,ratio,against`; what it says on stderr is shown. One that exits with 77 has said why it was skipped.
set -u
build=${1:?usage: bench.sh BUILD_DIR [NAME...]}
shift
header='name,value,unit,ratio,against'
failed=0

wanted() { # is NAME among the arguments, or are there none?
  name=$1
  shift
  [ $# -eq 0 ] && return 0
  for w in "$@"; do [ "$w" = "$name" ] && return 0; done
  return 1
}

measure() { # NAME COMMAND...
  name=$1
  shift
  out=$("$@")
  rc=$?
  printf '%s\n' "$out" | grep -v -e "^$header\$" -e '^$'
  case $rc in
    0) ;;
    77) echo "bench.sh: $name was skipped" >&2 ;;
    *) echo "bench.sh: $name ended with status $rc" >&2; failed=1 ;;
  esac
}

echo "$header"
for program in "$build"/*_bench; do
  [ -x "$program" ] || continue
  name=$(basename "$program" _bench)
  wanted "$name" "$@" && measure "$name" "$program"
done
for script in "$(dirname "$0")"/../bench/*/run.sh; do
  [ -f "$script" ] || continue
  name=$(basename "$(dirname "$script")")
  wanted "$name" "$@" && measure "$name" sh "$script" "$build"
done
exit "$failed"
