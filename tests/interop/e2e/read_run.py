"""TensorBoard's own reader finds in a run's event files the steps and the values of its metrics.jsonl.

usage: read_run.py RUN_DIRECTORY
"""
import json
import sys

import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

directory = sys.argv[1]
events = EventAccumulator(directory + "/tensorboard", size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
scalars = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}

# kind of line -> the key that counts its steps, and the groups of tags that its values may stand under
KINDS = {"pretrain": ("pretrain_step", ["pretrain"]), "iteration": ("iteration", ["run", "train"]), "eval": ("iteration", ["eval"])}
lines = [json.loads(line) for line in open(directory + "/metrics.jsonl")]
expected = {}
for line in lines:
    step, groups = KINDS[line["kind"]]
    for key, value in line.items():
        for group in groups:
            if f"{group}/{key}" in scalars:
                expected.setdefault(f"{group}/{key}", {})[line[step]] = numpy.float32(value)

for tag in ("pretrain/loss", "run/reward", "train/loss", "train/grad_norm", "train/mismatch_max", "train/load_max_vio", "eval/accuracy"):
    assert tag in scalars, f"no {tag} among {sorted(scalars)}"
for tag, points in scalars.items():
    want = expected.get(tag)
    assert want is not None, f"{tag} is not in metrics.jsonl"
    assert sorted(points) == sorted(want), f"{tag}: steps {sorted(points)}, metrics.jsonl has {sorted(want)}"
    for step, value in points.items():
        assert numpy.isclose(value, want[step], rtol=1e-6, atol=0), f"{tag}, step {step}: {value}, metrics.jsonl has {want[step]}"

config = json.load(open(directory + "/config.json"))
counts = {tag: len(points) for tag, points in scalars.items()}
assert counts["run/groups"] == config["iterations"], counts
assert max(scalars["pretrain/loss"]) == config["pretrain"]["steps"]
assert all(value == 0 for value in scalars["train/mismatch_max"].values()), "trainer and engine disagree"
text = events.Tensors("config")[0].tensor_proto.string_val[0]
assert json.loads(text)["seed"] == config["seed"]
print(f"TensorBoard read {sum(counts.values())} values of {len(counts)} scalars, all as in metrics.jsonl")
