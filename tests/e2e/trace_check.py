"""A trace as `k2rl trace` writes it: is it one, after the Trace Event Format? Prints counts; any fault is an AssertionError."""
import collections
import json
import sys

with open(sys.argv[1], encoding="utf-8") as f:
    trace = json.load(f)
events = trace["traceEvents"]
named, threads, last = set(), set(), {}
open_async, flows, count = collections.Counter(), collections.defaultdict(list), collections.Counter()
slices = collections.defaultdict(list)
for e in events:
    ph = e["ph"]
    count[ph] += 1
    if ph == "M":
        (named if e["name"] == "process_name" else threads).add((e["pid"], e.get("tid")))
        assert e["args"], e
        continue
    assert e["ts"] >= 0 and e["name"] and e["cat"] and isinstance(e["args"], dict) if ph not in "sf" else e["id"], e
    assert (e["pid"], None) in named, f"no process_name before {e}"
    assert (e["pid"], e["tid"]) in threads, f"no thread_name before {e}"
    place = e["pid"], e["tid"]
    if ph in "be":  # requests: in pairs, each begun before it ends
        key = e["pid"], e["cat"], e["name"], e["id2"]["local"]
        open_async[key] += 1 if ph == "b" else -1
        assert open_async[key] in (0, 1), e
        continue
    assert e["ts"] >= last.get(place, 0), f"time runs back at {e}"
    last[place] = e["ts"]
    if ph == "X":  # slices of a thread lie inside one another or side by side
        assert e["dur"] >= 0, e
        stack = slices[place]
        while stack and stack[-1] <= e["ts"] + 1e-3:
            stack.pop()
        assert not stack or e["ts"] + e["dur"] <= stack[-1] + 2e-3, f"{e} ends behind what encloses it, at {stack[-1]}"
        stack.append(e["ts"] + e["dur"])
    elif ph in "sf":
        flows[e["id"]].append(ph)
    elif ph == "C":
        assert all(isinstance(v, int) for v in e["args"].values()), e
    else:
        assert ph == "i", e
assert not any(open_async.values()), "a request has no end"
assert named and count["X"], "nothing is in it"
arrows = sum("s" in f and "f" in f for f in flows.values())
print(" ".join(f"{k}={v}" for k, v in sorted(count.items())), f"arrows={arrows}", f"processes={len(named)}")
