#!/usr/bin/env python3
"""An independent reader of .mpk containers, written from docs/FORMAT.md and nothing else.

usage: read_mpk.py MODEL.mpk MODEL.gguf      (needs the PyPI packages gguf and numpy)

Checks header, index, order, padding and every sha256, then compares rows of every object with what
the PyPI package `gguf` makes of the tensor: the base must be its weights bit for bit, and
exp * dsc must be as well. Exits with an assertion where the file or the document is wrong.
"""
import sys
from hashlib import sha256
from struct import calcsize, unpack_from

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

LEAF = 4 << 20
KINDS = {1: "padded", 2: "exp", 3: "dsc", 8: "tile"}
VALUE, QUANT, HIGH, SCALE, SCALE_HIGH, MIN, MIN_HIGH, D, DMIN = range(1, 10)
SIGNED, F16, BF16, F32 = range(2, 6)


def align(n, to):
    return -(-n // to) * to


def records(bytes_, at, n, form):
    size = calcsize(form)
    return [unpack_from(form, bytes_, at + i * size) for i in range(n)], at + n * size


class Field:
    def __init__(self, record):
        (self.name, self.encoding, self.bits, self.shift, self.bias, self.base, self.rows_per_group,
         self.k_per_group, self.row_group_stride, self.k_group_stride, _, reserved) = record[:12]
        self.row_bits, self.k_bits = record[12:20], record[20:28]
        assert reserved == 0

    def read(self, data, rows, ks):
        row, k = np.meshgrid(rows, ks, indexing="ij")
        bit = 8 * (self.base + row // self.rows_per_group * self.row_group_stride
                   + k // self.k_per_group * self.k_group_stride) + self.shift
        for i in range(8):
            bit = bit + (row % self.rows_per_group >> i & 1) * self.row_bits[i]
            bit = bit + (k % self.k_per_group >> i & 1) * self.k_bits[i]
        byte, shift = bit // 8, bit % 8
        raw = data[byte].astype(np.uint32)
        for i in range(1, self.bits // 8):
            raw |= data[byte + i].astype(np.uint32) << (8 * i)
        if self.encoding == F32:
            return raw.view(np.float32)
        if self.encoding == BF16:
            return (raw << 16).view(np.float32)
        if self.encoding == F16:
            return raw.astype(np.uint16).view(np.float16).astype(np.float32)
        raw = raw.astype(np.int64) >> shift & (1 << self.bits) - 1
        if self.encoding == SIGNED:
            raw = np.where(raw >> self.bits - 1 == 1, raw - (1 << self.bits), raw)
        return raw


def value(fields, data, rows, ks):
    fields = {field.name: field for field in fields}

    def number(low, high=None):
        field = fields[low]
        raw = field.read(data, rows, ks)
        if field.encoding in (F16, BF16, F32):
            return raw
        if high in fields:
            raw = raw | fields[high].read(data, rows, ks) << field.bits
        return (raw + field.bias).astype(np.float32)

    if VALUE in fields:
        return number(VALUE)
    product = number(D) if D in fields else np.float32(1)
    if SCALE in fields:
        product = product * number(SCALE, SCALE_HIGH)
    if QUANT in fields:
        product = product * number(QUANT, HIGH)
    if DMIN in fields:
        return product - number(DMIN) * number(MIN, MIN_HIGH)
    return product + number(MIN) if MIN in fields else product


def bits(values):
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def main(container, gguf):
    file = np.memmap(container, np.uint8, "r")
    header = bytes(file[:128])
    assert header[:8] == bytes.fromhex("894D504B0D0A1A0A")
    major, minor, header_len, file_len, index_at, index_len = unpack_from("<HHIQQQ", header, 8)
    index_sha, _compat, incompat, data_at = unpack_from("<32sQQQ", header, 40)
    assert (major, minor, header_len, index_at, incompat) == (1, 0, 128, 128, 0)
    assert file_len == len(file) and sha256(header[:96]).digest() == header[96:]
    index = bytes(file[index_at:index_at + index_len])
    assert sha256(index).digest() == index_sha
    end = index_at + index_len
    head = unpack_from("<QQ32sQQ32sIIII", index)
    for at, n_bytes, digest in (head[0:3], head[3:6]):
        if n_bytes:
            assert at == align(end, 64) and not file[end:at].any()
            end = at + n_bytes
            assert sha256(file[at:end]).digest() == digest
    assert data_at == align(end, 4096) and not file[end:data_at].any()
    n_objects, n_fields, n_leaves, names_len = head[6:]
    objects, at = records(index, 112, n_objects, "<IIHHIIIQQQQQ32s")
    fields, at = records(index, at, n_fields, "<BBBBiQIIQQII8I8I")
    leaves, at = records(index, at, n_leaves, "<32s")
    leaves, names = [leaf for leaf, in leaves], index[at:]
    assert len(names) == names_len
    tensors = {tensor.name: tensor for tensor in GGUFReader(gguf).tensors}
    end, planes = data_at, {}
    for (name_len, tensor_len, kind, n, quant, first, reserved, rows, row_len, at, n_bytes, _xxh3,
         digest) in objects:
        name, names = names[:name_len].decode(), names[name_len:]
        tensor = tensors[name[:tensor_len]]
        assert name == f"{tensor.name}__{KINDS[kind]}{rows}x{row_len}" and reserved == 0
        assert at == align(end, 256) and not file[end:at].any()
        end = at + n_bytes
        data = file[at:end]
        own, leaves = leaves[:align(n_bytes, LEAF) // LEAF], leaves[align(n_bytes, LEAF) // LEAF:]
        assert [sha256(data[i:i + LEAF]).digest() for i in range(0, n_bytes, LEAF)] == own
        assert sha256(b"".join(own)).digest() == digest
        assert tensor.tensor_type == quant and tensor.n_elements == rows * row_len
        some = np.unique([0, min(1, rows - 1), rows // 2, rows - 1])
        raw = tensor.data.reshape(rows, -1)[some]
        weights = bits(dequantize(raw, tensor.tensor_type)).reshape(len(some), -1)
        held = value([Field(record) for record in fields[first:first + n]], data, some,
                     np.arange(row_len))
        if KINDS[kind] in ("padded", "tile"):
            assert (bits(held) == weights).all(), name
        else:
            planes.setdefault(tensor.name, []).append(held)
        if len(planes.get(tensor.name, ())) == 2:
            exp, dsc = planes.pop(tensor.name)
            assert (bits(dsc * exp) == weights).all(), name
    assert not leaves and not names and file_len == align(end, 4096) and not file[end:].any()
    print(f"{n_objects} objects, root {sha256(header + index).hexdigest()}")


main(*sys.argv[1:])
