#!/usr/bin/env python3
"""Writes golden/quant/: random blocks of every quant type and what the PyPI package `gguf` makes of them.

Run from this folder: python3 make_quant_vectors.py  (pip install gguf==0.19.0 numpy)

<type>.blocks holds the blocks as they lie in a GGUF file, <type>.f32 their elements as
little-endian f32. Every bit of a block is random, except that f16 factors are finite.
"""

import pathlib

import gguf
import numpy as np

# Type: number of blocks, byte offsets of f16 factors in a block.
TYPES = {
    "F32": (256, []),
    "F16": (1024, []),
    "BF16": (1024, []),
    "Q4_0": (32, [0]),
    "Q4_1": (32, [0, 2]),
    "Q5_0": (32, [0]),
    "Q5_1": (32, [0, 2]),
    "Q8_0": (32, [0]),
    "Q2_K": (8, [80, 82]),
    "Q3_K": (8, [108]),
    "Q4_K": (8, [0, 2]),
    "Q5_K": (8, [0, 2]),
    "Q6_K": (8, [208]),
}

# The first blocks take these factors: zeros, ones, smallest and largest of either sign.
EDGES = np.array([0x0000, 0x8000, 0x3C00, 0xBC00, 0x0001, 0x8001, 0x7BFF, 0xFBFF], dtype=np.uint16)

# Exponent bits of the plain floats, to leave out NaN (its payload is nobody's contract).
FLOATS = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}


def finite_halves(rng, n):
    bits = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    return np.where(bits & 0x7C00 == 0x7C00, bits & 0x83FF, bits)


def blocks_of(name, rng):
    n_blocks, offsets = TYPES[name]
    block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    blocks = rng.integers(0, 256, (n_blocks, block_bytes), dtype=np.uint8)
    for i, offset in enumerate(offsets):
        factors = finite_halves(rng, n_blocks)
        factors[: len(EDGES)] = np.roll(EDGES, i)
        # Of eight blocks the last four stay random.
        keep = min(len(EDGES), n_blocks // 2)
        factors[keep:] = finite_halves(rng, n_blocks - keep)
        blocks[:, offset : offset + 2] = factors.view(np.uint8).reshape(-1, 2)
    if name in FLOATS:
        dtype, exponent = FLOATS[name]
        values = blocks.reshape(-1).view(dtype)
        nan = (values & exponent) == exponent
        values[nan] &= np.array(~exponent & ((1 << values.itemsize * 8) - 1), dtype)
    return blocks


def main():
    folder = pathlib.Path(__file__).parent / "quant"
    rng = np.random.default_rng(20261129)
    for name in TYPES:
        blocks = blocks_of(name, rng)
        elems = gguf.quants.dequantize(blocks.reshape(-1), gguf.GGMLQuantizationType[name])
        (folder / f"{name.lower()}.blocks").write_bytes(blocks.tobytes())
        (folder / f"{name.lower()}.f32").write_bytes(elems.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
