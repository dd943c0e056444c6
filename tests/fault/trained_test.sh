#!/usr/bin/env bash
# The soak's count of lost and repeated trajectories sees what a faulty master would have logged.
set -euo pipefail
. "$(dirname "$0")/trained.sh"

take_all() { # "STEP:GROUP:TRAJECTORIES ..."
  local one
  trained=() steps=()
  for one in $1; do trained_take ${one//:/ }; done
}

expect() { # WHAT LINES LOST REPEATED
  lost=0 repeated=0
  take_all "$2"
  trained_compare
  [ "$lost $repeated" = "$3 $4" ] || { echo "$1: found $lost lost and $repeated repeated, expected $3 and $4"; exit 1; }
  echo "$1: $lost lost, $repeated repeated"
}

calm="1:0:4 1:3:4 2:1:4 2:2:3 3:4:4"
take_all "$calm"
trained_keep
expect "undisturbed" "$calm" 0 0
expect "a batch made twice" "1:0:4 1:3:4 1:0:4 1:3:4 2:1:4 2:2:3 2:1:4 2:2:3 3:4:4" 0 0
expect "a group never trained" "1:0:4 1:3:4 2:1:4 3:4:4" 3 0
expect "a trajectory of a group missing" "1:0:4 1:3:3 2:1:4 2:2:3 3:4:4" 1 0
expect "a group trained in two steps" "1:0:4 1:3:4 2:1:4 2:2:3 2:0:4 3:4:4" 0 4
expect "a group trained in another step" "1:0:4 1:3:4 2:1:4 3:2:3 3:4:4" 3 3
expect "a group that should not be there" "1:0:4 1:3:4 2:1:4 2:2:3 3:4:4 3:9:4" 0 4
expect "a group with one more" "1:0:4 1:3:4 2:1:4 2:2:4 3:4:4" 0 1
expect "nothing at all" "" 19 0
