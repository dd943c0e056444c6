"""TensorBoard's own reader reads what k2rl writes. Exit 77 where TensorBoard is not installed.

K2_PYTHON names another interpreter that has it."""
import os
import subprocess
import sys
import tempfile

if os.environ.get("K2_PYTHON") and os.environ.get("K2_PYTHON_USED") != "1":
    os.environ["K2_PYTHON_USED"] = "1"
    os.execv(os.environ["K2_PYTHON"], [os.environ["K2_PYTHON"]] + sys.argv)
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as e:
    print(f"skipped: {e} (pip install tensorboard, or set K2_PYTHON)")
    sys.exit(77)

with tempfile.TemporaryDirectory() as d:
    subprocess.run([sys.argv[1], d], check=True)
    acc = EventAccumulator(d, size_guidance={"scalars": 0, "tensors": 0})
    acc.Reload()
    tags = acc.Tags()
    assert sorted(tags["scalars"]) == ["loss", "reward/mean"], tags
    reward = acc.Scalars("reward/mean")
    assert [e.step for e in reward] == list(range(100))
    assert all(e.value == e.step / 128.0 and e.wall_time == 1e9 + e.step for e in reward)
    assert [e.value for e in acc.Scalars("loss")] == [-float(i) for i in range(100)]
    text = acc.Tensors("config")[0].tensor_proto.string_val[0]
    assert text == b'{"seed": 1}', text
print("TensorBoard read 200 scalars and a text")
