//! `minfer-verify` as a user runs it.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{
    Bench, PACK, TinyGguf, VERIFY, command, expect, json, pack, read, sha256sum_accepts,
    sparse_gguf, verify,
};
use format_spec::container::{Builder, Container, ObjectDigest, sha256};

fn flip(path: &Path, at: u64) {
    let mut file = fs::File::options().read(true).write(true).open(path).expect("opening");
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).expect("seeking");
    file.read_exact(&mut byte).expect("reading");
    file.seek(SeekFrom::Start(at)).expect("seeking");
    file.write_all(&[byte[0] ^ 1]).expect("writing");
}

#[test]
fn a_damaged_object_is_named_with_its_bytes() {
    let (_bench, mpk) = Bench::packed();
    let bytes = read(&mpk);
    let name = mpk.display();
    for object in Container::parse(&bytes).expect("a container").objects() {
        let at = object.offset + object.len / 2;
        flip(&mpk, at);
        let (stdout, stderr) = expect(verify([&mpk]), 1);
        let (start, end) = (object.offset, object.offset + object.len);
        let line = format!("{name}: {}: FAILED (bytes {start}..{end})", object.tensor);
        assert!(stdout.starts_with(&line), "{line}\n{stdout}");
        assert_eq!(stdout.lines().count(), 1, "{stdout}");
        assert!(stderr.contains("WARNING: 1 model did NOT match"), "{stderr}");
        // Structure alone does not see it.
        expect(verify([OsStr::new("--quick"), mpk.as_os_str()]), 0);
        flip(&mpk, at);
    }
    let (stdout, stderr) = expect(verify([&mpk]), 0);
    assert_eq!((stdout, stderr), (format!("{name}: OK\n"), String::new()));
}

#[test]
fn quiet_status_and_several_files() {
    let (bench, good) = Bench::packed();
    let bad = bench.path("bad.mpk");
    fs::copy(&good, &bad).expect("copying");
    let offset = Container::parse(&read(&good)).expect("a container").objects()[3].offset;
    flip(&bad, offset);
    let (gguf, missing) = (bench.gguf.clone(), bench.path("missing.mpk"));
    let run = |flags: &[&str], files: &[&PathBuf], code| {
        let mut command = command(VERIFY);
        expect(command.args(flags).args(files).output().expect("runs"), code)
    };
    let (stdout, stderr) = run(&[], &[&missing, &bad, &gguf, &good], 4);
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 4, "every file is checked: {stdout}");
    assert!(lines[0].ends_with("missing.mpk: FAILED open or read"), "{stdout}");
    assert!(lines[1].contains("bad.mpk: blk.0.attn_k.weight: FAILED (bytes "), "{stdout}");
    assert!(lines[2].contains("tiny.gguf: FAILED (not a container"), "{stdout}");
    assert!(lines[3].ends_with("tiny.mpk: OK"), "{stdout}");
    for warning in
        ["1 model did NOT match", "1 file could not be read", "1 file is not a container"]
    {
        assert!(stderr.contains(&format!("WARNING: {warning}")), "{warning}: {stderr}");
    }
    let (stdout, _) = run(&["--quiet"], &[&good, &bad], 1);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    assert_eq!(run(&["--status"], &[&good, &bad], 1), Default::default());
    assert_eq!(run(&["--status"], &[&good], 0), Default::default());
    run(&[], &[&good, &gguf, &bad], 3);
    let (stdout, _) = run(&["--all"], &[&bad], 1);
    assert_eq!(stdout.lines().filter(|line| line.contains(": OK in ")).count(), 12, "{stdout}");
    let result = json(&run(&["--json"], &[&good, &bad], 1).0);
    assert_eq!(result["exit"], "failed");
    assert_eq!(result["files"][0]["result"], "ok");
    assert_eq!(result["files"][1]["failures"][0]["tensor"], "blk.0.attn_k.weight");
    assert_eq!(result["files"][1]["failures"][0]["start"], offset);
}

#[test]
fn a_front_that_is_not_to_be_trusted_is_exit_3() {
    let (bench, mpk) = Bench::packed();
    let bytes = read(&mpk);
    let data_offset = Container::parse(&bytes).expect("a container").header().data_offset;
    for at in [0, 5, 9, 17, 60, 130, 400, data_offset / 2, data_offset - 1] {
        flip(&mpk, at);
        let (_, stderr) = expect(verify([&mpk]), 3);
        assert!(stderr.contains("tiny.mpk: "), "{at}: {stderr}");
        flip(&mpk, at);
    }
    for len in [bytes.len() - 1, data_offset as usize + 5, data_offset as usize, 200, 8, 1] {
        let cut = bench.path("cut.mpk");
        fs::write(&cut, &bytes[..len]).expect("writing");
        let (_, stderr) = expect(verify([&cut]), 3);
        assert!(stderr.contains("needs bytes") || stderr.contains("container"), "{len}: {stderr}");
    }
    expect(verify([&mpk]), 0);
}

#[test]
fn the_source_is_compared_bit_for_bit() {
    let (bench, mpk) = Bench::packed();
    let (bytes, ranges) = TinyGguf::new().build();
    let other = bench.path("other.gguf");
    let against = |changed: &[u8], code| {
        fs::write(&other, changed).expect("writing");
        expect(verify([OsStr::new("--source"), other.as_os_str(), mpk.as_os_str()]), code)
    };
    against(&bytes, 0);
    for (range, tensor) in ranges.iter().zip(TinyGguf::new().tensors) {
        let mut changed = bytes.clone();
        changed[range.end - 1] ^= 0x10;
        let (stdout, _) = against(&changed, 1);
        assert!(stdout.contains(&format!(": {}: FAILED (bytes ", tensor.name)), "{stdout}");
        assert!(stdout.contains(&format!("at its byte {}", range.end - 1)), "{stdout}");
    }
    // A key's value, padding, a byte more.
    let at = bytes.windows(4).position(|window| window == b"tiny").expect("the name");
    let mut changed = bytes.clone();
    changed[at] = b'T';
    assert!(against(&changed, 1).0.contains("source: FAILED: the header differs"));
    let mut changed = bytes.clone();
    changed[ranges[8].end] = 1;
    assert!(against(&changed, 1).0.contains("the padding differs"));
    against(&[bytes.as_slice(), b"x"].concat(), 1);
    against(&bytes[..bytes.len() - 2000], 3);
    let missing = bench.path("missing.gguf");
    expect(verify([OsStr::new("--source"), missing.as_os_str(), mpk.as_os_str()]), 4);
    let args = [OsStr::new("--source"), mpk.as_os_str(), mpk.as_os_str()];
    assert!(expect(verify(args), 3).1.contains("wants the GGUF"));
}

#[test]
fn a_source_that_is_another_file_is_said_once() {
    let (bench, mpk) = Bench::packed();
    let other = bench.path("other.gguf");
    let mut tiny = TinyGguf::new();
    tiny.tensors.iter_mut().for_each(|tensor| tensor.dims[1..].fill(2));
    fs::write(&other, tiny.bytes()).expect("writing");
    let run = |flags: &[&str], code| {
        let mut command = command(VERIFY);
        let command = command.args(flags).arg("--source").arg(&other).arg(&mpk);
        expect(command.output().expect("runs"), code).0
    };
    let says = |text: &str, part: &str| text.lines().filter(|line| line.contains(part)).count();
    let verdict = format!(
        "{}: source: FAILED: {} is not the file that it was packed from",
        mpk.display(),
        other.display()
    );
    let all = run(&["-v"], 1);
    assert_eq!(all.lines().next(), Some(verdict.as_str()));
    let n_all = all.lines().count();
    assert!(n_all > 8 && says(&all, "more differences") == 0, "{all}");
    let short = run(&[], 1);
    assert_eq!(short.lines().count(), 1 + 3 + 1, "{short}");
    let lines: Vec<_> = short.lines().collect();
    assert_eq!(lines[..4], all.lines().collect::<Vec<_>>()[..4]);
    let more = format!("source: FAILED: {} more differences (-v lists them)", n_all - 4);
    assert!(lines[4].ends_with(&more), "{short}");
    let failures = json(&run(&["--json"], 1))["files"][0]["failures"].as_array().map(Vec::len);
    assert_eq!(failures, Some(n_all - 1), "JSON has all of them");
    // Of a container that is damaged it is not the source's fault.
    fs::write(&other, TinyGguf::new().bytes()).expect("writing");
    flip(&mpk, Container::parse(&read(&mpk)).expect("a container").objects()[3].offset);
    let damaged = run(&[], 1);
    assert_eq!((damaged.lines().count(), says(&damaged, "is not the file")), (2, 0), "{damaged}");
}

#[test]
fn deep_finds_a_plane_byte_that_was_changed_with_its_hashes() {
    let (_bench, mpk) = Bench::packed();
    let deep = || verify([OsStr::new("--deep"), mpk.as_os_str()]);
    expect(deep(), 0);
    let mut bytes = read(&mpk);
    let original = bytes.clone();
    let container = Container::parse(&original).expect("a container");
    let plane = container.tensor("blk.0.attn_v.weight").expect("a tensor").planes[0];
    bytes[plane.offset as usize + 300] ^= 1;
    let kinds = |tensor: &format_spec::gguf::TensorInfo<'_>| {
        let entry = container.tensor(tensor.name()).expect("a tensor");
        std::iter::once(entry.base.kind).chain(entry.planes.iter().map(|p| p.kind)).collect()
    };
    let vocab = container.vocab_bytes().unwrap_or_default().to_vec();
    let source = container.source().section().to_vec();
    let builder = Builder::new(source, vocab, kinds).expect("a layout");
    let digests: Vec<_> =
        container.objects().iter().map(|o| ObjectDigest::of(o.bytes(&bytes))).collect();
    let (front, _) = builder.finish(&digests).expect("a front");
    bytes[..front.len()].copy_from_slice(&front);
    fs::write(&mpk, &bytes).expect("writing");
    expect(verify([&mpk]), 0);
    let (stdout, _) = expect(deep(), 1);
    let at = plane.offset + 300;
    let line = format!("blk.0.attn_v.weight: FAILED (bytes {at}..{}) in exp13x256", at + 1);
    assert!(stdout.contains(&line), "{line}: {stdout}");
    assert!(stdout.contains("row 1, element 44"), "{stdout}");
}

#[test]
fn list_metadata_root_and_sha256() {
    let (bench, mpk) = Bench::packed();
    let print = |flag: &str| expect(verify([OsStr::new(flag), mpk.as_os_str()]), 0).0;
    let list = print("--list");
    assert_eq!(list.lines().count(), 1 + 13, "{list}");
    assert!(list.lines().any(|l| l.contains("token_embd.weight") && l.contains("dsc")), "{list}");
    assert!(print("--metadata").contains("general.architecture = \"llama\""));
    let root = print("--root");
    let container_bytes = read(&mpk);
    let container = Container::parse(&container_bytes).expect("a container");
    assert_eq!(root, format!("{}\n", format_spec::container::hex(&container.root())));
    assert!(sha256sum_accepts(print("--print-sha256").as_bytes()));
    let args = [OsStr::new("--list"), OsStr::new("--json"), mpk.as_os_str()];
    let result = json(&expect(verify(args), 0).0);
    assert_eq!(result["files"][0]["objects"][0]["name"], "token_embd.weight__padded70x512");
    let missing = bench.path("missing.mpk");
    let args = [OsStr::new("--root"), missing.as_os_str(), mpk.as_os_str()];
    let (stdout, _) = expect(verify(args), 4);
    assert!(stdout.contains(root.trim_end()), "it goes on: {stdout}");
}

/// Starts a command on a big file and shortens that file once the first event of `stage` is there.
fn shorten_while_running(mut command: Command, file: &Path, stage: &str) -> (i32, String) {
    let mut child =
        command.args(["--progress", "json"]).stderr(Stdio::piped()).spawn().expect("runs");
    let stderr = BufReader::new(child.stderr.take().expect("piped"));
    let stage = format!("\"stage\":\"{stage}\"");
    let mut talk = String::new();
    let mut is_short = false;
    for line in stderr.lines() {
        let line = line.expect("text");
        if line.contains(&stage) && !is_short {
            is_short = true;
            let file = fs::File::options().write(true).open(file).expect("opening");
            file.set_len(20_000).expect("shortening");
        }
        if !line.starts_with('{') {
            talk.push_str(&line);
        }
    }
    (child.wait().expect("waiting").code().expect("no signal"), talk)
}

/// Reading through a map, this would be a SIGBUS.
#[test]
fn a_file_that_shrinks_while_it_is_read_is_exit_4() {
    let bench = Bench::new();
    let big = sparse_gguf(&bench, 256 << 20);
    let out = bench.path("big.mpk");
    expect(pack([OsStr::new("--no-verify"), big.as_os_str(), out.as_os_str()]), 0);
    let mut verify = command(VERIFY);
    verify.arg(&out);
    let (code, talk) = shorten_while_running(verify, &out, "hash");
    assert_eq!(code, 4, "{talk}");
    assert!(talk.contains("big.weight") && talk.contains("shorter"), "{talk}");
    fs::remove_file(&out).expect("removing");
    let mut pack = command(PACK);
    pack.args([&big, &out]);
    let (code, talk) = shorten_while_running(pack, &big, "pack");
    assert_eq!(code, 4, "{talk}");
    assert!(talk.contains("big.weight") && talk.contains("shorter"), "{talk}");
    assert_eq!(bench.names(), ["big.gguf", "tiny.gguf"]);
}

#[test]
fn an_interrupted_check_gives_its_object() {
    let bench = Bench::new();
    let big = sparse_gguf(&bench, 256 << 20);
    let out = bench.path("big.mpk");
    expect(pack([OsStr::new("--no-verify"), big.as_os_str(), out.as_os_str()]), 0);
    let run = |stdout: Stdio| {
        let mut verify = command(VERIFY);
        verify.args(["--json", "--progress=json", "-t1"]).arg(&out);
        let mut child = verify.stdout(stdout).stderr(Stdio::piped()).spawn().expect("runs");
        let mut talk = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("\"stage\":\"hash\"") {
            line.clear();
            assert!(talk.read_line(&mut line).expect("text") > 0, "it ended too soon");
        }
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &pid]).status().expect("kill").success());
        let deadline = Instant::now() + Duration::from_secs(30);
        while child.try_wait().expect("waiting").is_none() {
            if Instant::now() > deadline {
                child.kill().expect("killing");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        expect(child.wait_with_output().expect("waiting"), 130).0
    };
    assert_eq!(json(&run(Stdio::piped())), serde_json::json!({"exit": "interrupted"}));
    // A full pipe that nobody reads keeps it from nothing.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut fill = writer.try_clone().expect("a descriptor");
    let filling = std::thread::spawn(move || while fill.write_all(&[0; 4096]).is_ok() {});
    std::thread::sleep(Duration::from_millis(200));
    assert!(!filling.is_finished(), "the pipe is full");
    run(writer.into());
    drop(reader);
    filling.join().expect("no panic");
}

#[test]
fn a_sparse_container_does_not_take_the_memory_that_it_claims() {
    const FRONT_BYTES: u64 = 2 << 40;
    let (bench, mpk) = Bench::packed();
    let mut header = read(&mpk)[..128].to_vec();
    header[16..24].copy_from_slice(&(2 * FRONT_BYTES).to_le_bytes());
    header[88..96].copy_from_slice(&FRONT_BYTES.to_le_bytes());
    let digest = sha256(&header[..96]);
    header[96..].copy_from_slice(&digest);
    let sparse = bench.path("sparse.mpk");
    fs::write(&sparse, &header).expect("writing");
    let file = fs::File::options().write(true).open(&sparse).expect("opening");
    file.set_len(2 * FRONT_BYTES).expect("growing");
    let problem =
        format!("data_offset at offset 88: expected at most 1073741824, found {FRONT_BYTES}");
    let (_, stderr) = expect(verify([&sparse]), 3);
    assert!(stderr.contains(&problem), "{stderr}");
    let (_, stderr) = expect(pack([&sparse, &bench.path("out.mpk")]), 3);
    assert!(stderr.contains(&problem), "{stderr}");
}
