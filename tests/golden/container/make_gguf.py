#!/usr/bin/env python3
"""Writes v1.0.gguf: every quant type, a vector, a tensor of three dimensions, odd padding.

usage: make_gguf.py OUT.gguf      (needs the PyPI packages gguf and numpy)
"""
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, GGUFReader, GGUFWriter

rng = np.random.default_rng(1)
writer = GGUFWriter(sys.argv[1], "llama")
writer.add_string("general.name", "fixture")
writer.add_array("fixture.numbers", [1, -2, 3])


def blocks(quant, rows, row_len):
    """Random blocks whose f16 factors are small and finite."""
    n_elems, n_bytes = GGML_QUANT_SIZES[quant]
    raw = rng.integers(0, 256, (rows, row_len // n_elems, n_bytes), dtype=np.uint8)
    factors = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82],
               T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}[quant]
    for at in factors:
        values = rng.uniform(1e-4, 1e-2, raw.shape[:2]).astype("<f2")
        raw[:, :, at:at + 2] = values.view(np.uint8).reshape(*raw.shape[:2], 2)
    return raw.reshape(rows, -1)


writer.add_tensor("norm.weight", rng.standard_normal(5).astype(np.float32))
writer.add_tensor("half.weight", rng.standard_normal((3, 7)).astype(np.float16))
bfloat = rng.standard_normal((2, 9)).astype(np.float32).view(np.uint16)[:, 1::2]
writer.add_tensor("bfloat.weight", np.ascontiguousarray(bfloat).view(np.uint8), raw_dtype=T.BF16)
for quant in (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0):
    writer.add_tensor(f"{quant.name.lower()}.weight", blocks(quant, 2, 96), raw_dtype=quant)
for quant in (T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K):
    writer.add_tensor(f"{quant.name.lower()}.weight", blocks(quant, 2, 512), raw_dtype=quant)
writer.add_tensor("q6_k.weight", blocks(T.Q6_K, 5, 512), raw_dtype=T.Q6_K)
writer.add_tensor("experts.weight", blocks(T.Q6_K, 6, 256).reshape(3, 2, -1), raw_dtype=T.Q6_K)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

with open(sys.argv[1], "r+b") as file:
    # norm.weight is 20 bytes long, so that 12 bytes of padding follow it.
    file.seek(GGUFReader(sys.argv[1]).data_offset + 25)
    file.write(b"odd padding"[:5])
    file.seek(0, 2)
    file.write(b"odd bytes behind the data")
