"""Write the .k2v files that tests/support/vectors.h reads (make_vectors.py of ../model describes the form)."""
import struct

import numpy as np


def write(path, records):
    with open(path, "wb") as f:
        f.write(b"K2VEC1\0\0" + struct.pack("<I", len(records)))
        for name, value in records.items():
            a = np.asarray(value)
            a = np.ascontiguousarray(a, np.int32 if np.issubdtype(a.dtype, np.integer) else np.float32)
            sizes = a.shape or (1,)
            f.write(struct.pack("<I", len(name)) + name.encode() + struct.pack("<II", int(a.dtype == np.int32), len(sizes)))
            f.write(struct.pack(f"<{len(sizes)}I", *sizes) + a.tobytes())
