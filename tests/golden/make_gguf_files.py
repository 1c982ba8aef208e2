#!/usr/bin/env python3
"""Writes golden/gguf/: small files by the PyPI package `gguf`, whose contents tests/it/gguf.rs repeats.

Run from this folder: python3 make_gguf_files.py  (pip install gguf==0.19.0 numpy)
"""

import pathlib

import gguf
import numpy as np
from gguf import GGUFValueType as T


def bytes_of(n):
    return (np.arange(n) % 251).astype(np.uint8)


def add_tensors(writer):
    writer.add_tensor("a.weight", np.array([1.5, -2.0, 0.25], dtype=np.float32))
    writer.add_tensor("b.weight", np.arange(12, dtype=np.float16).reshape(2, 3, 2))
    # Raw blocks: the shape is in bytes, innermost last.
    writer.add_tensor("c.weight", bytes_of(3 * 2 * 210).reshape(3, 420), raw_dtype=gguf.GGMLQuantizationType.Q6_K)
    writer.add_tensor("d.weight", bytes_of(5 * 18).reshape(5, 18), raw_dtype=gguf.GGMLQuantizationType.Q4_0)


def write(name, fill):
    path = pathlib.Path(__file__).parent / "gguf" / name
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    add_tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def every_value(writer):
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint32("t.u32", 4_000_000_000)
    writer.add_int32("t.i32", -2_000_000_000)
    writer.add_float32("t.f32", 0.1)
    writer.add_uint64("t.u64", (1 << 64) - 1)
    writer.add_int64("t.i64", -(1 << 63))
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.bool", True)
    writer.add_string("t.str", "žluťoučký 🐎")
    writer.add_array("t.strs", ["<s>", "▁a", "b"])
    writer.add_key_value("t.f32s", [0.5, -1.0], T.ARRAY, T.FLOAT32)
    writer.add_key_value("t.i32s", [3, -1, 2], T.ARRAY, T.INT32)
    writer.add_key_value("t.u8s", [1, 2, 255], T.ARRAY, T.UINT8)
    writer.add_key_value("t.bools", [True, False], T.ARRAY, T.BOOL)


write("every_value.gguf", every_value)
write("align_128.gguf", lambda writer: writer.add_custom_alignment(128))
