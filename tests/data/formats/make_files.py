#!/usr/bin/env python3
"""make_files.py FOLDER: tiny.gguf and tiny.safetensors, written by the formats' own Python libraries.

pip install gguf numpy safetensors (made with gguf 0.19.0, safetensors 0.8.0).
"""
import sys

import gguf
import numpy as np
from safetensors.numpy import save_file


def make_gguf(path):
    w = gguf.GGUFWriter(path, "llama")
    w.add_uint8("t.u8", 200)
    w.add_int8("t.i8", -100)
    w.add_uint16("t.u16", 60000)
    w.add_int16("t.i16", -30000)
    w.add_uint32("t.u32", 4000000000)
    w.add_int32("t.i32", -2000000000)
    w.add_uint64("t.u64", 2**63 - 1)
    w.add_int64("t.i64", -(2**63))
    w.add_float32("t.f32", 0.1)
    w.add_float64("t.f64", 0.1)
    w.add_bool("t.true", True)
    w.add_bool("t.false", False)
    w.add_string("t.text", "na\u00efve \u2713")
    w.add_array("t.strings", ["a", "", "\u2581the"])
    w.add_array("t.ints", [1, -2, 3])
    w.add_array("t.floats", [0.5, -1.25])
    w.add_array("t.bools", [True, False, True])
    f32 = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8
    w.add_tensor("a.f32", f32)
    w.add_tensor("b.f16", np.array([[1.5, -2.0], [65504.0, 2.0**-24]], dtype=np.float16))
    rows = (np.arange(64, dtype=np.float32).reshape(2, 32) - 31) / 4
    q8 = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    w.add_tensor("c.q8_0", q8, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make_safetensors(path):
    save_file({"floats": np.array([[1.5, -2.25, 0.0], [3.0, 1e-8, -1e30]], dtype=np.float32),
               "bytes": np.array([1, 2, 255], dtype=np.uint8),
               "ids": np.array([-1, 2**40], dtype=np.int64),
               "halves": np.array([0.5, -1.0], dtype=np.float16),
               "scalar": np.array(7, dtype=np.int32),
               "empty": np.zeros((0, 4), dtype=np.float32)},
              path, metadata={"made_by": "safetensors 0.8.0", "accent": "na\u00efve \"quoted\""})


make_gguf(sys.argv[1] + "/tiny.gguf")
make_safetensors(sys.argv[1] + "/tiny.safetensors")
