//! `kernels/cuda/layout.cuh` is generated here from the layouts, and compared.
//! `BLESS=1 cargo test -p kernels --test layout_cuh` rewrites it.

#![allow(clippy::unwrap_used)] // writing to a String

use std::fmt::Write as _;
use std::path::PathBuf;

use format_spec::plane::{Encoding, Field};
use format_spec::{Geometry, Layout, PlaneKind, QuantType};

const HEAD: &str = "\
// Generated from the layouts of format-spec by kernels/tests/layout_cuh.rs; do not edit.
//
// One struct for each plane kind and quant type, with the index function of each of its fields:
// where the bits for (row, k) lie. What depends on the shape of a tensor is an argument, and the
// host takes it from the layout's descriptor: no kernel computes a stride from a shape.
#pragma once
#include <cstdint>
";

/// Shapes that tell what depends on the shape: odd and even, below and above every alignment.
fn shapes(block_elems: u64) -> [Geometry; 5] {
    let unit = block_elems.max(16);
    [(1, 1), (4, 2), (5, 3), (40, 14), (513, 7)]
        .map(|(n_rows, n)| Geometry { n_rows, row_len: n * unit })
}

/// A number that is the same for all shapes.
fn invariant<T: PartialEq + Copy>(layouts: &[Layout], of: impl Fn(&Layout) -> T) -> Option<T> {
    let first = of(layouts.first()?);
    layouts.iter().all(|layout| of(layout) == first).then_some(first)
}

fn type_name(kind: PlaneKind, quant: QuantType) -> String {
    let kind = kind.name();
    let (first, rest) = kind.split_at(1);
    format!("{}{rest}{}", first.to_uppercase(), quant.name().to_uppercase().replace('_', ""))
}

/// Sum of the strides of the bits that are set in a position.
fn spread(position: &str, bits: &[u32; 8]) -> Vec<String> {
    let mut terms = Vec::new();
    let mut i = 0;
    while i < 8 {
        if bits[i] == 0 {
            i += 1;
            continue;
        }
        // Neighbours that double are one multiplication.
        let mut n = 1;
        while i + n < 8 && bits[i + n] == bits[i] << n {
            n += 1;
        }
        terms.push(format!("({position} >> {i} & {}) * {}", (1u32 << n) - 1, bits[i]));
        i += n;
    }
    terms
}

fn field(out: &mut String, layouts: &[Layout], nth: usize) {
    let of = |layout: &Layout| layout.fields()[nth];
    let first: Field = of(&layouts[0]);
    let name = first.name.name();
    let upper = name.to_uppercase();
    let constants = [
        ("BASE", invariant(layouts, |layout| of(layout).base)),
        ("ROW_GROUP_STRIDE", invariant(layouts, |layout| of(layout).row_group_stride)),
        ("K_GROUP_STRIDE", invariant(layouts, |layout| of(layout).k_group_stride)),
    ];
    let mut arguments = "uint64_t row, uint64_t k".to_owned();
    let mut names = Vec::new();
    for (constant, value) in constants {
        match value {
            Some(value) => {
                writeln!(out, "    static constexpr unsigned {upper}_{constant} = {value};")
                    .unwrap();
                names.push(format!("{upper}_{constant}"));
            }
            None => {
                let argument = constant.to_lowercase();
                write!(arguments, ", uint64_t {argument}").unwrap();
                names.push(argument);
            }
        }
    }
    let numbers = [
        ("BITS", u32::from(first.bits)),
        ("SHIFT", u32::from(first.shift)),
        ("ROWS_PER_GROUP", first.rows_per_group),
        ("K_PER_GROUP", first.k_per_group),
    ];
    for (constant, value) in numbers {
        writeln!(out, "    static constexpr unsigned {upper}_{constant} = {value};").unwrap();
    }
    if first.encoding == Encoding::Unsigned || first.encoding == Encoding::Signed {
        writeln!(out, "    static constexpr int {upper}_BIAS = {};", first.bias).unwrap();
    }
    let mut bits = vec![first.shift.to_string()];
    bits.extend(spread("row", &first.row_bits));
    bits.extend(spread("k", &first.k_bits));
    let bits = bits.join(" + ");
    writeln!(
        out,
        "    // Byte of the object, and lowest bit inside it.\n    \
         static __device__ __forceinline__ uint64_t {name}_byte({arguments}) {{\n        \
         return {} + row / {} * {} + k / {} * {} + ({bits}) / 8;\n    }}\n    \
         static __device__ __forceinline__ unsigned {name}_shift(uint64_t row, uint64_t k) {{\n        \
         return ({bits}) % 8;\n    }}",
        names[0], first.rows_per_group, names[1], first.k_per_group, names[2],
    )
    .unwrap();
}

fn header() -> String {
    let mut out = HEAD.to_owned();
    // A GPU reads `tile` through the descriptors alone.
    for &kind in PlaneKind::ALL.iter().filter(|&&kind| kind != PlaneKind::Tile) {
        for &quant in QuantType::ALL.iter().filter(|&&quant| kind.applies_to(quant)) {
            // The weights themselves lie alike for every type: one struct is enough.
            if kind == PlaneKind::Bf16 && quant != QuantType::BF16 {
                continue;
            }
            let layouts = shapes(quant.block_elems() as u64)
                .map(|shape| Layout::new(kind, quant, shape).expect("whole blocks"));
            let name =
                if kind == PlaneKind::Bf16 { "Bf16".to_owned() } else { type_name(kind, quant) };
            writeln!(out, "\nstruct {name} {{").unwrap();
            if kind == PlaneKind::Padded {
                writeln!(
                    out,
                    "    static constexpr unsigned BLOCK_ELEMS = {};",
                    quant.block_elems()
                )
                .unwrap();
            }
            if let Some(Some(stride)) = invariant(&layouts, Layout::block_stride) {
                writeln!(out, "    static constexpr unsigned BLOCK_STRIDE = {stride};").unwrap();
            }
            for nth in 0..layouts[0].fields().len() {
                field(&mut out, &layouts, nth);
            }
            out.push_str("};\n");
        }
    }
    out
}

#[test]
fn header_is_what_the_layouts_say() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cuda/layout.cuh");
    let expected = header();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &expected).expect("a writable tree");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} is stale: run this test with BLESS=1", path.display());
}
