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
fn padded_bytes_go_back_to_gguf() {
    for &quant in QuantType::ALL {
        let row_len = 3 * quant.block_elems() as u64;
        let layout = Layout::new(PlaneKind::Padded, quant, geometry(4, row_len)).expect("valid");
        let gguf = random_bytes(u64::from(quant.ggml_id()), layout.gguf_bytes() as usize);
        let object = produce(&layout, &gguf);
        assert_eq!(layout.padding().first_nonzero(0, &object), None);
        let mut back = vec![0; gguf.len()];
        layout.restore_units(&object, &mut back).expect("lengths fit");
        assert!(back == gguf, "{}", quant.name());
    }
}

#[test]
fn planes_say_what_the_base_says() {
    for (n_rows, row_len) in [(64, 256), (40, 512), (24, 768), (5, 1024), (1, 256), (7, 256)] {
        let base = Layout::new(PlaneKind::Padded, QuantType::Q6_K, geometry(n_rows, row_len))
            .expect("valid");
        let gguf = random_bytes(n_rows, base.gguf_bytes() as usize);
        let base_bytes = produce(&base, &gguf);
        for kind in [PlaneKind::Exp, PlaneKind::Dsc] {
            let plane =
                Layout::new(kind, QuantType::Q6_K, geometry(n_rows, row_len)).expect("valid");
            let mut plane_bytes = produce(&plane, &gguf);
            assert_eq!(plane.padding().first_nonzero(0, &plane_bytes), None);
            assert_eq!(
                find_mismatch((&base, &base_bytes), (&plane, &plane_bytes), 0..n_rows),
                None
            );
            let cell = plane.fields()[0].locate(n_rows - 1, row_len - 16);
            plane_bytes[cell.byte as usize] ^= 1;
            let mismatch = find_mismatch((&base, &base_bytes), (&plane, &plane_bytes), 0..n_rows);
            assert_eq!(
                mismatch.map(|found| (found.row, found.k, found.byte)),
                Some((n_rows - 1, row_len - 16, cell.byte))
            );
        }
    }
}
