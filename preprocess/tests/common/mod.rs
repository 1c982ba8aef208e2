//! Tiny GGUF files, running the built binaries, and looking at what they leave.
// Each test binary uses its own part of this.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// One tensor of a tiny GGUF.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: &'static str,
    /// ggml's id, elements and bytes of a block, and offsets of the halves in it.
    pub(crate) quant: Quant,
    pub(crate) dims: Vec<u64>,
}

/// What the writer has to know about a type to fill its blocks with usable noise.
#[derive(Clone, Copy)]
pub(crate) struct Quant {
    pub(crate) id: u32,
    pub(crate) elems: u64,
    pub(crate) bytes: u64,
    /// Offsets of f16 scales in a block.
    pub(crate) halves: &'static [usize],
}

pub(crate) const F32: Quant = Quant { id: 0, elems: 1, bytes: 4, halves: &[] };
pub(crate) const F16: Quant = Quant { id: 1, elems: 1, bytes: 2, halves: &[0] };
pub(crate) const Q4_1: Quant = Quant { id: 3, elems: 32, bytes: 20, halves: &[0, 2] };
pub(crate) const Q5_0: Quant = Quant { id: 6, elems: 32, bytes: 22, halves: &[0] };
pub(crate) const Q8_0: Quant = Quant { id: 8, elems: 32, bytes: 34, halves: &[0] };
pub(crate) const Q3_K: Quant = Quant { id: 11, elems: 256, bytes: 110, halves: &[108] };
pub(crate) const Q4_K: Quant = Quant { id: 12, elems: 256, bytes: 144, halves: &[0, 2] };
pub(crate) const Q6_K: Quant = Quant { id: 14, elems: 256, bytes: 210, halves: &[208] };

/// A GGUF in the making.
#[derive(Clone)]
pub(crate) struct TinyGguf {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) alignment: u64,
    /// Bytes behind the last tensor's padding.
    pub(crate) trailing: Vec<u8>,
    /// Value of the padding bytes; GGUF writers use 0.
    pub(crate) padding: u8,
    /// `tokenizer.ggml.pre` of a byte-level BPE tokenizer; none at all if absent.
    pub(crate) pre: Option<&'static str>,
    /// `split.no`, `split.count` and `split.tensors.count`.
    pub(crate) split: Option<(u16, u16, i32)>,
}

impl TinyGguf {
    /// A model with a tensor of every type above, two q6_K matrices (one with an odd number of
    /// rows) among them.
    pub(crate) fn new() -> Self {
        let tensor = |name, quant, dims: &[u64]| Tensor { name, quant, dims: dims.to_vec() };
        Self {
            tensors: vec![
                tensor("token_embd.weight", Q6_K, &[512, 70]),
                tensor("blk.0.attn_norm.weight", F32, &[512]),
                tensor("blk.0.attn_q.weight", Q4_K, &[512, 32]),
                tensor("blk.0.attn_k.weight", Q5_0, &[96, 5]),
                tensor("blk.0.attn_v.weight", Q6_K, &[256, 13]),
                tensor("blk.0.ffn_up.weight", Q8_0, &[96, 3]),
                tensor("blk.0.ffn_gate.weight", Q4_1, &[32, 7]),
                tensor("blk.0.ffn_down.weight", Q3_K, &[256, 3]),
                tensor("blk.0.extra.weight", F16, &[10, 3, 2]),
            ],
            alignment: 32,
            trailing: Vec::new(),
            padding: 0,
            pre: Some("gpt-2"),
            split: None,
        }
    }

    /// The smallest model with every plane: one q6_K block and one vector.
    pub(crate) fn smallest() -> Self {
        let tensor = |name, quant, dims: &[u64]| Tensor { name, quant, dims: dims.to_vec() };
        let tensors = vec![tensor("a.weight", Q6_K, &[256, 1]), tensor("a.bias", F32, &[3])];
        Self { tensors, pre: None, ..Self::new() }
    }

    /// Everything up to the end of the tensor infos.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        let mut n_kv = 0u64;
        let mut kv = Vec::new();
        let mut put = |key: &str, value_type: u32, value: Vec<u8>| {
            n_kv += 1;
            kv.extend(string(key));
            kv.extend(value_type.to_le_bytes());
            kv.extend(value);
        };
        put("general.architecture", 8, string("llama"));
        put("general.name", 8, string("tiny \u{1f409}"));
        put("general.alignment", 4, (self.alignment as u32).to_le_bytes().to_vec());
        put("tiny.unknown", 12, 2.5f64.to_le_bytes().to_vec());
        put("tiny.list", 9, array(5, &[&(-3i32).to_le_bytes(), &7i32.to_le_bytes()]));
        if let Some((no, count, n_tensors)) = self.split {
            put("split.no", 2, no.to_le_bytes().to_vec());
            put("split.count", 2, count.to_le_bytes().to_vec());
            put("split.tensors.count", 5, n_tensors.to_le_bytes().to_vec());
        }
        if let Some(pre) = self.pre {
            let tokens = ["<|endoftext|>", "a", "b", "c", "ab", "abc", "\u{120}"].map(string);
            let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
            let merges = ["a b", "ab c"].map(string);
            let merges: Vec<&[u8]> = merges.iter().map(Vec::as_slice).collect();
            let types = [3i32, 1, 1, 1, 1, 1, 1].map(i32::to_le_bytes);
            let types: Vec<&[u8]> = types.iter().map(<[u8; 4]>::as_slice).collect();
            put("tokenizer.ggml.model", 8, string("gpt2"));
            put("tokenizer.ggml.pre", 8, string(pre));
            put("tokenizer.ggml.tokens", 9, array(8, &tokens));
            put("tokenizer.ggml.token_type", 9, array(5, &types));
            put("tokenizer.ggml.merges", 9, array(8, &merges));
            put("tokenizer.ggml.eos_token_id", 4, 0u32.to_le_bytes().to_vec());
        }
        out.extend(n_kv.to_le_bytes());
        out.extend(kv);
        let mut offset = 0u64;
        for tensor in &self.tensors {
            out.extend(string(tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.quant.id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + tensor.n_bytes()).next_multiple_of(self.alignment);
        }
        out
    }

    /// The whole file, and where each tensor's data lies in it.
    pub(crate) fn build(&self) -> (Vec<u8>, Vec<std::ops::Range<usize>>) {
        let mut out = self.header();
        let pad = |out: &mut Vec<u8>| {
            out.resize(out.len().next_multiple_of(self.alignment as usize), self.padding);
        };
        pad(&mut out);
        let mut ranges = Vec::new();
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
        for tensor in &self.tensors {
            let start = out.len();
            for _ in 0..tensor.n_bytes() / tensor.quant.bytes {
                out.extend(noise.block(tensor.quant));
            }
            ranges.push(start..out.len());
            pad(&mut out);
        }
        out.extend(&self.trailing);
        (out, ranges)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.build().0
    }
}

impl Tensor {
    pub(crate) fn n_bytes(&self) -> u64 {
        self.dims.iter().product::<u64>() / self.quant.elems * self.quant.bytes
    }
}

/// xorshift64: the same file every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn block(&mut self, quant: Quant) -> Vec<u8> {
        let mut block: Vec<u8> = (0..quant.bytes).map(|_| (self.next() >> 32) as u8).collect();
        if quant.id == F32.id {
            // Between 1 and 2, with noise in the mantissa.
            block[2] |= 0x80;
            block[3] = 0x3f;
        }
        for &at in quant.halves {
            // Exponent 8..=15: small and finite, of either sign.
            block[at + 1] = block[at + 1] & 0x9f | 0x20;
        }
        block
    }
}

fn string(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

fn array(elem_type: u32, elems: &[&[u8]]) -> Vec<u8> {
    let mut out = elem_type.to_le_bytes().to_vec();
    out.extend((elems.len() as u64).to_le_bytes());
    elems.iter().for_each(|elem| out.extend(*elem));
    out
}

/// A directory with a tiny model in it.
pub(crate) struct Bench {
    pub(crate) dir: TempDir,
    pub(crate) gguf: PathBuf,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(&TinyGguf::new().bytes())
    }

    pub(crate) fn with(bytes: &[u8]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let gguf = dir.path().join("tiny.gguf");
        fs::write(&gguf, bytes).expect("writing the GGUF");
        Self { dir, gguf }
    }

    /// With `tiny.mpk` packed from it.
    pub(crate) fn packed() -> (Self, PathBuf) {
        let bench = Self::new();
        let mpk = bench.path("tiny.mpk");
        expect(pack([bench.gguf.as_os_str(), mpk.as_os_str()]), 0);
        (bench, mpk)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Waits until a temporary file has been made.
    pub(crate) fn wait_for_temporary(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.names().iter().any(|name| name.contains(".tmp-")) {
            assert!(Instant::now() < deadline, "no temporary file appeared");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Names in the directory, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).expect("reading the directory");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("an entry").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }
}

/// Command for one of the binaries, without the caller's variables that change what it does.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_remove("MINFER_THREADS").env_remove("RUST_BACKTRACE").env("NO_COLOR", "1");
    command
}

pub(crate) const PACK: &str = env!("CARGO_BIN_EXE_minfer-pack");
pub(crate) const UNPACK: &str = env!("CARGO_BIN_EXE_minfer-unpack");
pub(crate) const VERIFY: &str = env!("CARGO_BIN_EXE_minfer-verify");

pub(crate) fn pack<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    command(PACK).args(args).output().expect("running minfer-pack")
}

pub(crate) fn unpack<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    command(UNPACK).args(args).output().expect("running minfer-unpack")
}

pub(crate) fn verify<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    command(VERIFY).args(args).output().expect("running minfer-verify")
}

/// Demands an exit code; returns (stdout, stderr).
#[track_caller]
pub(crate) fn expect(output: Output, code: i32) -> (String, String) {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "stdout: {stdout}\nstderr: {stderr}");
    assert!(!stderr.contains("internal error"), "{stderr}");
    (stdout, stderr)
}

pub(crate) fn read(path: &Path) -> Vec<u8> {
    fs::read(path).expect("reading a file")
}

pub(crate) fn json(stdout: &str) -> Value {
    assert_eq!(stdout.lines().count(), 1, "one object: {stdout}");
    serde_json::from_str(stdout).expect("JSON")
}

pub(crate) fn sha256sum_accepts(lines: &[u8]) -> bool {
    let mut child = Command::new("sha256sum")
        .args(["-c", "--status", "--strict"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("sha256sum");
    child.stdin.take().expect("piped").write_all(lines).expect("writing");
    child.wait().expect("waiting").success()
}

/// A GGUF with one f32 matrix of zeros of this many bytes, which takes no room on disk.
pub(crate) fn sparse_gguf(bench: &Bench, n_bytes: u64) -> PathBuf {
    let tensor = Tensor { name: "big.weight", quant: F32, dims: vec![1 << 20, n_bytes >> 22] };
    let header = TinyGguf { tensors: vec![tensor], ..TinyGguf::new() }.header();
    let path = bench.path("big.gguf");
    let mut file = fs::File::create(&path).expect("creating");
    file.write_all(&header).expect("writing");
    let data_offset = (header.len() as u64).next_multiple_of(32);
    file.set_len(data_offset + n_bytes).expect("growing");
    path
}
