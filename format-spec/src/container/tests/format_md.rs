//! `docs/FORMAT.md` says what the code does: its tables are generated here and compared.
//! `BLESS=1 cargo test -p format-spec format_md` rewrites them.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;

use super::super::header::{DIGEST_BYTES, HEADER_BYTES, HeaderRecord};
use super::super::index::{FieldRecord, IndexHead, ObjectRecord};
use super::super::source::{ExtentRecord, ShardRecord, SourceHead};
use super::*;
use crate::plane::{Encoding, FieldName};
use crate::{Geometry, Layout};

/// Lists a record's fields as (name, offset, meaning), and proves that none is left out.
macro_rules! record {
    ($record:ty, $($field:ident : $meaning:literal,)*) => {{
        let fields: Vec<(&str, usize, &str)> =
            vec![$((stringify!($field), offset_of!($record, $field), $meaning)),*];
        record_table(&fields, size_of::<$record>())
    }};
}

fn record_table(fields: &[(&str, usize, &str)], record_bytes: usize) -> String {
    let mut table = "| offset | bytes | field | meaning |\n|---|---|---|---|\n".to_owned();
    let ends = fields.iter().skip(1).map(|field| field.1).chain([record_bytes]);
    let mut at = 0;
    for ((name, offset, meaning), end) in fields.iter().zip(ends) {
        assert_eq!(*offset, at, "{name}: fields in order");
        writeln!(table, "| {offset} | {} | `{name}` | {meaning} |", end - offset).unwrap();
        at = end;
    }
    table
}

fn rows(head: &str, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let n_columns = head.matches('|').count() - 1;
    let mut table = format!("{head}\n{}|\n", "|---".repeat(n_columns));
    for row in rows {
        assert_eq!(row.len(), n_columns);
        writeln!(table, "| {} |", row.join(" | ")).unwrap();
    }
    table
}

fn constants() -> String {
    let magic: Vec<_> = MAGIC.iter().map(|byte| format!("{byte:02X}")).collect();
    let rows_of = [
        ("magic", magic.join(" ")),
        ("version", format!("{}.{}", VERSION.0, VERSION.1)),
        ("alignment of source and vocabulary", SECTION_ALIGN.to_string()),
        ("alignment of the data section and of the end of the file", DATA_ALIGN.to_string()),
        ("alignment of objects", OBJECT_ALIGN.to_string()),
        ("bytes of a leaf", LEAF_BYTES.to_string()),
        ("largest index", MAX_INDEX_BYTES.to_string()),
        ("largest front: all that precedes the data section", MAX_FRONT_BYTES.to_string()),
        ("most bytes behind the last tensors of the GGUF files", MAX_TRAILING_BYTES.to_string()),
        ("known compatible feature bits", format!("{KNOWN_COMPAT:#x}")),
        ("known incompatible feature bits", format!("{KNOWN_INCOMPAT:#x}")),
    ];
    rows("| what | value |", rows_of.map(|(what, value)| vec![what.to_owned(), value]))
}

fn header() -> String {
    let fields = record!(HeaderRecord,
        magic: "see above",
        version_major: "u16",
        version_minor: "u16",
        header_len: "u32: bytes of the header",
        file_len: "u64: bytes of the file",
        index_offset: "u64: equals `header_len`",
        index_len: "u64",
        index_sha256: "sha256 of the index",
        compat: "u64: feature bits that a reader may ignore",
        incompat: "u64: feature bits that a reader must know",
        data_offset: "u64: start of the data section",
    );
    let digest = HEADER_BYTES - DIGEST_BYTES;
    format!(
        "{fields}| {digest} | {DIGEST_BYTES} | `header_sha256` | sha256 of bytes 0..{digest} |\n"
    )
}

fn index_head() -> String {
    record!(IndexHead,
        source_offset: "u64",
        source_len: "u64",
        source_sha256: "sha256 of the source section",
        vocab_offset: "u64",
        vocab_len: "u64",
        vocab_sha256: "sha256 of the vocabulary section",
        n_objects: "u32: records in the object table",
        n_fields: "u32: records in the descriptor table",
        n_leaves: "u32: sha256 digests in the leaf table",
        names_len: "u32: bytes of the names",
    )
}

fn object() -> String {
    record!(ObjectRecord,
        name_len: "u32: bytes of the name",
        tensor_name_len: "u32: bytes of the name that are the tensor's",
        kind: "u16: plane kind",
        n_fields: "u16: number of descriptors",
        quant: "u32: type of the tensor, ggml's id",
        first_field: "u32: first descriptor",
        reserved: "u32: 0",
        n_rows: "u64: `od`",
        row_len: "u64: `id`",
        offset: "u64",
        len: "u64",
        xxh3: "u64: XXH3-64 of the bytes",
        sha256: "sha256 of the concatenated leaf digests",
    )
}

fn field() -> String {
    record!(FieldRecord,
        name: "u8",
        encoding: "u8",
        bits: "u8: width of a cell",
        shift: "u8: lowest bit of the group's first cell in its byte",
        bias: "i32",
        base: "u64: byte of the first group's first cell",
        rows_per_group: "u32",
        k_per_group: "u32",
        row_group_stride: "u64: bytes",
        k_group_stride: "u64: bytes",
        bytes: "u32: bytes of a group's cells",
        reserved: "u32: 0",
        row_bits: "8 x u32: bits",
        k_bits: "8 x u32: bits",
    )
}

fn kinds() -> String {
    let known = PlaneKind::ALL.iter().map(|&kind| {
        let types: Vec<_> =
            QuantType::ALL.iter().filter(|&&quant| kind.applies_to(quant)).collect();
        let types = match types.len() == QuantType::ALL.len() {
            true => "every type".to_owned(),
            false => types.iter().map(|quant| quant.name()).collect::<Vec<_>>().join(", "),
        };
        let base = if kind.is_base() { "yes" } else { "no" };
        vec![kind.id().to_string(), format!("`{}`", kind.name()), base.to_owned(), types]
    });
    rows("| id | kind | base | for |", known)
}

fn field_names() -> String {
    let meaning = |name: &FieldName| match name {
        FieldName::Value => "the weight itself",
        FieldName::Quant => "the quantized integer, or its low bits",
        FieldName::Scale => "scale of a sub-block, or its low bits",
        FieldName::Min => "minimum of a sub-block or block, or its low bits",
        FieldName::High | FieldName::ScaleHigh | FieldName::MinHigh => "high bits",
        FieldName::D => "scale of the block",
        FieldName::Dmin => "scale of the minimums",
    };
    rows(
        "| id | name | meaning |",
        FieldName::ALL
            .iter()
            .map(|name| vec![name.id().to_string(), name.name().into(), meaning(name).into()]),
    )
}

fn encodings() -> String {
    rows(
        "| id | encoding |",
        Encoding::ALL
            .iter()
            .map(|encoding| vec![encoding.id().to_string(), encoding.name().into()]),
    )
}

fn quant_types() -> String {
    rows(
        "| ggml id | type | elements a block | bytes a block | block stride in `padded` |",
        QuantType::ALL.iter().map(|quant| {
            let [elems, bytes, stride] =
                [quant.block_elems(), quant.block_bytes(), quant.padded_block_stride()];
            vec![
                quant.ggml_id().to_string(),
                quant.name().to_owned(),
                elems.to_string(),
                bytes.to_string(),
                stride.to_string(),
            ]
        }),
    )
}

fn block_fields() -> String {
    let fields = QuantType::ALL.iter().flat_map(|&quant| {
        let shape = Geometry { n_rows: 1, row_len: quant.block_elems() as u64 };
        let layout = Layout::new(PlaneKind::Padded, quant, shape).unwrap();
        let row = |field: &crate::plane::Field| {
            assert_eq!(field.row_bits, [0; 8]);
            let k_bits: Vec<_> = field.k_bits.iter().map(u32::to_string).collect();
            vec![
                quant.name().to_owned(),
                field.name.name().to_owned(),
                field.encoding.name().to_owned(),
                field.bits.to_string(),
                field.base.to_string(),
                field.shift.to_string(),
                field.bytes.to_string(),
                field.bias.to_string(),
                k_bits.join(" "),
            ]
        };
        layout.fields().iter().map(row).collect::<Vec<_>>()
    });
    rows("| type | field | encoding | bits | byte | shift | bytes | bias | `k_bits` |", fields)
}

/// Fields of `planar` or `tile` for rows of two blocks: where groups lie, and the first bits.
fn interleaved_fields(kind: PlaneKind, n_row_bits: usize, n_k_bits: usize) -> String {
    let quants = QuantType::ALL.iter().filter(|&&quant| kind.applies_to(quant));
    let fields = quants.flat_map(|&quant| {
        let shape = Geometry { n_rows: 1, row_len: 2 * quant.block_elems() as u64 };
        let layout = Layout::new(kind, quant, shape).unwrap();
        let row = |field: &crate::plane::Field| {
            let bits = |bits: &[u32]| bits.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            vec![
                quant.name().to_owned(),
                field.name.name().to_owned(),
                field.encoding.name().to_owned(),
                field.bits.to_string(),
                field.shift.to_string(),
                field.base.to_string(),
                field.k_per_group.to_string(),
                field.k_group_stride.to_string(),
                field.bytes.to_string(),
                field.bias.to_string(),
                bits(&field.row_bits[..n_row_bits]),
                bits(&field.k_bits[..n_k_bits]),
            ]
        };
        layout.fields().iter().map(row).collect::<Vec<_>>()
    });
    let head = "| type | field | encoding | bits | shift | `base` | `k_per_group` | `k_group_stride` | bytes \
                | bias | `row_bits` | `k_bits` |";
    rows(head, fields)
}

fn examples() -> String {
    let shapes = [
        (PlaneKind::Padded, QuantType::Q4_K, 3584, 18944),
        (PlaneKind::Padded, QuantType::Q6_K, 3584, 18944),
        (PlaneKind::Exp, QuantType::Q6_K, 3584, 18944),
        (PlaneKind::Dsc, QuantType::Q6_K, 3584, 18944),
        (PlaneKind::Padded, QuantType::Q6_K, 6, 512),
        (PlaneKind::Exp, QuantType::Q6_K, 6, 512),
        (PlaneKind::Dsc, QuantType::Q6_K, 6, 512),
        (PlaneKind::Padded, QuantType::Q4_0, 2, 96),
        (PlaneKind::Padded, QuantType::F32, 1, 5),
        (PlaneKind::Eb, QuantType::Q4_K, 6, 512),
        (PlaneKind::Sb, QuantType::Q4_K, 6, 512),
        (PlaneKind::Planar, QuantType::Q4_K, 3584, 18944),
        (PlaneKind::Planar, QuantType::Q6_K, 6, 768),
        (PlaneKind::Planar, QuantType::Q8_0, 6, 96),
        (PlaneKind::Bf16, QuantType::Q4_0, 2, 96),
        (PlaneKind::Tile, QuantType::Q4_K, 3584, 18944),
        (PlaneKind::Tile, QuantType::Q6_K, 18, 512),
        (PlaneKind::Tile, QuantType::Q5_0, 18, 96),
        (PlaneKind::Tile, QuantType::F16, 3, 5),
    ];
    let head = "| kind | type | od | id | bytes | row stride | block stride | \
                first field | at (1, 0) or (0, 0) | at the last element |";
    rows(
        head,
        shapes.map(|(kind, quant, n_rows, row_len)| {
            let layout = Layout::new(kind, quant, Geometry { n_rows, row_len }).unwrap();
            let stride = |stride: Option<u64>| stride.map_or("-".to_owned(), |n| n.to_string());
            let first = layout.fields()[0];
            let place = |row, k| {
                let cell = first.locate(row, k);
                format!("byte {} bit {}", cell.byte, cell.shift)
            };
            vec![
                kind.name().to_owned(),
                quant.name().to_owned(),
                n_rows.to_string(),
                row_len.to_string(),
                layout.len_bytes().to_string(),
                stride(layout.row_stride()),
                stride(layout.block_stride()),
                first.name.name().to_owned(),
                place(u64::from(n_rows > 1), 0),
                place(n_rows - 1, row_len - 1),
            ]
        }),
    )
}

#[test]
fn format_md_says_what_the_code_does() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/FORMAT.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let tables: [(&str, String); 16] = [
        ("constants", constants()),
        ("header", header()),
        ("index head", index_head()),
        ("object", object()),
        (
            "source head",
            record!(SourceHead, n_shards: "u32: number of GGUF files", reserved: "u32: 0",),
        ),
        (
            "shard",
            record!(ShardRecord,
                file_len: "u64: bytes of the GGUF file",
                header_len: "u64: bytes of its header",
                n_extents: "u32",
                reserved: "u32: 0",
            ),
        ),
        ("extent", record!(ExtentRecord, offset: "u64: place in the GGUF file", len: "u64",)),
        ("kinds", kinds()),
        ("field names", field_names()),
        ("encodings", encodings()),
        ("field", field()),
        ("quant types", quant_types()),
        ("block fields", block_fields()),
        ("planar fields", interleaved_fields(PlaneKind::Planar, 2, 5)),
        ("tile fields", interleaved_fields(PlaneKind::Tile, 4, 8)),
        ("examples", examples()),
    ];
    let mut expected = found.clone();
    for (name, table) in &tables {
        let mark = format!("<!-- table: {name} -->\n");
        let start = expected.find(&mark).unwrap_or_else(|| panic!("no table {name}")) + mark.len();
        let end = start + expected[start..].find("<!-- end -->").unwrap();
        expected.replace_range(start..end, table);
    }
    assert_eq!(found.matches("<!-- table: ").count(), tables.len() + 1, "tables without a test");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    } else {
        for (line, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
            assert_eq!(found, expected, "docs/FORMAT.md line {}", line + 1);
        }
        assert!(found == expected, "docs/FORMAT.md: run with BLESS=1");
    }
}
