//! Object records, descriptors, and their agreement with the source.

use super::*;

#[test]
fn object_records_are_checked() {
    let file = tiny();
    let container = Container::parse(&file).unwrap();
    let first = &container.objects()[0];
    let name = "a.weight__padded3x512";
    let u32s = |n: u32| n.to_le_bytes().to_vec();
    let u64s = |n: u64| n.to_le_bytes().to_vec();
    let cases: Vec<(usize, Vec<u8>, String)> = vec![
        (
            4,
            u32s(7),
            format!("name of an object at offset 240: expected a.weigh__padded3x512, found {name}"),
        ),
        (
            4,
            u32s(99),
            format!(
                "tensor_name_len of object {name} at offset 244: expected at most 21, found 99"
            ),
        ),
        (
            8,
            vec![77, 0],
            format!(
                "object {name}: plane kind: id 77 is not supported (this version reads padded, exp, dsc, eb, sb, planar, bf16, tile; upgrade minfer)"
            ),
        ),
        (
            8,
            vec![9, 0],
            format!(
                "object {name}: plane kind: id 9 is not supported (this version reads padded, exp, dsc, eb, sb, planar, bf16, tile; upgrade minfer)"
            ),
        ),
        (
            8,
            vec![2, 0],
            format!("name of an object at offset 240: expected a.weight__exp3x512, found {name}"),
        ),
        (
            12,
            u32s(4),
            format!("type of object {name}: ggml type 4 is not supported (upgrade minfer)"),
        ),
        (12, u32s(12), format!("length of object {name} at offset 288: expected 864, found 1344")),
        (
            20,
            u32s(1),
            format!("reserved field of object {name} at offset 260: expected 0, found 1"),
        ),
        (
            24,
            u64s(0),
            format!(
                "object {name}: geometry at offset 264: expected at least 1 row and 1 element a row, found 0 x 512"
            ),
        ),
        (
            24,
            u64s(u64::MAX),
            format!(
                "object {name}: geometry at offset 264: expected an object below 2^63 bytes, found 18446744073709551615 x 512 q6_K"
            ),
        ),
        (
            32,
            u64s(500),
            format!(
                "object {name}: row length at offset 264: expected a multiple of 256 (q6_K), found 500"
            ),
        ),
        (
            24,
            u64s(4),
            format!(
                "name of an object at offset 240: expected a.weight__padded4x512, found {name}"
            ),
        ),
        (
            48,
            u64s(1343),
            format!("length of object {name} at offset 288: expected 1344, found 1343"),
        ),
        (
            40,
            u64s(first.offset + 256),
            format!(
                "offset of object {name} at offset 280: expected {0}, the aligned end of what precedes it, found {1}",
                first.offset,
                first.offset + 256
            ),
        ),
        (
            40,
            u64s(first.offset + 1),
            format!(
                "offset of object {name} at offset 280: expected {0}, the aligned end of what precedes it, found {1}",
                first.offset,
                first.offset + 1
            ),
        ),
        (
            40,
            u64s(u64::MAX - 10),
            format!(
                "offset of object {name} at offset 280: expected {0}, the aligned end of what precedes it, found {1}",
                first.offset,
                u64::MAX - 10
            ),
        ),
        (
            10,
            vec![3, 0],
            format!("number of fields of object {name} at offset 250: expected 4, found 3"),
        ),
        (
            16,
            u32s(9999),
            format!(
                "fields of object {name} at offset 256: expected descriptors inside 0..13, found 4 from 9999"
            ),
        ),
    ];
    for (part, bytes, message) in cases {
        assert_eq!(patched(object_at(0, part), &bytes), message);
    }
    let tree = patched(object_at(0, 64), &[0; 32]);
    assert!(tree.starts_with(&format!("leaf digests of object {name}: sha256 is ")), "{tree}");
    // The second object over the first.
    let overlap = patched(object_at(1, 40), &first.offset.to_le_bytes());
    assert!(
        overlap.starts_with("offset of object b.bias__padded1x5 at offset 376: expected "),
        "{overlap}"
    );
}

#[test]
fn every_byte_of_every_descriptor_is_checked() {
    let file = tiny();
    let container = Container::parse(&file).unwrap();
    let fields = object_at(container.objects().len(), 0);
    let n_fields = u32::from_le_bytes(file[HEADER + 100..][..4].try_into().unwrap()) as usize;
    let descriptors = file.iter().enumerate().skip(fields).take(n_fields * FIELD);
    for (at, byte) in descriptors {
        let found = patched(at, &[byte ^ 1]);
        assert!(
            found.starts_with("field ")
                && found.ends_with("expected the layout's descriptor, found another one"),
            "{found}"
        );
    }
    // A dense plane that claims the strides of the padded one.
    let quant = container.objects()[3].layout.fields()[0];
    assert_eq!((quant.row_group_stride, quant.k_group_stride), (512, 256));
    let first_field = u32::from_le_bytes(file[object_at(3, 16)..][..4].try_into().unwrap());
    let at = fields + first_field as usize * FIELD + 24;
    assert_eq!(
        patched(at, &448u64.to_le_bytes()),
        format!(
            "field quant of object a.weight__exp3x512 at offset {}: \
             expected the layout's descriptor, found another one",
            at - 24
        )
    );
}

#[test]
fn objects_and_tensors_must_agree() {
    use PlaneKind::{Dsc, Exp, Padded};
    use QuantType::{F32, Q4_K, Q6_K};
    let two = [
        TinyTensor("a.weight", 14, &[512, 3], 3 * 2 * 210),
        TinyTensor("b.weight", 14, &[256, 2], 2 * 210),
    ];
    let gguf = tiny_gguf(&two, b"");
    let a = |kind| planned("a.weight", kind, Q6_K, (3, 512));
    let b = |kind| planned("b.weight", kind, Q6_K, (2, 256));
    let cases = [
        (vec![], "object 0", "the base of tensor a.weight", "no object"),
        (vec![a(Padded)], "object 1", "the base of tensor b.weight", "no object"),
        (
            vec![b(Padded), a(Padded)],
            "object 0",
            "the base of tensor a.weight",
            "b.weight__padded2x256",
        ),
        (vec![a(Exp), b(Padded)], "object 0", "the base of tensor a.weight", "a.weight__exp3x512"),
        (
            vec![a(Padded), b(Padded), a(Padded)],
            "name of an object",
            "every name once",
            "a.weight__padded3x512, twice",
        ),
        (
            vec![a(Padded), b(Padded), a(Exp), a(Exp)],
            "name of an object",
            "every name once",
            "a.weight__exp3x512, twice",
        ),
        (
            vec![a(Padded), b(Padded), b(Exp), a(Exp)],
            "object 3",
            "planes kind by kind, in tensor order",
            "a.weight__exp3x512",
        ),
        (
            vec![a(Padded), b(Padded), a(Dsc), a(Exp)],
            "object 3",
            "planes kind by kind, in tensor order",
            "a.weight__exp3x512",
        ),
        (
            vec![a(Padded), b(Padded), planned("c.weight", Exp, Q6_K, (2, 256))],
            "object 2",
            "a tensor of the source",
            "c.weight__exp2x256",
        ),
        (
            vec![planned("a.weight", Padded, Q6_K, (4, 512)), b(Padded)],
            "shape of object a.weight__padded4x512",
            "q6_K 3 x 512 as in the source",
            "q6_K 4 x 512",
        ),
        (
            vec![planned("a.weight", Padded, Q4_K, (3, 512)), b(Padded)],
            "shape of object a.weight__padded3x512",
            "q6_K 3 x 512 as in the source",
            "q4_K 3 x 512",
        ),
        (
            vec![planned("a.weight", Padded, F32, (3, 512)), b(Padded)],
            "shape of object a.weight__padded3x512",
            "q6_K 3 x 512 as in the source",
            "f32 3 x 512",
        ),
        // Same bytes, other shape: only the geometry tells.
        (
            vec![a(Padded), b(Padded), planned("b.weight", Exp, Q6_K, (1, 512))],
            "shape of object b.weight__exp1x512",
            "q6_K 2 x 256 as in the source",
            "q6_K 1 x 512",
        ),
    ];
    for (objects, field, expected, found) in cases {
        assert_eq!(
            with_objects(&gguf, objects),
            format!("{field} at offset 240: expected {expected}, found {found}")
        );
    }
}

#[test]
fn no_byte_is_unaccounted_for() {
    // A page of zeros behind the last object, with everything else right.
    let mut file = tiny();
    let longer = file.len() as u64 + 4096;
    file.resize(longer as usize, 0);
    file[16..24].copy_from_slice(&longer.to_le_bytes());
    reseal(&mut file);
    assert_eq!(
        error(&file),
        format!(
            "file_len at offset 16: expected {}, the aligned end of the last object, found {longer}",
            longer - 4096
        )
    );
    // An object that reaches past the end.
    let mut file = tiny();
    let shorter = file.len() as u64 - 4096;
    file.truncate(shorter as usize);
    file[16..24].copy_from_slice(&shorter.to_le_bytes());
    reseal(&mut file);
    let found = error(&file);
    assert!(
        found.ends_with(&format!("file has {shorter}")) && found.starts_with("object "),
        "{found}"
    );
}

#[test]
fn a_plan_without_a_base_is_refused() {
    let source = encode_source(&[&tiny_gguf(&TENSORS, b"")]).unwrap();
    let only_exp = |_: &TensorInfo<'_>| vec![PlaneKind::Exp];
    assert_eq!(
        Builder::new(source.clone(), Vec::new(), only_exp).unwrap_err().to_string(),
        "planes of tensor a.weight at offset 0: expected at least one base, found exp"
    );
    let everywhere = |_: &TensorInfo<'_>| vec![PlaneKind::Padded, PlaneKind::Exp];
    assert_eq!(
        Builder::new(source, Vec::new(), everywhere).unwrap_err().to_string(),
        "object b.bias__exp1x5: plane kind exp: type f32 is not supported (it exists for q6_K)"
    );
}

#[test]
fn digests_must_fit_the_plan() {
    let builder = plan(&tiny_gguf(&TENSORS, b""), b"");
    assert_eq!(
        builder.finish(&[]).unwrap_err().to_string(),
        "digests at offset 0: expected 7, found 0"
    );
    let empty = vec![ObjectDigest::from_leaves(Vec::new(), 0); 7];
    assert_eq!(
        builder.finish(&empty).unwrap_err().to_string(),
        "leaves of object a.weight__padded3x512 at offset 0: expected 1, found 0"
    );
}
