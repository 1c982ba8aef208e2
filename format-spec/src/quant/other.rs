//! ggml types that are not [`QuantType`]s, so that a file with one is refused by its name.

use super::QuantType;

/// Types that ggml has and minfer does not read.
const KNOWN: [(u32, &str); 22] = [
    (9, "q8_1"),
    (15, "q8_K"),
    (16, "iq2_xxs"),
    (17, "iq2_xs"),
    (18, "iq3_xxs"),
    (19, "iq1_s"),
    (20, "iq4_nl"),
    (21, "iq3_s"),
    (22, "iq2_s"),
    (23, "iq4_xs"),
    (24, "i8"),
    (25, "i16"),
    (26, "i32"),
    (27, "i64"),
    (28, "f64"),
    (29, "iq1_m"),
    (34, "tq1_0"),
    (35, "tq2_0"),
    (39, "mxfp4"),
    (40, "nvfp4"),
    (41, "q1_0"),
    (42, "q2_0"),
];

/// Types that GGUF once had. Their ids are never used again.
const REMOVED: [(u32, &str); 8] = [
    (4, "q4_2"),
    (5, "q4_3"),
    (31, "q4_0_4_4"),
    (32, "q4_0_4_8"),
    (33, "q4_0_8_8"),
    (36, "iq4_nl_4_4"),
    (37, "iq4_nl_4_8"),
    (38, "iq4_nl_8_8"),
];

/// The type with this ggml id, for messages, e.g. `iq4_xs (ggml type 23)`.
pub fn describe_ggml_type(id: u32) -> String {
    let named = |table: &[(u32, &'static str)]| {
        table.iter().find(|&&(known, _)| known == id).map(|&(_, name)| name)
    };
    if let Some(quant) = QuantType::from_ggml_id(id) {
        return format!("{} (ggml type {id})", quant.name());
    }
    if let Some(name) = named(&KNOWN) {
        return format!("{name} (ggml type {id})");
    }
    if let Some(name) = named(&REMOVED) {
        return format!("{name} (ggml type {id}, removed from GGUF)");
    }
    // ggml's enum is signed: -1 is what a writer's uninitialised type looks like.
    format!("ggml type {} (unknown)", id.cast_signed())
}

/// The names of every [`QuantType`], for messages.
pub fn supported_names() -> String {
    QuantType::ALL.iter().map(|quant| quant.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_is_in_two_tables() {
        let ids = QuantType::ALL.iter().map(|quant| quant.ggml_id());
        let others = KNOWN.iter().chain(&REMOVED).map(|&(id, _)| id);
        let mut all: Vec<u32> = ids.chain(others).collect();
        all.sort_unstable();
        let n = all.len();
        all.dedup();
        assert_eq!(all.len(), n, "an id in two tables");
        // Every id of ggml up to its count has a name.
        assert!((0..43).all(|id| all.contains(&id)));
    }
}
