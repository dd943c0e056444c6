# Sourced: which step trained which trajectories, told from the lines that the master logs when it puts a group into a batch.
# The master's counters are not asked: what is checked here is what the trainers were given.

declare -A trained steps # by group: trajectories; the steps that had it

# A batch made anew after a death says the same again; another step with the same group is a repetition.
trained_take() { # STEP GROUP TRAJECTORIES
  [ "$3" -gt 0 ] || return 0
  trained[$2]=$3
  [[ " ${steps[$2]:-} " == *" $1 "* ]] || steps[$2]+="${steps[$2]:+ }$1"
}

trained_keep() { # what has been taken is what others are compared with; begin anew
  local group
  declare -gA want_trained=() want_steps=()
  for group in "${!trained[@]}"; do want_trained[$group]=${trained[$group]} want_steps[$group]=${steps[$group]}; done
  trained=() steps=()
}

trained_compare() { # adds to $lost and $repeated
  local group n
  for group in "${!want_trained[@]}"; do
    n=$((want_trained[$group] - ${trained[$group]:-0}))
    [ "$n" -le 0 ] || lost=$((lost + n))
    [ "$n" -ge 0 ] || repeated=$((repeated - n))
    # In another step than in the undisturbed run: it is missing there, and once too much here.
    [ -z "${steps[$group]:-}" ] || [[ " ${steps[$group]} " == *" ${want_steps[$group]} "* ]] ||
      { lost=$((lost + want_trained[$group])) repeated=$((repeated + trained[$group])); continue; }
    set -- ${steps[$group]:-}
    [ $# -le 1 ] || repeated=$((repeated + ($# - 1) * trained[$group]))
  done
  for group in "${!trained[@]}"; do
    [ -n "${want_trained[$group]:-}" ] || repeated=$((repeated + trained[$group])) # the undisturbed run did not train it
  done
}
