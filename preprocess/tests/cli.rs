//! The built binaries, as a user runs them.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{
    Bench, PACK, TinyGguf, UNPACK, VERIFY, command, expect, json, pack, read, sha256sum_accepts,
    sparse_gguf, verify,
};
use format_spec::container::Container;
use serde_json::Value;

#[test]
fn packing_prints_a_summary_on_stderr_and_nothing_on_stdout() {
    let bench = Bench::new();
    let (stdout, stderr) = expect(pack([&bench.gguf]), 0);
    assert_eq!(stdout, "");
    assert_eq!(
        bench.names(),
        ["tiny.gguf", "tiny.mpk"],
        "the default output lies beside the input"
    );
    let line = stderr.lines().last().expect("a summary");
    for part in ["packed 9 tensors, ", " -> ", " MB/s), sha256:", " verified"] {
        assert!(line.contains(part), "{line}");
    }
    let (root, _) = expect(verify([OsStr::new("--root"), bench.path("tiny.mpk").as_os_str()]), 0);
    assert!(line.contains(root.trim_end()), "{line} {root}");
    let (stdout, stderr) =
        expect(pack([OsStr::new("-qq"), OsStr::new("-f"), bench.gguf.as_os_str()]), 0);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("", ""), "-qq");
    // One -q leaves nothing but the warning that this model cannot be run.
    let (stdout, stderr) =
        expect(pack([OsStr::new("-q"), OsStr::new("-f"), bench.gguf.as_os_str()]), 0);
    assert_eq!((stdout.as_str(), stderr.lines().count()), ("", 1), "-q: {stderr}");
    assert!(stderr.starts_with("warning: minfer-run cannot run this model: "), "{stderr}");
}

#[test]
fn the_bytes_do_not_depend_on_threads_name_or_directory() {
    let bench = Bench::new();
    let mut files = Vec::new();
    for threads in ["1", "2", "7"] {
        let out = bench.path(&format!("t{threads}.mpk"));
        let args = [bench.gguf.as_os_str(), out.as_os_str(), "-t".as_ref(), threads.as_ref()];
        expect(pack(args), 0);
        files.push(read(&out));
    }
    let other = Bench::new();
    let mut command = command(PACK);
    command.env("MINFER_THREADS", "3").arg("--no-verify").arg(&other.gguf);
    let (_, stderr) = expect(command.output().expect("runs"), 0);
    assert!(stderr.contains("not verified"), "{stderr}");
    files.push(read(&other.path("tiny.mpk")));
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn json_results_carry_the_exit_name() {
    let bench = Bench::new();
    let (stdout, _) = expect(pack([OsStr::new("--json"), bench.gguf.as_os_str()]), 0);
    let result = json(&stdout);
    assert_eq!(result["exit"], "ok");
    assert_eq!(result["tensors"], 9);
    assert_eq!(result["file_bytes"], read(&bench.path("tiny.mpk")).len());
    let (stdout, _) = expect(pack([OsStr::new("--json"), bench.gguf.as_os_str()]), 4);
    let result = json(&stdout);
    assert_eq!(result["exit"], "io");
    assert!(result["error"].as_str().is_some_and(|text| text.contains("exists already")));
    let (stdout, _) = expect(pack(["--json", "--no-such-flag"]), 2);
    assert_eq!(json(&stdout)["exit"], "usage");
}

#[test]
fn json_progress_announces_its_stages_first() {
    let bench = Bench::new();
    let (_, stderr) = expect(pack([OsStr::new("--progress=json"), bench.gguf.as_os_str()]), 0);
    let events: Vec<Value> = stderr
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(events[0]["event"], "stages");
    assert_eq!(events[0]["stages"], serde_json::json!(["pack", "verify"]));
    for stage in ["pack", "verify"] {
        let last = events.iter().rfind(|event| event["stage"] == stage).expect("progress");
        assert_eq!(last["done"], last["total"], "{stage}");
    }
}

#[test]
fn a_dry_run_is_exact_and_writes_nothing() {
    let bench = Bench::new();
    for planes in ["default", "none", "exp", "dsc,padded", "cpu-fast", "cuda-fast", "all"] {
        let planes = format!("--planes={planes}");
        let args = ["-n", "--json", &planes];
        let mut command = command(PACK);
        let (stdout, _) = expect(command.args(args).arg(&bench.gguf).output().expect("runs"), 0);
        let plan = json(&stdout);
        assert_eq!(bench.names(), ["tiny.gguf"]);
        let out = bench.path("out.mpk");
        expect(pack([OsStr::new(&planes), bench.gguf.as_os_str(), out.as_os_str()]), 0);
        assert_eq!(plan["file_bytes"], read(&out).len(), "{planes}");
        let rows = plan["planes"].as_array().expect("rows");
        let sum = |key: &str| rows.iter().filter_map(|row| row[key].as_u64()).sum::<u64>();
        let file = read(&out);
        let container = Container::parse(&file).expect("a container");
        let objects: u64 = container.objects().iter().map(|object| object.len).sum();
        assert_eq!(sum("object_bytes"), objects, "{planes}");
        assert_eq!(sum("objects"), container.objects().len() as u64, "{planes}");
        fs::remove_file(&out).expect("removing");
    }
    let (stdout, _) = expect(pack([OsStr::new("-n"), bench.gguf.as_os_str()]), 0);
    for text in ["q6_K   exp", "q6_K   dsc", "total", "free disk", "tiny.mpk (not written)"] {
        assert!(stdout.contains(text), "{text}: {stdout}");
    }
}

#[test]
fn unknown_planes_are_refused_by_name() {
    let bench = Bench::new();
    for (planes, says) in [
        ("tiles", "`tiles` is not a plane kind"),
        ("padded,cpu-fast", "`cpu-fast` is not a plane kind"),
        ("nonsense", "`nonsense` is not a plane kind"),
    ] {
        let (_, stderr) =
            expect(pack([OsStr::new("--planes"), OsStr::new(planes), bench.gguf.as_os_str()]), 2);
        assert!(stderr.contains(says), "{stderr}");
    }
    assert_eq!(bench.names(), ["tiny.gguf"]);
}

#[test]
fn a_truncated_gguf_leaves_no_output() {
    let (bytes, ranges) = TinyGguf::new().build();
    let last = ranges.last().expect("tensors").end;
    let edges = ranges.iter().flat_map(|range| [range.start, range.end]);
    for at in edges.flat_map(|edge| [edge - 1, edge, edge + 1]).filter(|at| *at < bytes.len()) {
        let bench = Bench::with(&bytes[..at]);
        if at >= last {
            expect(pack([&bench.gguf]), 0);
            continue;
        }
        let (_, stderr) = expect(pack([&bench.gguf]), 3);
        assert!(
            stderr.contains("tensor ") && stderr.contains(&format!("file has {at}")),
            "{stderr}"
        );
        assert_eq!(bench.names(), ["tiny.gguf"], "cut at {at}");
    }
}

#[test]
fn what_is_no_gguf_is_named() {
    for (bytes, says) in [
        (&b"<!DOCTYPE html><html>"[..], "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs"),
        (b"", "empty"),
        (b"GGUF", "truncated|version|needs bytes"),
        (b"FUGG\x03\0\0\0", "GGUF"),
        (b"\x89MPK\n\x1a\n", "text mode"),
    ] {
        let bench = Bench::with(bytes);
        let (_, stderr) = expect(pack([&bench.gguf]), 3);
        assert!(says.split('|').any(|text| stderr.contains(text)), "{says}: {stderr}");
        assert!(stderr.contains("tiny.gguf"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert_eq!(bench.names(), ["tiny.gguf"]);
    }
}

#[test]
fn only_regular_files_are_read() {
    let bench = Bench::new();
    let fifo = bench.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success());
    let looping = bench.path("loop");
    symlink(&looping, &looping).expect("a link");
    let out = bench.path("out.mpk");
    for (input, code) in [
        (fifo.as_path(), 3),
        (bench.dir.path(), 3),
        (Path::new("/dev/zero"), 3),
        (looping.as_path(), 4),
        (Path::new("/nonexistent/model.gguf"), 4),
    ] {
        expect(pack([input, &out]), code);
        expect(verify([input]), code);
        assert!(!out.exists());
    }
}

#[test]
fn a_scale_that_is_not_finite_is_refused_with_its_block() {
    let tiny = TinyGguf::new();
    let (bytes, ranges) = tiny.build();
    // Second block of row 2 of the q4_K tensor: its dmin.
    let at = ranges[2].start + (2 * 2 + 1) * 144 + 2;
    let mut bad = bytes.clone();
    bad[at..at + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
    let bench = Bench::with(&bad);
    let (_, stderr) = expect(pack([&bench.gguf]), 3);
    for part in ["blk.0.attn_q.weight", "row 2, block 1", "dmin", "inf"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert_eq!(bench.names(), ["tiny.gguf"]);
}

#[test]
fn a_tokenizer_that_is_not_known_is_refused_by_name() {
    let bench = Bench::with(&TinyGguf { pre: Some("no-such-pre"), ..TinyGguf::new() }.bytes());
    let (_, stderr) = expect(pack([&bench.gguf]), 3);
    assert!(stderr.contains("tokenizer.ggml.pre") && stderr.contains("no-such-pre"), "{stderr}");
    assert_eq!(bench.names(), ["tiny.gguf"]);
    // A model without any is packed: it can be run on token ids.
    let bench = Bench::with(&TinyGguf { pre: None, ..TinyGguf::new() }.bytes());
    let (_, stderr) = expect(pack([&bench.gguf]), 0);
    assert!(stderr.contains("warning: the model has no tokenizer"), "{stderr}");
}

#[test]
fn an_existing_output_is_kept_unless_forced() {
    let bench = Bench::new();
    let out = bench.path("out.mpk");
    fs::write(&out, b"precious").expect("writing");
    let (_, stderr) = expect(pack([&bench.gguf, &out]), 4);
    assert!(stderr.contains("--force"), "{stderr}");
    assert_eq!(read(&out), b"precious");
    // A failing run with --force keeps it as well.
    let broken = bench.path("broken.gguf");
    let bytes = TinyGguf::new().bytes();
    fs::write(&broken, &bytes[..bytes.len() - 2000]).expect("writing");
    expect(pack([OsStr::new("--force"), broken.as_os_str(), out.as_os_str()]), 3);
    assert_eq!(read(&out), b"precious");
    let reader = fs::File::open(&out).expect("opening");
    expect(pack([OsStr::new("--force"), bench.gguf.as_os_str(), out.as_os_str()]), 0);
    expect(verify([&out]), 0);
    // Whoever had the old file open still reads the old file.
    let mut old = Vec::new();
    (&reader).read_to_end(&mut old).expect("reading");
    assert_eq!(old, b"precious");
    assert_eq!(bench.names(), ["broken.gguf", "out.mpk", "tiny.gguf"]);
}

#[test]
fn force_replaces_a_link_and_not_what_it_leads_to() {
    let bench = Bench::new();
    let there = bench.path("there");
    fs::create_dir(&there).expect("a directory");
    let original = there.join("original");
    fs::write(&original, b"precious").expect("writing");
    let (mpk, gguf) = (bench.path("link.mpk"), bench.path("link.gguf"));
    for (program, args, link) in [(PACK, [&bench.gguf, &mpk], &mpk), (UNPACK, [&mpk, &gguf], &gguf)]
    {
        symlink("there/original", link).expect("a link");
        // Both say the path as it was given.
        let given = Path::new("./").join(link.file_name().expect("a name"));
        let run = |flags: &[&str], code| {
            let mut command = command(program);
            command.current_dir(bench.dir.path()).args(flags).arg(args[0]).arg(&given);
            expect(command.output().expect("runs"), code).1
        };
        let shown = format!("{}: ", given.display());
        assert!(run(&[], 4).contains(&shown));
        let stderr = run(&["--force"], 0);
        assert!(stderr.lines().any(|line| line.starts_with(&shown)), "{stderr}");
        assert_eq!(read(&original), b"precious");
        assert!(link.symlink_metadata().expect("it is there").is_file());
    }
    assert!(read(&gguf) == read(&bench.gguf));
    assert_eq!(fs::read_dir(&there).expect("reading").count(), 1);
}

#[test]
fn force_replaces_no_model_of_the_other_kind() {
    // As `minfer-pack --force *.gguf` with two models.
    let (bench, other) = (Bench::new(), Bench::new());
    let before = read(&other.gguf);
    let args = [OsStr::new("--force"), bench.gguf.as_os_str(), other.gguf.as_os_str()];
    let (_, stderr) = expect(pack(args), 4);
    assert!(stderr.contains("is a GGUF, which --force does not replace"), "{stderr}");
    assert!(read(&other.gguf) == before && other.names() == ["tiny.gguf"], "{:?}", other.names());
    let (one, two) = (bench.path("one.mpk"), bench.path("two.mpk"));
    for out in [&one, &two] {
        expect(pack([bench.gguf.as_os_str(), out.as_os_str()]), 0);
    }
    let before = read(&two);
    let mut unpack = command(UNPACK);
    unpack.arg("--force").args([&one, &two]);
    let (_, stderr) = expect(unpack.output().expect("runs"), 4);
    assert!(stderr.contains("is a container, which --force does not replace"), "{stderr}");
    assert!(read(&two) == before);
    assert_eq!(bench.names(), ["one.mpk", "tiny.gguf", "two.mpk"]);
}

#[test]
fn the_input_is_never_the_output() {
    let bench = Bench::new();
    let before = read(&bench.gguf);
    let (link, hard) = (bench.path("link.gguf"), bench.path("hard.gguf"));
    symlink(&bench.gguf, &link).expect("a link");
    fs::hard_link(&bench.gguf, &hard).expect("a hard link");
    let dotted = bench.dir.path().join(".").join("tiny.gguf");
    for out in [&bench.gguf, &dotted, &link, &hard] {
        let args = [OsStr::new("--force"), bench.gguf.as_os_str(), out.as_os_str()];
        let (_, stderr) = expect(pack(args), 4);
        assert!(stderr.contains("is the input itself"), "{stderr}");
        assert_eq!(read(&bench.gguf), before);
    }
    assert_eq!(bench.names(), ["hard.gguf", "link.gguf", "tiny.gguf"]);
}

#[test]
fn outputs_that_cannot_be_written_are_said_so() {
    let bench = Bench::new();
    let dangling = bench.path("dangling.mpk");
    symlink(bench.path("nowhere"), &dangling).expect("a link");
    for (out, says) in [
        (bench.path("no/such/dir/x.mpk"), "No such file or directory"),
        (bench.path(&"x".repeat(256)), "File name too long"),
        (bench.dir.path().to_path_buf(), "no regular file"),
        (bench.path("no-such-dir/"), "ends with a slash, and there is no such directory"),
        (PathBuf::from("/dev/null"), "no regular file"),
        (dangling, "symbolic link"),
    ] {
        let args = [OsStr::new("-f"), bench.gguf.as_os_str(), out.as_os_str()];
        let (_, stderr) = expect(pack(args), 4);
        assert!(stderr.contains(says), "{says}: {stderr}");
        // A dry run says so too, and before the plan it is no success.
        let args = [OsStr::new("-n"), bench.gguf.as_os_str(), out.as_os_str()];
        let (_, stderr) = expect(pack(args), 4);
        assert!(stderr.contains(says), "{says}: {stderr}");
    }
    let out = bench.path("flag.mpk");
    expect(pack([bench.gguf.as_os_str(), OsStr::new("-o"), out.as_os_str()]), 0);
    assert!(out.exists());
    for args in [["-", "x.mpk"], ["x.gguf", "-"], ["x.gguf", "-o-"]] {
        let (_, stderr) = expect(pack(args), 2);
        assert!(stderr.contains("`-` is refused"), "{stderr}");
    }
}

#[test]
fn any_name_works() {
    let longest = format!("{}.gguf", "x".repeat(250));
    let names: [&[u8]; 6] = [
        b"a b.v1.gguf",
        "\u{17d}e\u{13e}ko \u{6a21}\u{578b}.gguf".as_bytes(),
        b".hidden.gguf",
        b"new\nline.gguf",
        b"\xff\xfe.gguf",
        longest.as_bytes(),
    ];
    for name in names {
        let bench = Bench::new();
        let input = bench.dir.path().join(OsStr::from_bytes(name));
        fs::rename(&bench.gguf, &input).expect("renaming");
        expect(pack([&input]), 0);
        let out = input.with_extension("mpk");
        let (line, _) = expect(verify([&out]), 0);
        assert_eq!(line.lines().count(), 1, "{line}");
        assert_eq!(bench.names().len(), 2);
        let sums = verify([OsStr::new("--print-sha256"), out.as_os_str()]).stdout;
        assert!(sha256sum_accepts(&sums), "{name:?}");
    }
    // 255 bytes for the output too, and dots that are no extension.
    let bench = Bench::new();
    let out = bench.path(&format!("{}.mpk", "\u{e9}".repeat(125) + "x"));
    assert_eq!(out.file_name().map(OsStr::len), Some(255));
    expect(pack([&bench.gguf, &out]), 0);
    let dotted = bench.path("llama-3.1");
    fs::rename(&bench.gguf, &dotted).expect("renaming");
    expect(pack([&dotted]), 0);
    assert!(bench.path("llama-3.1.mpk").exists());
}

#[test]
fn a_file_size_limit_is_an_error_and_leaves_nothing() {
    let bench = Bench::new();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 16; exec \"$0\" \"$1\""]).arg(PACK).arg(&bench.gguf);
    let (_, stderr) = expect(limited.output().expect("runs"), 4);
    assert!(stderr.contains("file-size limit: ") && stderr.contains(" allowed "), "{stderr}");
    assert_eq!(bench.names(), ["tiny.gguf"]);
}

/// `exp` and `dsc` of a q6_K matrix: the second needs the whole matrix at once.
#[test]
fn a_matrix_that_does_not_fit_in_memory_is_said_so() {
    const N_ROWS: u64 = 4 << 30;
    let bench = Bench::new();
    let tensor =
        common::Tensor { name: "big.weight", quant: common::Q6_K, dims: vec![256, N_ROWS] };
    let n_bytes = tensor.n_bytes();
    let header = TinyGguf { tensors: vec![tensor], ..TinyGguf::new() }.header();
    let path = bench.path("big.gguf");
    fs::write(&path, &header).expect("writing");
    let file = fs::File::options().write(true).open(&path).expect("opening");
    file.set_len((header.len() as u64).next_multiple_of(32) + n_bytes).expect("growing");
    let out = bench.path("out.mpk");
    let (_, stderr) = expect(pack([&path, &out]), 5);
    assert!(stderr.contains("of memory") && stderr.contains("available"), "{stderr}");
    assert_eq!(bench.names(), ["big.gguf", "tiny.gguf"]);
}

#[test]
fn a_disk_that_is_too_small_is_noticed_before_anything_is_written() {
    let bench = Bench::new();
    let stat = rustix::fs::statvfs(bench.dir.path()).expect("a file system");
    // More than is free, also if others free some meanwhile.
    let n_bytes = (stat.f_bavail * stat.f_frsize).next_multiple_of(1 << 30) + (64 << 30);
    let big = sparse_gguf(&bench, n_bytes);
    let out = bench.path("out.mpk");
    let (_, stderr) = expect(pack([&big, &out]), 4);
    assert!(stderr.contains("disk full: ") && stderr.contains("available"), "{stderr}");
    assert_eq!(bench.names(), ["big.gguf", "tiny.gguf"]);
}

/// Root may write to its directory, but nobody can make a file there, and its size is 0.
#[test]
fn a_file_system_without_files_is_no_full_disk() {
    let bench = Bench::new();
    let out = Path::new("/proc/minfer-test.mpk");
    let (_, stderr) = expect(pack([&bench.gguf, &out.to_path_buf()]), 4);
    assert!(stderr.contains("/proc/minfer-test.mpk: cannot create: "), "{stderr}");
    if rustix::process::geteuid().is_root() {
        assert!(
            stderr.contains("; the file system there says that it has no room for files at all"),
            "{stderr}"
        );
    }
}

#[test]
fn signals_remove_the_temporary_file() {
    for (signal, code, name) in [
        ("HUP", 129, "hung_up"),
        ("INT", 130, "interrupted"),
        ("QUIT", 131, "quit"),
        ("TERM", 143, "terminated"),
    ] {
        let bench = Bench::new();
        let big = sparse_gguf(&bench, 256 << 20);
        // These tests may run under nohup, which a child inherits.
        let mut packer = Command::new("env");
        packer.args(["--default-signal=HUP", PACK, "--json"]).arg(&big);
        let packer = packer.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = packer.spawn().expect("runs");
        bench.wait_for_temporary();
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status().expect("kill");
        assert!(sent.success(), "it ended before it was told to");
        let (stdout, _) = expect(child.wait_with_output().expect("waiting"), code);
        assert_eq!(json(&stdout), serde_json::json!({"exit": name}));
        assert_eq!(bench.names(), ["big.gguf", "tiny.gguf"], "{signal}");
    }
}

#[test]
fn a_packer_under_nohup_outlives_its_terminal() {
    let bench = Bench::new();
    let big = sparse_gguf(&bench, 256 << 20);
    let mut packer = Command::new("env");
    packer.args(["--ignore-signal=HUP", PACK]).arg(&big);
    let child = packer.stderr(Stdio::piped()).spawn().expect("runs");
    bench.wait_for_temporary();
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-s", "HUP", &pid]).status().expect("kill");
    assert!(sent.success(), "it ended before it was told to");
    expect(child.wait_with_output().expect("waiting"), 0);
    assert!(bench.path("big.mpk").exists());
}

#[test]
fn what_a_killed_packer_leaves_is_removed_by_the_next_one() {
    let bench = Bench::new();
    let big = sparse_gguf(&bench, 256 << 20);
    let mut child = command(PACK).arg(&big).spawn().expect("runs");
    bench.wait_for_temporary();
    child.kill().expect("killing");
    child.wait().expect("waiting");
    assert!(!bench.path("big.mpk").exists());
    let small = bench.path("small.gguf");
    fs::rename(&bench.gguf, &small).expect("renaming");
    let out = bench.path("big.mpk");
    let (_, stderr) = expect(pack([&small, &out]), 0);
    assert!(stderr.contains(".big.mpk.tmp-") && stderr.contains("killed"), "{stderr}");
    expect(verify([&out]), 0);
    assert_eq!(bench.names(), ["big.gguf", "big.mpk", "small.gguf"]);
}

#[test]
fn what_another_packer_writes_is_left_alone() {
    let bench = Bench::new();
    let big = sparse_gguf(&bench, 256 << 20);
    let out = bench.path("out.mpk");
    let mut first = command(PACK);
    let first = first.args([&big, &out]).stderr(Stdio::piped()).spawn().expect("runs");
    bench.wait_for_temporary();
    let (_, stderr) = expect(pack([&bench.gguf, &out]), 0);
    assert!(!stderr.contains("removed"), "{stderr}");
    // Whoever is last finds that the name is taken, and nothing of it stays behind.
    let (_, stderr) = expect(first.wait_with_output().expect("waiting"), 4);
    assert!(stderr.contains("appeared meanwhile"), "{stderr}");
    expect(verify([OsStr::new("--source"), bench.gguf.as_ref(), out.as_ref()]), 0);
    assert_eq!(bench.names(), ["big.gguf", "out.mpk", "tiny.gguf"]);
}

#[test]
fn planes_are_added_and_dropped_without_the_gguf() {
    let (bench, mpk) = Bench::packed();
    let (lean, full) = (bench.path("lean.mpk"), bench.path("full.mpk"));
    expect(pack([OsStr::new("--planes=none"), mpk.as_os_str(), lean.as_os_str()]), 0);
    assert!(read(&lean).len() < read(&mpk).len());
    expect(verify([OsStr::new("--source"), bench.gguf.as_os_str(), lean.as_os_str()]), 0);
    expect(pack([&lean, &full]), 0);
    assert!(read(&full) == read(&mpk), "the way back gives the same bytes");
    let (_, stderr) = expect(pack([&mpk]), 2);
    assert!(stderr.contains("the input is an .mpk: give the output a name of its own"), "{stderr}");
    // What a file is its bytes say, not its name.
    let misnamed = bench.path("gguf-inside.mpk");
    fs::copy(&bench.gguf, &misnamed).expect("copying");
    let (_, stderr) = expect(pack([&misnamed]), 2);
    assert!(stderr.contains("the input is a GGUF whose name ends in .mpk"), "{stderr}");
    // A damaged input is found by its own hashes.
    let mut bytes = read(&lean);
    let at = Container::parse(&bytes).expect("a container").objects()[0].offset;
    bytes[at as usize] ^= 1;
    fs::write(&lean, &bytes).expect("writing");
    let out = bench.path("out.mpk");
    let (_, stderr) = expect(pack([&lean, &out]), 1);
    assert!(stderr.contains("damaged") && stderr.contains("token_embd.weight"), "{stderr}");
    assert!(!out.exists());
}

#[test]
fn inspect_shows_keys_and_tensors_of_both_kinds() {
    let (bench, mpk) = Bench::packed();
    for file in [&bench.gguf, &mpk] {
        let (stdout, _) = expect(pack([OsStr::new("--inspect"), file.as_os_str()]), 0);
        for text in [
            "general.name = \"tiny \u{1f409}\"",
            "tiny.list = [-3, 7] (2 x i32)",
            "blk.0.attn_v.weight",
        ] {
            assert!(stdout.contains(text), "{text}: {stdout}");
        }
        let args = [OsStr::new("--inspect"), OsStr::new("--json"), file.as_os_str()];
        let result = json(&expect(pack(args), 0).0);
        assert_eq!(result["metadata"]["tiny.unknown"], 2.5);
        assert_eq!(result["tensors"][8]["dims"], serde_json::json!([10, 3, 2]));
    }
}

#[test]
fn wrong_use_is_exit_2() {
    for args in [
        &["m.mpk", "--quick", "--deep"][..],
        &["m.mpk", "--list", "--root"],
        &["m.mpk", "--all", "--status"],
        &["m.mpk", "-q", "-v"],
        &["m.mpk", "--threads=0"],
        &[],
    ] {
        expect(verify(args), 2);
    }
    expect(pack([""; 0]), 2);
    expect(pack(["a", "b", "c"]), 2);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (bench, mpk) = Bench::packed();
    let cases: [(&str, &[&str], &Path); 6] = [
        (PACK, &["--inspect"], &bench.gguf),
        (PACK, &["--dry-run", "-qq"], &bench.gguf),
        (PACK, &["--help"], &bench.gguf),
        (VERIFY, &["--list"], &mpk),
        (VERIFY, &["--json"], &mpk),
        (VERIFY, &[], &mpk),
    ];
    for (program, flags, file) in cases {
        // The pipe's reading end is closed before anything is written.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = command(program);
        let output = command.args(flags).arg(file).stdout(writer).output().expect("runs");
        assert_eq!(expect(output, 0).1, "", "{flags:?}");
    }
}

#[test]
fn help_is_what_was_agreed() {
    for (program, name) in
        [(PACK, "minfer-pack"), (UNPACK, "minfer-unpack"), (VERIFY, "minfer-verify")]
    {
        for flag in ["-h", "--help"] {
            let mut command = command(program);
            command.env("COLUMNS", "100").arg(flag);
            let (stdout, stderr) = expect(command.output().expect("runs"), 0);
            assert_eq!(stderr, "");
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(format!("tests/snapshots/{name}{flag}.txt"));
            if std::env::var_os("BLESS").is_some() {
                fs::create_dir_all(path.parent().expect("a directory")).expect("creating");
                fs::write(&path, &stdout).expect("writing");
            }
            let agreed = fs::read_to_string(&path).unwrap_or_default();
            assert!(stdout == agreed, "{name} {flag} changed (BLESS=1 accepts):\n{stdout}");
        }
        let mut version = command(program);
        let (short, _) = expect(version.arg("-V").output().expect("runs"), 0);
        assert_eq!(short, format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
        let mut version = command(program);
        let (long, _) = expect(version.arg("--version").output().expect("runs"), 0);
        assert!(long.contains("commit: ") && long.contains("target: "), "{long}");
        let (major, minor) = format_spec::container::VERSION;
        let versions = format!(".mpk versions: reads {major}.x, writes {major}.{minor}\n");
        assert!(long.ends_with(&versions), "{long}");
        for shell in ["bash", "zsh", "fish"] {
            let mut completions = command(program);
            completions.args(["--completions", shell]);
            let (script, _) = expect(completions.output().expect("runs"), 0);
            assert!(script.contains(name), "{shell}");
        }
    }
}
