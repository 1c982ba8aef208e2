//! The committed fatbins are those of the committed sources: no compiler is needed to know it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

fn kernels() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sha256(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A source and what it includes, below `cuda/`.
fn closure(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut queue = vec![source.to_owned()];
    while let Some(file) = queue.pop() {
        if !found.insert(file.clone()) {
            continue;
        }
        let text = std::fs::read_to_string(kernels().join("cuda").join(&file))
            .unwrap_or_else(|e| panic!("{file}: {e}"));
        for line in text.lines() {
            let name = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
            let Some(name) = name else { continue };
            let mut parts: Vec<&str> = file.split('/').collect();
            parts.pop();
            for part in name.split('/') {
                if part == ".." {
                    parts.pop();
                } else {
                    parts.push(part);
                }
            }
            queue.push(parts.join("/"));
        }
    }
    found
}

fn manifests() -> Vec<(String, String)> {
    let dir = kernels().join("dist");
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let manifests = paths.filter(|path| path.extension().is_some_and(|ext| ext == "manifest"));
    let read = |path: PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).expect("text"))
    };
    let mut manifests: Vec<_> = manifests.map(read).collect();
    manifests.sort();
    manifests
}

#[test]
fn fatbins_are_those_of_the_sources() {
    let manifests = manifests();
    assert!(!manifests.is_empty(), "kernels/dist has no manifest");
    for (name, manifest) in manifests {
        let fatbin = kernels().join("dist").join(format!("{name}.fatbin"));
        let advice = format!("run scripts/kernels.sh {name}");
        let mut listed = BTreeSet::new();
        for line in manifest.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["fatbin", digest] => {
                    assert_eq!(digest, sha256(&fatbin), "{name}.fatbin changed: {advice}");
                }
                ["source", digest, file] => {
                    let found = sha256(&kernels().join("cuda").join(file));
                    assert_eq!(digest, found, "{name}.fatbin is older than {file}: {advice}");
                    listed.insert(file.to_owned());
                }
                _ => panic!("{name}.manifest: {line}"),
            }
        }
        // What the fatbin was made from is what it would be made from now.
        let main = listed.iter().filter(|file| file.ends_with(".cu")).collect::<Vec<_>>();
        assert_eq!(main.len(), 1, "{name}.manifest names its source: {main:?}");
        assert_eq!(listed, closure(main[0]), "{name} has other sources: {advice}");
    }
}

#[test]
fn every_source_is_in_a_fatbin() {
    let listed: BTreeSet<String> = manifests()
        .iter()
        .flat_map(|(_, text)| text.lines())
        .filter_map(|line| line.split(' ').nth(2).map(str::to_owned))
        .collect();
    let mut queue = vec![kernels().join("cuda")];
    while let Some(dir) = queue.pop() {
        for entry in std::fs::read_dir(&dir).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                queue.push(path);
                continue;
            }
            let file = path.strip_prefix(kernels().join("cuda")).expect("below");
            let file = file.to_string_lossy().replace('\\', "/");
            assert!(listed.contains(&file), "{file} is in no fatbin: add it to scripts/kernels.sh");
        }
    }
}

/// Every kernel that Rust knows is in the report of its module, and the reverse.
#[test]
fn mmq_kernels_are_those_of_the_fatbins() {
    use kernels::cuda::mmq::MMQ_KERNELS;
    for module in ["mmq_q6_k", "mmq_q4_k", "mmq_generic"] {
        let report =
            std::fs::read_to_string(kernels().join(format!("dist/{module}.sass"))).unwrap();
        let compiled: BTreeSet<&str> = report
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once(':').map(|(name, _)| name))
            .collect();
        let known: BTreeSet<&str> =
            MMQ_KERNELS.iter().filter(|k| k.module == module).map(|k| k.name).collect();
        assert_eq!(compiled, known, "{module}");
    }
}

/// The asynchronous copies that a variant is for are in its code, and absent where they are not.
#[test]
fn copies_are_in_the_code() {
    let report = |module: &str| {
        std::fs::read_to_string(kernels().join(format!("dist/{module}.sass"))).expect("a report")
    };
    let count = |report: &str, kernel: &str, what: &str| -> u32 {
        let line = report.lines().find(|line| line.starts_with(&format!("{kernel}:")));
        let line = line.unwrap_or_else(|| panic!("{kernel} is in no report"));
        let fields = line.split(' ').filter_map(|field| field.split_once('='));
        fields.filter(|(name, _)| *name == what).map(|(_, n)| n.parse::<u32>().unwrap()).sum()
    };
    let q6_k = report("mmq_q6_k");
    let copies = |kernel: &str| count(&q6_k, kernel, "LDGSTS");
    // Prologue and loop: activations, their scales, and what the variant adds.
    assert!(copies("mmq_q6_k_kdr2_exp") > copies("mmq_q6_k_kdr2_padded"));
    assert!(copies("mmq_q6_k_kdr2_exp_dsc") > copies("mmq_q6_k_kdr2_exp"));
    assert_eq!(copies("mmq_q6_k_kdr2_exp_loaded"), copies("mmq_q6_k_kdr2_padded"));
    assert!(count(&q6_k, "mmq_q6_k_kdr2_padded", "LDG.128") >= 4, "16-byte loads of ql and qh");
    assert_eq!(count(&q6_k, "mmq_q6_k_kdr2_exp_dsc", "LDG.128"), 0);
    for line in q6_k.lines().filter(|line| !line.starts_with('#')) {
        let kernel = line.split(':').next().unwrap_or_default();
        // 80 registers: three blocks of 256 threads on a multiprocessor.
        assert!(count(&q6_k, kernel, "reg") <= 80, "{line}");
        assert!(count(&q6_k, kernel, "IMMA") >= 32, "{line}");
    }
    let q4_k = report("mmq_q4_k");
    for kd in ["kd4", "kd8"] {
        let [eb, padded] = ["eb", "padded"].map(|from| format!("mmq_q4_k_{kd}_{from}"));
        assert!(count(&q4_k, &eb, "LDGSTS") > count(&q4_k, &padded, "LDGSTS"));
        assert!(count(&q4_k, &padded, "LDG.128") >= 4, "16-byte loads of nibbles");
        assert!(count(&q4_k, &eb, "reg") <= 128 && count(&q4_k, &padded, "reg") <= 128);
    }
}

/// Blocks of attention by clusters fit beside one of a ring: 8 warps of 112 registers beside 18 of 56.
#[test]
fn cluster_attention_fits_beside_a_ring() {
    let path = kernels().join("dist/attention_cluster.sass");
    let report = std::fs::read_to_string(path).expect("a report");
    let kernels: Vec<&str> = report.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(kernels.len(), 3);
    for line in kernels {
        let fields = line.split(' ').filter_map(|field| field.split_once('='));
        let count = |what: &str| -> u32 {
            fields
                .clone()
                .filter(|(name, _)| *name == what)
                .map(|(_, n)| n.parse::<u32>().unwrap())
                .sum()
        };
        assert!(count("reg") <= 112 && count("stack") == 0, "{line}");
        assert!(count("LDGSTS") >= 16 && count("HMMA") >= 16 && count("LDSM") >= 8, "{line}");
    }
}
