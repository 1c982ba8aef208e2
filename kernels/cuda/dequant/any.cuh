// A weight of any base, by its fields' descriptors alone: nothing here knows a layout or a quant type,
// so that a container packed for another machine runs. Slow, never wrong.
#pragma once
#include "../common.cuh"

// As `format_spec::plane::Field`, group sizes as logarithms; `encoding` is 0 for a field that the
// layout does not have.
struct AnyField {
  uint64_t base, row_group_stride, k_group_stride;
  uint32_t row_bits[8], k_bits[8];
  int32_t bias;
  uint8_t encoding, bits, shift, rows_log2, k_log2;
};
enum Encoding : uint8_t { UNSIGNED = 1, SIGNED, F16, BF16, F32 };

// By the ids of `FieldName`, less one.
enum FieldId { VALUE, QUANT, HIGH, SCALE, SCALE_HIGH, MIN, MIN_HIGH, D, DMIN, N_FIELDS };

struct AnyLayout {
  const uint8_t* object;
  AnyField fields[N_FIELDS];
};
// As in kernels/src/cuda/any.rs: arrays of them are in device memory.
static_assert(sizeof(AnyField) == 104 && sizeof(AnyLayout) == 8 + 9 * 104);

// Bits of a field at (row, k).
DEV uint32_t raw(const AnyLayout& l, FieldId id, uint32_t row, uint32_t k) {
  const AnyField& f = l.fields[id];
  const uint64_t group = f.base + (row >> f.rows_log2) * f.row_group_stride +
                         (k >> f.k_log2) * f.k_group_stride;
  uint32_t bit = f.shift;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (i < f.rows_log2) bit += (row >> i & 1) * f.row_bits[i];
    if (i < f.k_log2) bit += (k >> i & 1) * f.k_bits[i];
  }
  const uint8_t* at = l.object + group + bit / 8;
  // Bytes, since nothing says that a cell is aligned.
  uint32_t v = __ldg(at);
  if (f.bits >= 16) v |= static_cast<uint32_t>(__ldg(at + 1)) << 8;
  if (f.bits == 32) v |= static_cast<uint32_t>(__ldg(at + 2)) << 16 | static_cast<uint32_t>(__ldg(at + 3)) << 24;
  return f.bits >= 16 ? v : v >> (bit % 8) & ((1u << f.bits) - 1);
}

// The number of a field with its high bits and its bias.
DEV float number(const AnyLayout& l, FieldId low, FieldId high, uint32_t row, uint32_t k) {
  const AnyField& f = l.fields[low];
  uint32_t v = raw(l, low, row, k);
  switch (f.encoding) {
    case F32: return __uint_as_float(v);
    case BF16: return __uint_as_float(v << 16);
    case F16: return half_bits(v);
    case SIGNED: return static_cast<float>(static_cast<int32_t>(v << (32 - f.bits)) >> (32 - f.bits));
    default:
      if (high != low && l.fields[high].encoding) v |= raw(l, high, row, k) << f.bits;
      return static_cast<float>(static_cast<int32_t>(v) + f.bias);
  }
}

// The weight, with the roundings of `Layout::value`: products and the sum each rounded.
DEV float value(const AnyLayout& l, uint32_t row, uint32_t k) {
  const auto has = [&](FieldId id) { return l.fields[id].encoding != 0; };
  if (has(VALUE)) return number(l, VALUE, VALUE, row, k);
  float v = has(D) ? number(l, D, D, row, k) : 1.0f;
  if (has(SCALE)) v = __fmul_rn(v, number(l, SCALE, SCALE_HIGH, row, k));
  v = __fmul_rn(v, number(l, QUANT, HIGH, row, k));
  if (!has(MIN)) return v;
  const float min = number(l, MIN, MIN_HIGH, row, k);
  return has(DMIN) ? __fadd_rn(v, -__fmul_rn(number(l, DMIN, DMIN, row, k), min)) : __fadd_rn(v, min);
}
