//! `minfer-unpack` and split models, as a user runs them.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{
    Bench, Q8_0, Tensor, TinyGguf, UNPACK, command, expect, json, pack, read, sparse_gguf, unpack,
    verify,
};
use format_spec::container::Container;

const PLANES: [&str; 5] = ["none", "default", "cpu-fast", "cuda-fast", "all"];

#[test]
fn the_gguf_comes_back_beside_the_container() {
    for planes in PLANES {
        let odd = TinyGguf { padding: 0xa5, trailing: b"tail".to_vec(), ..TinyGguf::new() };
        let bench = Bench::with(&odd.bytes());
        let mpk = bench.path("m.mpk");
        expect(
            pack([OsStr::new("--planes"), planes.as_ref(), bench.gguf.as_ref(), mpk.as_ref()]),
            0,
        );
        let (stdout, stderr) = expect(unpack([&mpk]), 0);
        assert_eq!(stdout, "");
        assert!(stderr.contains("4 bytes behind the last tensor"), "{stderr}");
        let line = stderr.lines().last().expect("a summary");
        assert!(line.contains("m.gguf: unpacked 9 tensors, "), "{line}");
        assert!(line.ends_with(", verified"), "{line}");
        assert!(read(&bench.path("m.gguf")) == read(&bench.gguf), "{planes}");
        assert_eq!(bench.names(), ["m.gguf", "m.mpk", "tiny.gguf"]);
    }
}

#[test]
fn the_bytes_do_not_depend_on_threads() {
    let (bench, mpk) = Bench::packed();
    for threads in ["1", "2", "7"] {
        let out = bench.path("out.gguf");
        let args = [mpk.as_os_str(), out.as_ref(), "-qft".as_ref(), threads.as_ref()];
        let (_, stderr) = expect(unpack(args), 0);
        assert_eq!(stderr, "");
        assert!(read(&out) == read(&bench.gguf));
    }
}

#[test]
fn json_results_carry_the_exit_name() {
    let (bench, mpk) = Bench::packed();
    let out = bench.path("out.gguf");
    let (stdout, _) = expect(unpack([OsStr::new("--json"), mpk.as_ref(), out.as_ref()]), 0);
    let result = json(&stdout);
    assert_eq!(result["exit"], "ok");
    assert_eq!(result["tensors"], 9);
    assert_eq!(result["outputs"][0], out.to_str().expect("text"));
    assert_eq!(result["verified"], true);
    let (stdout, _) = expect(unpack([OsStr::new("--json"), mpk.as_ref(), out.as_ref()]), 4);
    assert_eq!(json(&stdout)["exit"], "io");
}

#[test]
fn an_existing_output_is_kept_unless_forced() {
    let (bench, mpk) = Bench::packed();
    // By default it would be tiny.gguf, which is there.
    let before = read(&bench.gguf);
    let (_, stderr) = expect(unpack([&mpk]), 4);
    assert!(stderr.contains("tiny.gguf: exists already (--force replaces it)"), "{stderr}");
    fs::write(&bench.gguf, b"something else").expect("writing");
    expect(unpack([OsStr::new("--force"), mpk.as_ref()]), 0);
    assert!(read(&bench.gguf) == before);
    // Nor is it ever the container.
    let link = bench.path("link.gguf");
    symlink(&mpk, &link).expect("a link");
    let (_, stderr) = expect(unpack([OsStr::new("-f"), mpk.as_ref(), link.as_ref()]), 4);
    assert!(stderr.contains("is the input itself"), "{stderr}");
}

#[test]
fn a_damaged_container_gives_no_output() {
    let (bench, mpk) = Bench::packed();
    let sound = read(&mpk);
    let container = Container::parse(&sound).expect("a container");
    let out = bench.path("out.gguf");
    for object in container.objects().iter().filter(|object| object.kind.is_base()) {
        let mut file = sound.clone();
        file[object.offset as usize] ^= 1;
        fs::write(&mpk, &file).expect("writing");
        let (_, stderr) = expect(unpack([&mpk, &out]), 1);
        let says = format!("{}: bytes {}..", object.name, object.offset);
        assert!(stderr.contains(&says) && stderr.contains("damaged"), "{stderr}");
        assert_eq!(bench.names(), ["tiny.gguf", "tiny.mpk"]);
    }
    // Header, index and source are checked first: exit 3.
    for at in [20, 200, container.header().index.end as usize + 70] {
        let mut file = sound.clone();
        file[at] ^= 1;
        fs::write(&mpk, &file).expect("writing");
        let (_, stderr) = expect(unpack([&mpk, &out]), 3);
        assert!(stderr.contains("sha256"), "{stderr}");
    }
    assert_eq!(bench.names(), ["tiny.gguf", "tiny.mpk"]);
}

#[test]
fn what_is_no_container_is_said_so() {
    let bench = Bench::new();
    let (_, stderr) = expect(unpack([&bench.gguf]), 3);
    assert!(stderr.contains("not an .mpk container: it is a GGUF file already"), "{stderr}");
    let odd = bench.path("odd.mpk");
    for (bytes, says) in [
        (&b""[..], "not an .mpk container: the file is empty"),
        (b"<!DOCTYPE html>", "not an .mpk container: looks like an HTML page"),
        (b"FUGG\x03\0\0\0", "not an .mpk container: looks like a GGUF magic in reverse"),
    ] {
        fs::write(&odd, bytes).expect("writing");
        let (_, stderr) = expect(unpack([&odd]), 3);
        assert!(stderr.contains(says), "{says}: {stderr}");
    }
    expect(unpack([bench.path("none.mpk")]), 4);
    expect(unpack([bench.dir.path()]), 3);
    for args in [["-", "x.gguf"], ["x.mpk", "-"]] {
        let (_, stderr) = expect(unpack(args), 2);
        assert!(stderr.contains("`-` is refused"), "{stderr}");
    }
    expect(unpack([""; 0]), 2);
}

#[test]
fn a_signal_removes_what_is_unfinished() {
    let bench = Bench::new();
    let big = sparse_gguf(&bench, 256 << 20);
    let mpk = bench.path("big.mpk");
    expect(pack([OsStr::new("--no-verify"), big.as_ref(), mpk.as_ref()]), 0);
    fs::remove_file(&big).expect("removing");
    let mut unpacker = command(UNPACK);
    let unpacker = unpacker.arg("--json").arg(&mpk);
    let unpacker = unpacker.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = unpacker.spawn().expect("runs");
    bench.wait_for_temporary();
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill").args(["-s", "TERM", &pid]).status();
    assert!(sent.expect("kill").success(), "it ended before it was told to");
    let (stdout, _) = expect(child.wait_with_output().expect("waiting"), 143);
    assert_eq!(json(&stdout), serde_json::json!({"exit": "terminated"}));
    assert_eq!(bench.names(), ["big.mpk", "tiny.gguf"]);
}

/// The tensors of the tiny model over three files, and their paths.
fn split(bench: &Bench) -> Vec<PathBuf> {
    let whole = TinyGguf::new();
    fs::remove_file(&bench.gguf).expect("removing");
    let parts = [0..0, 0..4, 4..9];
    let n_tensors = whole.tensors.len() as i32;
    let write = |(i, tensors): (usize, std::ops::Range<usize>)| {
        let part = TinyGguf {
            tensors: whole.tensors[tensors].to_vec(),
            pre: whole.pre.filter(|_| i == 0),
            split: Some((i as u16, 3, n_tensors)),
            ..TinyGguf::new()
        };
        let path = bench.path(&format!("tiny-{:05}-of-00003.gguf", i + 1));
        fs::write(&path, part.bytes()).expect("writing");
        path
    };
    parts.into_iter().enumerate().map(write).collect()
}

#[test]
fn a_split_model_is_packed_whole_and_becomes_its_parts_again() {
    let bench = Bench::new();
    let parts = split(&bench);
    let mpk = bench.path("tiny.mpk");
    // Any part stands for all.
    let mut roots = Vec::new();
    for part in &parts {
        let (_, stderr) = expect(pack([OsStr::new("-f"), part.as_ref()]), 0);
        assert!(stderr.contains("tiny.mpk: packed 9 tensors"), "{stderr}");
        roots.push(read(&mpk));
    }
    assert!(roots.windows(2).all(|pair| pair[0] == pair[1]));
    expect(verify([OsStr::new("--source"), parts[1].as_ref(), mpk.as_ref()]), 0);
    expect(unpack([&mpk, &bench.path("again.gguf")]), 0);
    for (i, part) in parts.iter().enumerate() {
        let again = bench.path(&format!("again-{:05}-of-00003.gguf", i + 1));
        assert!(read(&again) == read(part), "part {i}");
    }
    // All or nothing: one of them in the way keeps the others from being written.
    let (_, stderr) = expect(unpack([&mpk]), 4);
    assert!(stderr.contains("tiny-00001-of-00003.gguf: exists already"), "{stderr}");
    fs::remove_file(&parts[0]).expect("removing");
    let (_, stderr) = expect(unpack([&mpk]), 4);
    assert!(stderr.contains("tiny-00002-of-00003.gguf: exists already"), "{stderr}");
    assert!(!parts[0].exists());
}

#[test]
fn parts_that_are_no_set_are_refused() {
    let bench = Bench::new();
    let parts = split(&bench);
    let refused = |path: &Path, code: i32, says: &str| {
        let out = bench.path("out.mpk");
        let (_, stderr) = expect(pack([path, out.as_path()]), code);
        assert!(stderr.contains(says), "{stderr}");
        assert!(!out.exists());
    };
    // Two parts joined with cat, under a name of its own.
    let joined = bench.path("joined.gguf");
    fs::write(&joined, [read(&parts[0]), read(&parts[1])].concat()).expect("writing");
    refused(
        &joined,
        3,
        "is part 1 of a model split over 3 files: its name must end in -00001-of-00003.gguf, with \
         the other parts beside it (parts that were joined with cat are no model)",
    );
    // A part under the name of another.
    let second = read(&parts[1]);
    fs::write(&parts[1], read(&parts[0])).expect("writing");
    refused(&parts[0], 3, "tiny-00002-of-00003.gguf: key split.no of part 2");
    refused(&parts[1], 3, "its name must end in -00001-of-00003.gguf");
    // One that is not there, one that is cut off, one that is no GGUF.
    fs::remove_file(&parts[1]).expect("removing");
    refused(&parts[0], 4, "tiny-00002-of-00003.gguf: cannot open: No such file");
    fs::write(&parts[1], &second[..second.len() - 64]).expect("writing");
    refused(&parts[0], 3, "tiny-00002-of-00003.gguf: tensor ");
    fs::write(&parts[1], b"version https://git-lfs").expect("writing");
    refused(
        &parts[0],
        3,
        "tiny-00002-of-00003.gguf: not a GGUF file: looks like a git-lfs pointer",
    );
}

/// A tensor with rows longer than any buffer of a leaf, through the binaries.
#[test]
fn long_rows_come_back() {
    let tensor = Tensor { name: "long.weight", quant: Q8_0, dims: vec![5_000_032, 5] };
    let bench = Bench::with(&TinyGguf { tensors: vec![tensor], ..TinyGguf::new() }.bytes());
    let (mpk, out) = (bench.path("m.mpk"), bench.path("out.gguf"));
    expect(pack([OsStr::new("--planes=planar"), bench.gguf.as_ref(), mpk.as_ref()]), 0);
    expect(unpack([&mpk, &out]), 0);
    assert!(read(&out) == read(&bench.gguf));
}
