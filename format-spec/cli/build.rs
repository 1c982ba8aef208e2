//! Puts the target triple and, when the build sets `MINFER_COMMIT` and
//! `MINFER_BUILD_NUMBER`, commit and build number where binaries find them.

fn main() {
    println!("cargo::rerun-if-env-changed=MINFER_COMMIT");
    let commit = std::env::var("MINFER_COMMIT").unwrap_or_else(|_| "unknown".to_owned());
    let target = std::env::var("TARGET").unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo::rerun-if-env-changed=MINFER_BUILD_NUMBER");
    let number =
        std::env::var("MINFER_BUILD_NUMBER").ok().and_then(|text| text.parse::<u32>().ok());
    println!("cargo::rustc-env=MINFER_BUILD_NUMBER_OR_0={}", number.unwrap_or(0));
    println!("cargo::rustc-env=MINFER_COMMIT_OR_UNKNOWN={commit}");
    println!("cargo::rustc-env=MINFER_TARGET={target}");
}
