//! Puts the target triple and, when the build sets `MINFER_COMMIT`, the commit into `--version`.

fn main() {
    println!("cargo::rerun-if-env-changed=MINFER_COMMIT");
    let commit = std::env::var("MINFER_COMMIT").unwrap_or_else(|_| "unknown".to_owned());
    let target = std::env::var("TARGET").unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo::rustc-env=MINFER_COMMIT_OR_UNKNOWN={commit}");
    println!("cargo::rustc-env=MINFER_TARGET={target}");
}
