//! Sizes, and producers against the fields.

use super::*;

fn geometry(n_rows: u64, row_len: u64) -> Geometry {
    Geometry { n_rows, row_len }
}

/// Reproducible bytes (splitmix64).
fn random_bytes(seed: u64, n_bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (0..n_bytes).map(|_| next() as u8).collect()
}

fn produce(layout: &Layout, gguf: &[u8]) -> Vec<u8> {
    let mut object = vec![0xaa; layout.len_bytes() as usize];
    layout.write_units(gguf, 0..layout.n_units(), &mut object).expect("lengths fit");
    object
}

#[test]
fn every_cell_lies_in_its_field_and_its_object() {
    for &kind in PlaneKind::ALL {
        for &quant in QuantType::ALL.iter().filter(|&&quant| kind.applies_to(quant)) {
            let row_len = 2 * quant.block_elems().max(16) as u64;
            let layout = Layout::new(kind, quant, geometry(5, row_len)).expect("valid");
            for field in layout.fields() {
                for row in 0..5 {
                    for k in 0..row_len {
                        let cell = field.locate(row, k);
                        let start = field.base
                            + row / u64::from(field.rows_per_group) * field.row_group_stride
                            + k / u64::from(field.k_per_group) * field.k_group_stride;
                        let end = cell.byte + u64::from((cell.bits + cell.shift).div_ceil(8));
                        assert!(
                            cell.byte >= start && end <= start + u64::from(field.bytes),
                            "{kind:?} {quant:?} {field:?} {row} {k}"
                        );
                        assert!(end <= layout.len_bytes());
                        assert!(cell.bits >= 16 && cell.shift == 0 || cell.shift + cell.bits <= 8);
                    }
                }
            }
        }
    }
}

#[test]
fn bytes_of_bases_go_back_to_gguf() {
    let bases = PlaneKind::ALL.iter().filter(|kind| kind.is_base());
    let pairs = bases.flat_map(|kind| QuantType::ALL.iter().map(move |&quant| (*kind, quant)));
    let pairs = pairs.filter(|(kind, quant)| kind.applies_to(*quant));
    for ((kind, quant), n_rows) in
        pairs.flat_map(|pair| [1, 2, 4, 7, 16, 35].map(|rows| (pair, rows)))
    {
        let row_len = 3 * quant.block_elems() as u64;
        let layout = Layout::new(kind, quant, geometry(n_rows, row_len)).expect("valid");
        let gguf = random_bytes(u64::from(quant.ggml_id()), layout.gguf_bytes() as usize);
        let object = produce(&layout, &gguf);
        assert_eq!(layout.padding().first_nonzero(0, &object), None);
        let mut back = vec![0; gguf.len()];
        layout.restore_units(&object, &mut back).expect("lengths fit");
        assert!(back == gguf, "{kind:?} {} {n_rows}", quant.name());
    }
}

#[test]
fn planes_say_what_the_base_says() {
    let shapes = [(64, 256), (40, 512), (24, 768), (5, 1024), (1, 256), (7, 256)];
    let pairs = QuantType::ALL.iter().flat_map(|&quant| {
        let planes = PlaneKind::ALL.iter().filter(move |kind| kind.applies_to(quant));
        planes.map(move |&kind| (quant, kind))
    });
    for ((quant, kind), (n_rows, row_len)) in
        pairs.flat_map(|pair| shapes.map(|shape| (pair, shape)))
    {
        if kind == PlaneKind::Padded {
            continue;
        }
        let base = Layout::new(PlaneKind::Padded, quant, geometry(n_rows, row_len)).expect("valid");
        let gguf = random_bytes(n_rows, base.gguf_bytes() as usize);
        let base_bytes = produce(&base, &gguf);
        let plane = Layout::new(kind, quant, geometry(n_rows, row_len)).expect("valid");
        let mut plane_bytes = produce(&plane, &gguf);
        assert_eq!(plane.padding().first_nonzero(0, &plane_bytes), None);
        assert_eq!(find_mismatch((&base, &base_bytes), (&plane, &plane_bytes), 0..n_rows), None);
        // Every field is looked at: one flipped bit of its last cell is found where it is. A bit
        // of the lowest value may not change a float that is NaN or infinite already.
        for field in plane.fields() {
            let cell = field.locate(n_rows - 1, row_len - 32);
            let before = plane.value(&plane_bytes, n_rows - 1, row_len - 32);
            plane_bytes[cell.byte as usize] ^= 1 << cell.shift;
            let mismatch =
                find_mismatch((&base, &base_bytes), (&plane, &plane_bytes), n_rows - 1..n_rows);
            plane_bytes[cell.byte as usize] ^= 1 << cell.shift;
            if !before.is_finite() {
                continue;
            }
            let found = mismatch.unwrap_or_else(|| panic!("{quant:?} {kind:?} {:?}", field.name));
            assert_eq!(found.row, n_rows - 1);
        }
    }
}

/// Equal bits; of two NaN the payload does not matter.
fn assert_same(found: f32, expected: f32, context: std::fmt::Arguments<'_>) {
    let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
    assert!(same, "{context}: {found:e} instead of {expected:e}");
}

#[test]
fn value_through_fields_is_the_dequantized_weight() {
    const ROWS: usize = 64;
    for &quant in QuantType::ALL {
        let row_len = 4 * quant.block_elems();
        let shape = geometry(ROWS as u64, row_len as u64);
        let layout = Layout::new(PlaneKind::Padded, quant, shape).unwrap();
        // Any bytes are valid blocks; NaN and infinite factors occur among them.
        let gguf = random_bytes(7 + u64::from(quant.ggml_id()), layout.gguf_bytes() as usize);
        let object = produce(&layout, &gguf);
        let mut expected = vec![0.0; quant.block_elems()];
        for (i, block) in gguf.chunks_exact(quant.block_bytes()).enumerate() {
            quant.dequantize_block(block, &mut expected);
            let (row, first) = (i / 4, i % 4 * quant.block_elems());
            for (k, &expected) in expected.iter().enumerate() {
                let found = layout.value(&object, row as u64, (first + k) as u64);
                assert_same(found, expected, format_args!("{quant:?} {row} {}", first + k));
            }
        }
    }
}

#[test]
fn value_of_exp_times_value_of_dsc_is_the_weight() {
    let shape = geometry(5, 512);
    let kinds = [PlaneKind::Padded, PlaneKind::Exp, PlaneKind::Dsc];
    let layouts = kinds.map(|kind| Layout::new(kind, QuantType::Q6_K, shape));
    let layouts = layouts.map(Result::unwrap);
    let gguf = random_bytes(3, layouts[0].gguf_bytes() as usize);
    let objects: Vec<_> = layouts.iter().map(|layout| produce(layout, &gguf)).collect();
    for row in 0..5 {
        for k in 0..512 {
            let value = |i: usize| layouts[i].value(&objects[i], row, k);
            let [base, exp, dsc] = [value(0), value(1), value(2)];
            assert_same(dsc * exp, base, format_args!("{row} {k}"));
            assert!((-32.0..=31.0).contains(&exp));
        }
    }
}

#[test]
fn strides_and_sizes_are_those_of_the_specification() {
    // (kind, type, rows, row length) -> (row stride, block stride, bytes)
    let rows = [
        (PlaneKind::Padded, QuantType::Q6_K, 3, 768, Some(672), Some(224), 2016),
        (PlaneKind::Padded, QuantType::Q3_K, 1, 256, Some(112), Some(112), 112),
        (PlaneKind::Padded, QuantType::Q4_K, 2, 512, Some(288), Some(144), 576),
        (PlaneKind::Padded, QuantType::Q2_K, 2, 256, Some(96), Some(84), 192),
        (PlaneKind::Padded, QuantType::Q4_0, 2, 64, Some(48), Some(18), 96),
        (PlaneKind::Padded, QuantType::Q5_0, 2, 32, Some(32), Some(22), 64),
        (PlaneKind::Padded, QuantType::F32, 1, 5, Some(32), Some(4), 32),
        (PlaneKind::Padded, QuantType::BF16, 1, 8, Some(16), Some(2), 16),
        (PlaneKind::Exp, QuantType::Q6_K, 40, 512, Some(512), Some(256), 20480),
        (PlaneKind::Dsc, QuantType::Q6_K, 5, 512, None, None, 32 * 8 * 4),
        (PlaneKind::Eb, QuantType::Q4_K, 5, 512, None, None, 5 * 512),
        (PlaneKind::Sb, QuantType::Q4_K, 5, 512, None, None, 16 * 8 * 8),
        (PlaneKind::Planar, QuantType::Q4_K, 4, 256, None, None, 4 * 148),
        (PlaneKind::Planar, QuantType::Q5_K, 5, 512, None, None, 8 * 2 * 180),
        (PlaneKind::Planar, QuantType::Q6_K, 4, 512, None, None, 4 * 2 * 210),
        (PlaneKind::Planar, QuantType::Q6_K, 4, 256, None, None, 4 * 210 + 8),
        (PlaneKind::Planar, QuantType::Q8_0, 8, 64, None, None, 8 * 2 * 34),
        (PlaneKind::Bf16, QuantType::Q4_0, 3, 96, Some(256), None, 768),
        (PlaneKind::Bf16, QuantType::Q4_K, 2, 3584, Some(7168), None, 14336),
        (PlaneKind::Tile, QuantType::Q4_0, 16, 96, None, None, 16 * 3 * 18),
        (PlaneKind::Tile, QuantType::Q4_1, 17, 32, None, None, 32 * 20),
        (PlaneKind::Tile, QuantType::Q5_0, 1, 32, None, None, 16 * 22),
        (PlaneKind::Tile, QuantType::Q5_1, 16, 32, None, None, 16 * 24),
        (PlaneKind::Tile, QuantType::Q8_0, 16, 64, None, None, 16 * 2 * 34),
        (PlaneKind::Tile, QuantType::Q2_K, 16, 256, None, None, 16 * 84),
        (PlaneKind::Tile, QuantType::Q3_K, 16, 256, None, None, 16 * 114),
        (PlaneKind::Tile, QuantType::Q4_K, 33, 512, None, None, 48 * 2 * 148),
        (PlaneKind::Tile, QuantType::Q5_K, 16, 256, None, None, 16 * 180),
        (PlaneKind::Tile, QuantType::Q6_K, 16, 256, None, None, 16 * 210),
        (PlaneKind::Tile, QuantType::F16, 3, 5, None, None, 16 * 5 * 2),
    ];
    for (kind, quant, n_rows, row_len, row_stride, block_stride, len_bytes) in rows {
        let layout = Layout::new(kind, quant, geometry(n_rows, row_len)).unwrap();
        let found = (layout.row_stride(), layout.block_stride(), layout.len_bytes());
        assert_eq!(found, (row_stride, block_stride, len_bytes), "{kind:?} {quant:?}");
        assert_eq!(layout.n_units() * layout.unit_bytes(), layout.len_bytes());
    }
    // Where the record's misreading went: byte 448 is dense row 1, element 192.
    let exp = Layout::new(PlaneKind::Exp, QuantType::Q6_K, geometry(64, 256)).unwrap();
    assert_eq!(exp.field(FieldName::Quant).unwrap().locate(1, 192).byte, 448);
}

/// The q6_K tensors of a 7B model in Q4_K_M: rows, row length, how many. All 169 q4_K and 141 f32
/// tensors are left out: they have no plane here.
const INVENTORY_7B_Q6_K: [(u64, u64, usize); 3] =
    [(512, 3584, 14), (3584, 18944, 14), (152_064, 3584, 1)];

#[test]
fn planes_of_the_7b_inventory_have_the_known_sizes() {
    let sum = |kind| {
        let sizes = INVENTORY_7B_Q6_K.map(|(n_rows, row_len, n)| {
            let layout = Layout::new(kind, QuantType::Q6_K, geometry(n_rows, row_len)).unwrap();
            layout.len_bytes() * n as u64
        });
        sizes.iter().sum::<u64>()
    };
    assert_eq!(INVENTORY_7B_Q6_K.map(|(.., n)| n).iter().sum::<usize>(), 29);
    assert_eq!(sum(PlaneKind::Exp), 1_521_221_632);
    assert_eq!(sum(PlaneKind::Dsc), 380_305_408);
}

/// The q4_K matrices of the same model: rows, row length, how many. The token embedding, which is
/// q4_K too, is looked up and never multiplied.
const INVENTORY_7B_Q4_K: [(u64, u64, usize); 4] =
    [(3584, 3584, 2 * 28), (512, 3584, 28 + 14), (18944, 3584, 2 * 28), (3584, 18944, 14)];

#[test]
fn q4_k_planes_of_the_7b_inventory_have_the_known_sizes() {
    let sum = |kind| {
        let sizes = INVENTORY_7B_Q4_K.map(|(n_rows, row_len, n)| {
            let layout = Layout::new(kind, QuantType::Q4_K, geometry(n_rows, row_len)).unwrap();
            layout.len_bytes() * n as u64
        });
        sizes.iter().sum::<u64>()
    };
    assert_eq!(INVENTORY_7B_Q4_K.map(|(.., n)| n).iter().sum::<usize>(), 169 - 1);
    let n_weights = sum(PlaneKind::Eb);
    assert_eq!(n_weights, 5_549_064_192);
    assert_eq!(sum(PlaneKind::Sb), n_weights / 4);
    assert_eq!(sum(PlaneKind::Planar), n_weights / 256 * 148);
    assert_eq!(sum(PlaneKind::Bf16), n_weights * 2);
}

#[test]
fn units_in_any_split_give_the_same_object() {
    let quants = [QuantType::Q6_K, QuantType::Q4_K];
    let pairs = quants.iter().flat_map(|&quant| PlaneKind::ALL.iter().map(move |&k| (k, quant)));
    for (kind, quant) in pairs.filter(|(kind, quant)| kind.applies_to(*quant)) {
        let layout = Layout::new(kind, quant, geometry(6, 768)).unwrap();
        let gguf = random_bytes(11, layout.gguf_bytes() as usize);
        let whole = produce(&layout, &gguf);
        let mut pieces = Vec::new();
        for unit in 0..layout.n_units() {
            let mut piece = vec![0x55; layout.unit_bytes() as usize];
            layout.write_units(&gguf, unit..unit + 1, &mut piece).unwrap();
            pieces.extend(piece);
        }
        assert!(pieces == whole, "{kind:?}");
    }
}

#[test]
fn padding_is_found_wherever_it_is_and_however_it_is_read() {
    let shapes = [
        (PlaneKind::Padded, QuantType::Q6_K, geometry(3, 512)),
        (PlaneKind::Padded, QuantType::Q4_0, geometry(3, 96)),
        (PlaneKind::Padded, QuantType::Q2_K, geometry(2, 256)),
        (PlaneKind::Padded, QuantType::F32, geometry(1, 5)),
        (PlaneKind::Dsc, QuantType::Q6_K, geometry(5, 256)),
        (PlaneKind::Dsc, QuantType::Q6_K, geometry(4, 256)),
        (PlaneKind::Exp, QuantType::Q6_K, geometry(3, 256)),
        (PlaneKind::Eb, QuantType::Q4_K, geometry(3, 512)),
        (PlaneKind::Sb, QuantType::Q4_K, geometry(3, 512)),
        (PlaneKind::Planar, QuantType::Q4_K, geometry(4, 256)),
        (PlaneKind::Planar, QuantType::Q4_K, geometry(1, 512)),
        (PlaneKind::Planar, QuantType::Q5_K, geometry(6, 256)),
        (PlaneKind::Planar, QuantType::Q6_K, geometry(7, 256)),
        (PlaneKind::Planar, QuantType::Q8_0, geometry(6, 96)),
        (PlaneKind::Bf16, QuantType::Q5_0, geometry(3, 160)),
        (PlaneKind::Tile, QuantType::Q5_1, geometry(17, 64)),
        (PlaneKind::Tile, QuantType::Q8_0, geometry(16, 32)),
        (PlaneKind::Tile, QuantType::Q2_K, geometry(3, 256)),
        (PlaneKind::Tile, QuantType::Q4_K, geometry(15, 256)),
        (PlaneKind::Tile, QuantType::BF16, geometry(18, 3)),
    ];
    for (kind, quant, shape) in shapes {
        let layout = Layout::new(kind, quant, shape).unwrap();
        // Whatever a producer writes over 0xff and does not take from the tensor is padding.
        let ones = vec![0xff; layout.gguf_bytes() as usize];
        let object = produce(&layout, &ones);
        let mut covered = vec![false; object.len()];
        for field in layout.fields() {
            for row in 0..shape.n_rows {
                for k in 0..shape.row_len {
                    let cell = field.locate(row, k);
                    let n_bytes = usize::from(cell.bits).div_ceil(8);
                    covered[cell.byte as usize..][..n_bytes].fill(true);
                }
            }
        }
        let mut n_padding = 0;
        for at in 0..object.len() {
            let mut damaged = object.clone();
            damaged[at] ^= 0x10;
            let expected = (!covered[at]).then_some(at as u64);
            n_padding += u64::from(!covered[at]);
            for chunk_bytes in [1, 7, 16, object.len()] {
                let chunks = damaged.chunks(chunk_bytes).enumerate();
                let mut found = chunks.filter_map(|(i, chunk)| {
                    layout.padding().first_nonzero((i * chunk_bytes) as u64, chunk)
                });
                assert_eq!(found.next(), expected, "{kind:?} {quant:?} byte {at}");
            }
        }
        assert_eq!(layout.padding().total_bytes(layout.len_bytes()), n_padding);
    }
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let cases = [
        (
            PlaneKind::Exp,
            QuantType::Q4_K,
            geometry(1, 256),
            "plane kind exp: type q4_K is not supported (it exists for q6_K)",
        ),
        (
            PlaneKind::Padded,
            QuantType::Q4_K,
            geometry(1, 128),
            "row length at offset 0: expected a multiple of 256 (q4_K), found 128",
        ),
        (
            PlaneKind::Padded,
            QuantType::F32,
            geometry(0, 4),
            "geometry at offset 0: expected at least 1 row and 1 element a row, found 0 x 4",
        ),
        (
            PlaneKind::Padded,
            QuantType::F32,
            geometry(4, 0),
            "geometry at offset 0: expected at least 1 row and 1 element a row, found 4 x 0",
        ),
        (
            PlaneKind::Padded,
            QuantType::F32,
            geometry(1 << 31, 1 << 31),
            "geometry at offset 0: expected an object below 2^63 bytes, \
             found 2147483648 x 2147483648 f32",
        ),
        (
            PlaneKind::Dsc,
            QuantType::Q6_K,
            geometry(u64::MAX, 256),
            "geometry at offset 0: expected an object below 2^63 bytes, \
             found 18446744073709551615 x 256 q6_K",
        ),
    ];
    for (kind, quant, shape, message) in cases {
        assert_eq!(Layout::new(kind, quant, shape).unwrap_err().to_string(), message);
    }
    for &quant in QuantType::ALL {
        for n_rows in [1 << 62, u64::MAX - 3, u64::MAX] {
            for row_len in [256, 1 << 62, u64::MAX - 255] {
                for &kind in PlaneKind::ALL.iter().filter(|kind| kind.applies_to(quant)) {
                    assert!(Layout::new(kind, quant, geometry(n_rows, row_len)).is_err());
                }
            }
        }
    }
}

#[test]
fn kinds_that_this_version_does_not_know_are_refused() {
    let message = |what: &str| {
        format!(
            "plane kind: {what} is not supported (this version reads padded, exp, dsc, eb, sb, \
             planar, bf16, tile; upgrade minfer)"
        )
    };
    assert_eq!(PlaneKind::from_id(999).unwrap_err().to_string(), message("id 999"));
    assert_eq!(PlaneKind::from_name("tiled").unwrap_err().to_string(), message("`tiled`"));
    assert!(PlaneKind::from_id(0).is_err());
    for &kind in PlaneKind::ALL {
        assert_eq!(PlaneKind::from_id(kind.id()), Ok(kind));
        assert_eq!(PlaneKind::from_name(kind.name()), Ok(kind));
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let layout = Layout::new(PlaneKind::Padded, QuantType::Q4_0, geometry(3, 64)).unwrap();
    let gguf = vec![0; layout.gguf_bytes() as usize];
    let mut out = vec![0; layout.len_bytes() as usize];
    assert!(layout.write_units(&gguf[1..], 0..3, &mut out).is_err());
    assert!(layout.write_units(&gguf, 0..2, &mut out).is_err());
    assert!(layout.write_units(&gguf, 1..4, &mut out).is_err());
    let mut rows = vec![0; gguf.len()];
    assert!(layout.restore_units(&out, &mut rows).is_ok());
    assert!(layout.restore_units(&out, &mut rows[1..]).is_err());
    assert!(layout.restore_units(&out[1..], &mut rows).is_err());
    let exp = Layout::new(PlaneKind::Exp, QuantType::Q6_K, geometry(1, 256)).unwrap();
    assert_eq!(
        exp.restore_units(&[0; 256], &mut [0; 210]).unwrap_err().to_string(),
        "rebuilding GGUF rows: plane kind exp is not supported (only a base holds the whole tensor)"
    );
}
