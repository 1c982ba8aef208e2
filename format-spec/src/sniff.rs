//! What bytes that are not what they should be look like, for error messages.

/// How a file that starts with `bytes` looks, in words that help its owner.
pub fn looks_like(bytes: &[u8]) -> String {
    const STARTS: [(&[u8], &str); 15] = [
        (b"GGUF", "a GGUF file (minfer-pack turns it into an .mpk container)"),
        (b"\x89MPK", "an .mpk container (it is packed already)"),
        (b"version https://git-lfs", "a git-lfs pointer (fetch the file itself: git lfs pull)"),
        (b"FUGG", "a GGUF magic in reverse (endianness?)"),
        (b"lmgg", "a GGML file from before GGUF (convert it with llama.cpp's tools)"),
        (b"fmgg", "a GGML file from before GGUF (convert it with llama.cpp's tools)"),
        (b"tjgg", "a GGML file from before GGUF (convert it with llama.cpp's tools)"),
        (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or a wheel?)"),
        (b"\x1f\x8b", "gzip data (decompress it first)"),
        (b"\xfd7zXZ\x00", "xz data (decompress it first)"),
        (b"\x28\xb5\x2f\xfd", "zstd data (decompress it first)"),
        (b"BZh", "bzip2 data (decompress it first)"),
        (b"{", "JSON (an error message instead of the file?)"),
        (b"\x80\x02", "a Python pickle (a PyTorch checkpoint?)"),
        (b"\x7fELF", "a program"),
    ];
    if bytes.is_empty() {
        return "the file is empty".into();
    }
    if let Some((_, name)) = STARTS.iter().find(|(start, _)| bytes.starts_with(start)) {
        return format!("looks like {name}");
    }
    let start = bytes.get(..bytes.len().min(64)).unwrap_or(bytes);
    let text = start.trim_ascii_start().to_ascii_lowercase();
    if text.starts_with(b"<!doctype") || text.starts_with(b"<html") || text.starts_with(b"<?xml") {
        return "looks like an HTML page (a failed download?)".into();
    }
    if let Some((len, [b'{', ..])) = bytes.split_first_chunk::<8>()
        && u64::from_le_bytes(*len) < 100_000_000
    {
        return "looks like a safetensors file (convert it to GGUF first)".into();
    }
    let magic = bytes.get(..bytes.len().min(4)).unwrap_or(bytes);
    if magic.iter().all(|&byte| byte == 0) {
        return "it starts with zeros (an unfinished download?)".into();
    }
    format!("it starts with \"{}\"", magic.escape_ascii())
}
