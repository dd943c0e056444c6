#!/usr/bin/env bash
# Twenty faults at random moments; `./run soak` does as many as one likes.
exec bash "$(dirname "$0")/soak" --kills 20 --json
