//! The library on bytes in memory: exhaustive damage, failing reads and writes.

mod common;

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use common::TinyGguf;
use format_spec::container::{Builder, Container, MAX_TRAILING_BYTES, ObjectDigest};
use format_spec::plane::PlaneKind;
use preprocess::verify::{self, Finding};
use preprocess::{Class, Error, Input, Packer, PlaneSet, ReadAt, Result, WriteAt};

fn pack(gguf: Vec<u8>, planes: &PlaneSet) -> Result<Vec<u8>> {
    let len = gguf.len() as u64;
    let input = Input::open(gguf, len)?;
    let packer = Packer::new(&input, planes)?;
    let out = Mutex::new(vec![0; packer.file_len() as usize]);
    packer.write(&out, &|_| ())?;
    Ok(out.into_inner().expect("no panic"))
}

/// Everything that `minfer-verify` does by default.
fn check(file: &Vec<u8>) -> Result<Vec<Finding>> {
    let len = file.len() as u64;
    let front = verify::read_front(file, len)?;
    let container = verify::open(&front, len)?;
    let mut findings = verify::gaps(file, &container)?;
    findings.extend(verify::hashes(file, &container, &|_| ())?);
    Ok(findings)
}

fn deep(file: &Vec<u8>) -> Vec<Finding> {
    let container = Container::parse(file).expect("a container");
    verify::deep(file, &container, &|_| ()).expect("reading works")
}

/// The file with these bytes changed and every hash made right again.
fn with_right_hashes(file: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let container = Container::parse(file).expect("a container");
    let kinds = |tensor: &format_spec::gguf::TensorInfo<'_>| {
        let entry = container.tensor(tensor.name()).expect("a tensor");
        std::iter::once(entry.base.kind).chain(entry.planes.iter().map(|p| p.kind)).collect()
    };
    let source = container.source().section().to_vec();
    let vocab = container.vocab_bytes().unwrap_or_default().to_vec();
    let builder = Builder::new(source, vocab, kinds).expect("a layout");
    let mut changed = file.to_vec();
    change(&mut changed);
    let digests: Vec<_> =
        container.objects().iter().map(|o| ObjectDigest::of(o.bytes(&changed))).collect();
    let (front, _) = builder.finish(&digests).expect("a front");
    changed[..front.len()].copy_from_slice(&front);
    assert_ne!(changed, file);
    changed
}

#[test]
fn every_prefix_of_a_gguf_is_refused_unless_only_padding_is_missing() {
    let (gguf, ranges) = TinyGguf::smallest().build();
    let data_end = ranges.last().expect("tensors").end;
    for len in 0..gguf.len() {
        let result = pack(gguf[..len].to_vec(), &PlaneSet::default());
        if len >= data_end {
            assert!(result.is_ok(), "{len}");
            continue;
        }
        let error = result.expect_err("a truncated file");
        assert_eq!(error.class(), Class::Input, "{len}: {error}");
    }
}

#[test]
fn a_changed_bit_anywhere_is_found() {
    let mut file = pack(TinyGguf::smallest().bytes(), &PlaneSet::default()).expect("packs");
    assert_eq!(check(&file).expect("readable"), []);
    let data_offset = Container::parse(&file).expect("a container").header().data_offset as usize;
    for at in 0..file.len() {
        for bit in 0..8 {
            file[at] ^= 1 << bit;
            match check(&file) {
                Err(error) => {
                    assert_eq!(error.class(), Class::Input, "{at}: {error}");
                    assert!(at < data_offset, "{at}: {error}");
                }
                Ok(findings) => {
                    let named = findings.iter().any(|f| f.bytes.contains(&(at as u64)));
                    assert!(at >= data_offset && named, "{at}: {findings:?}");
                }
            }
            file[at] ^= 1 << bit;
        }
    }
}

#[test]
fn every_prefix_and_extension_of_a_container_is_refused() {
    let file = pack(TinyGguf::smallest().bytes(), &PlaneSet::default()).expect("packs");
    for len in 0..file.len() {
        let error = check(&file[..len].to_vec()).expect_err("truncated");
        assert_eq!(error.class(), Class::Input, "{len}: {error}");
    }
    for more in [1, 4096] {
        let mut longer = file.clone();
        longer.resize(file.len() + more, 0);
        let error = check(&longer).expect_err("extended");
        assert_eq!(error.class(), Class::Input, "{more}: {error}");
    }
}

/// A hash proves that bytes are those that were written, not that they are right.
#[test]
fn a_wrong_plane_with_right_hashes_is_found_by_deep_alone() {
    let file = pack(TinyGguf::new().bytes(), &PlaneSet::default()).expect("packs");
    assert_eq!(deep(&file), []);
    let container = Container::parse(&file).expect("a container");
    let mut n_planes = 0;
    for plane in container.objects().iter().filter(|object| !object.kind.is_base()) {
        // First, last and a middle byte that belongs to a field.
        let layout = &plane.layout;
        let field = &layout.fields()[0];
        let (rows, k) = (plane.geometry.n_rows, plane.geometry.row_len);
        for (row, k) in [(0, 0), (rows / 2, k / 2), (rows - 1, k - 1)] {
            let at = plane.offset + field.locate(row, k).byte;
            let changed = with_right_hashes(&file, |bytes| bytes[at as usize] ^= 0x04);
            assert_eq!(check(&changed).expect("readable"), [], "the hashes are right");
            let findings = deep(&changed);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert_eq!(findings[0].tensor, plane.tensor);
            let cell = u64::from(field.bits).div_ceil(8);
            let named = findings[0].bytes.start;
            assert!((at..at + cell).contains(&named), "{at}: {findings:?}");
        }
        n_planes += 1;
    }
    assert_eq!(n_planes, 4, "two q6_K matrices with exp and dsc");
}

/// The same for the planes of GPUs, once for each kind.
#[test]
fn planes_of_every_set_are_what_the_base_says() {
    let gguf = TinyGguf::new().bytes();
    for set in ["all", "cpu-fast", "cuda-fast", "eb,sb", "planar,exp,dsc", "exp,dsc,tile"] {
        let file = pack(gguf.clone(), &set.parse().expect("a set")).expect("packs");
        assert_eq!(check(&file).expect("readable"), []);
        assert_eq!(deep(&file), [], "{set}");
        let container = Container::parse(&file).expect("a container");
        let input = Input::open(gguf.clone(), gguf.len() as u64).expect("a GGUF");
        let found = verify::source(&file, &container, &input, &|_| ()).expect("readable");
        assert_eq!(found, [], "{set}");
        for object in container.objects().iter().filter(|object| !object.name.contains("norm")) {
            let field = &object.layout.fields()[0];
            let at = object.offset + field.locate(0, 0).byte;
            let changed = with_right_hashes(&file, |bytes| bytes[at as usize] ^= 0x04);
            // A base is wrong in itself where no plane repeats it.
            let alone =
                container.tensor(&object.tensor).is_some_and(|entry| entry.planes.is_empty());
            assert_eq!(deep(&changed).is_empty(), alone, "{set} {}", object.name);
        }
    }
}

#[test]
fn wrong_tokenizer_tables_with_right_hashes_are_found_by_deep() {
    let file = pack(TinyGguf::new().bytes(), &PlaneSet::none()).expect("packs");
    assert_eq!(deep(&file), []);
    let container = Container::parse(&file).expect("a container");
    let source = container.source().section().to_vec();
    let other = TinyGguf { pre: Some("llama-bpe"), ..TinyGguf::new() }.bytes();
    let other = pack(other, &PlaneSet::none()).expect("packs");
    let other = Container::parse(&other).expect("a container");
    let vocab = other.vocab_bytes().expect("a tokenizer").to_vec();
    let builder = Builder::new(source, vocab, |_| vec![PlaneKind::Padded]).expect("a layout");
    let digests: Vec<_> = container.objects().iter().map(|o| o.digest()).collect();
    let (mut changed, _) = builder.finish(&digests).expect("a front");
    changed.extend(&file[container.header().data_offset as usize..]);
    assert_eq!(check(&changed).expect("readable"), []);
    let findings = deep(&changed);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].tensor, "tokenizer");
}

#[test]
fn padding_with_right_hashes_is_found() {
    let file = pack(TinyGguf::new().bytes(), &PlaneSet::default()).expect("packs");
    let container = Container::parse(&file).expect("a container");
    let mut kinds = Vec::new();
    for object in container.objects() {
        // The first padding byte of the object: the first zero that stops being accepted.
        let padding = object.layout.padding();
        let Some(gap) = padding.gaps.first() else { continue };
        let at = object.offset + gap.first;
        let changed = with_right_hashes(&file, |bytes| bytes[at as usize] = 1);
        let findings = check(&changed).expect("readable");
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].bytes, at..at + 1);
        kinds.push(object.kind);
    }
    assert!(kinds.contains(&PlaneKind::Padded) && kinds.contains(&PlaneKind::Dsc), "{kinds:?}");
}

#[test]
fn any_planes_can_be_reached_from_any_container() {
    let gguf = TinyGguf::new().bytes();
    let sets: Vec<PlaneSet> =
        ["none", "default", "exp", "dsc", "cpu-fast", "cuda-fast", "planar,sb", "tile,dsc", "all"]
            .map(|name| name.parse().expect("a set"))
            .to_vec();
    let direct: Vec<_> = sets.iter().map(|set| pack(gguf.clone(), set).expect("packs")).collect();
    for from in &direct {
        for (to, expected) in sets.iter().zip(&direct) {
            let repacked = pack(from.clone(), to).expect("repacks");
            assert!(&repacked == expected, "planes {to}");
        }
    }
}

#[test]
fn a_damaged_container_is_not_repacked() {
    let file = pack(TinyGguf::new().bytes(), &PlaneSet::none()).expect("packs");
    let container = Container::parse(&file).expect("a container");
    for object in container.objects() {
        let mut damaged = file.clone();
        damaged[object.offset as usize] ^= 1;
        // Whether the base is copied or another is made from it.
        for planes in [PlaneSet::default(), PlaneSet::cuda_fast()] {
            let error = pack(damaged.clone(), &planes).expect_err("damaged");
            assert_eq!(error.class(), Class::Failed);
            assert!(error.to_string().contains(&object.name), "{error}");
        }
    }
}

#[test]
fn an_embedding_that_is_only_looked_up_costs_a_row_and_gets_no_planes() {
    let mut tiny = TinyGguf::new();
    let embedding = tiny.tensors[0].clone();
    assert_eq!(embedding.name, "token_embd.weight");
    let bytes_of = |tiny: &TinyGguf| {
        let gguf = tiny.bytes();
        let input = Input::open(gguf.clone(), gguf.len() as u64).expect("a GGUF");
        let packer = Packer::new(&input, &PlaneSet::default()).expect("a plan");
        let figures = packer.plan().figures();
        let file = pack(gguf, &PlaneSet::default()).expect("packs");
        assert_eq!(packer.file_len(), file.len() as u64);
        let container = Container::parse(&file).expect("a container");
        let n_objects = container.objects().len() as u64;
        assert_eq!(figures.total(|row| row.n_objects), n_objects, "the plan is what is written");
        let n_planes = container.tensor(embedding.name).expect("a tensor").planes.len();
        (figures.total(|row| row.token_bytes), n_planes)
    };
    let (tied_bytes, tied_planes) = bytes_of(&tiny);
    assert_eq!(tied_planes, 2);
    tiny.tensors.push(common::Tensor { name: "output.weight", ..embedding.clone() });
    let (bytes, planes) = bytes_of(&tiny);
    assert_eq!(planes, 0);
    // The output is read whole, as the tied embedding was; of the embedding one row.
    assert_eq!(bytes, tied_bytes + 2 * 224);
}

#[test]
fn a_gguf_without_tensors_is_packed_and_checked() {
    let empty = TinyGguf { tensors: Vec::new(), ..TinyGguf::new() };
    let file = pack(empty.bytes(), &PlaneSet::default()).expect("packs");
    assert_eq!(check(&file).expect("readable"), []);
    assert_eq!(Container::parse(&file).expect("a container").objects().len(), 0);
}

#[test]
fn odd_padding_and_trailing_bytes_come_through_the_source_check() {
    let odd = TinyGguf {
        padding: 0xa5,
        trailing: b"\0\0tail\0\0".to_vec(),
        alignment: 64,
        ..TinyGguf::new()
    };
    let gguf = odd.bytes();
    let input = Input::open(gguf.clone(), gguf.len() as u64).expect("a GGUF");
    let packer = Packer::new(&input, &PlaneSet::default()).expect("a plan");
    assert!(packer.notes().iter().any(|note| note.starts_with("8 bytes behind the last tensor")));
    let file = pack(gguf.clone(), &PlaneSet::default()).expect("packs");
    let container = Container::parse(&file).expect("a container");
    let source = |gguf: &[u8]| {
        let input = Input::open(gguf.to_vec(), gguf.len() as u64).expect("a GGUF");
        verify::source(&file, &container, &input, &|_| ()).expect("readable")
    };
    assert_eq!(source(&gguf), []);
    // Every byte counts, wherever it is: those of tensors, of padding and behind the end.
    let header_len = container.gguf().header_len() as usize;
    for at in (header_len..gguf.len()).step_by(7).chain(gguf.len() - 12..gguf.len()) {
        let mut other = gguf.clone();
        other[at] ^= 1;
        assert_ne!(source(&other), [], "byte {at}");
    }
    let longer = [gguf.as_slice(), b"\0"].concat();
    assert_ne!(source(&longer), []);
}

#[test]
fn a_tail_that_is_longer_than_a_tail_is_refused() {
    let mut gguf = TinyGguf::new().bytes();
    // Only the length is asked for: nothing behind the first MiB is read before.
    gguf.resize(1 << 20, 0);
    let len = gguf.len() as u64 + MAX_TRAILING_BYTES + 1;
    let refused = Input::open(gguf, len).and_then(|input| {
        Packer::new(&input, &PlaneSet::default()).map(|packer| packer.file_len())
    });
    let message = refused.expect_err("64 MiB at most").to_string();
    assert!(message.contains("bytes behind the last tensor at offset"), "{message}");
    assert!(message.contains("expected at most 67108864 bytes, found"), "{message}");
}

/// Fails the nth operation, or does it wrongly.
struct Faulty<T> {
    inner: T,
    count: AtomicU64,
    nth: u64,
    error: Option<io::ErrorKind>,
}

impl<T> Faulty<T> {
    fn new(inner: T, nth: u64, error: Option<io::ErrorKind>) -> Self {
        Self { inner, count: AtomicU64::new(0), nth, error }
    }

    fn is_now(&self) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed) == self.nth
    }
}

impl WriteAt for Faulty<Mutex<Vec<u8>>> {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut buf = buf.to_vec();
        if self.is_now() {
            match self.error {
                Some(kind) => return Err(kind.into()),
                // A write that says it worked.
                None => buf[0] ^= 0x80,
            }
        }
        self.inner.write_all_at(&buf, offset)
    }
}

impl ReadAt for Faulty<Vec<u8>> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.error {
            Some(kind) if self.is_now() => Err(kind.into()),
            _ => self.inner.read_exact_at(buf, offset),
        }
    }
}

#[test]
fn every_failing_write_is_an_error_and_every_wrong_one_is_found() {
    let gguf = TinyGguf::new().bytes();
    let input = Input::open(gguf.clone(), gguf.len() as u64).expect("a GGUF");
    let packer = Packer::new(&input, &PlaneSet::default()).expect("a plan");
    let fresh = || Mutex::new(vec![0; packer.file_len() as usize]);
    let mut nth = 0;
    loop {
        let out = Faulty::new(fresh(), nth, Some(io::ErrorKind::StorageFull));
        let result = packer.write(&out, &|_| ());
        if out.count.into_inner() <= nth {
            assert!(result.is_ok());
            break;
        }
        let error = result.expect_err("a failed write");
        assert!(matches!(error, Error::Write { .. }), "{error}");
        let out = Faulty::new(fresh(), nth, None);
        packer.write(&out, &|_| ()).expect("nothing was noticed");
        let file = out.inner.into_inner().expect("no panic");
        let found = check(&file);
        assert!(found.as_ref().map_or(true, |findings| !findings.is_empty()), "write {nth}");
        nth += 1;
    }
    // 9 tensors, 4 planes, header and index.
    assert_eq!(nth, 15);
}

#[test]
fn every_failing_read_is_an_error_with_its_code() {
    let gguf = TinyGguf::new().bytes();
    let file = pack(gguf.clone(), &PlaneSet::default()).expect("packs");
    let faults = [
        (io::ErrorKind::UnexpectedEof, Class::Io),
        (io::ErrorKind::Other, Class::Io),
        (io::ErrorKind::OutOfMemory, Class::Memory),
    ];
    for (kind, class) in faults {
        let mut nth = 0;
        loop {
            let reader = Faulty::new(gguf.clone(), nth, Some(kind));
            let result = Input::open(reader, gguf.len() as u64).and_then(|input| {
                let packer = Packer::new(&input, &PlaneSet::default())?;
                packer.write(&Mutex::new(vec![0; packer.file_len() as usize]), &|_| ())
            });
            let Err(error) = result else { break };
            assert_eq!(error.class(), class, "read {nth}: {error}");
            nth += 1;
        }
        assert!(nth > 13, "packing reads every tensor");
        let mut nth = 0;
        loop {
            let reader = Faulty::new(file.clone(), nth, Some(kind));
            let result = verify::read_front(&reader, file.len() as u64).and_then(|front| {
                let container = verify::open(&front, file.len() as u64)?;
                verify::gaps(&reader, &container)?;
                verify::hashes(&reader, &container, &|_| ())?;
                verify::deep(&reader, &container, &|_| ())
            });
            let Err(error) = result else { break };
            assert_eq!(error.class(), class, "read {nth}: {error}");
            nth += 1;
        }
        assert!(nth > 13, "verifying reads every object");
    }
}

#[test]
fn a_plan_of_the_7b_inventory_costs_what_the_design_says() {
    // 29 q6_K matrices of Qwen2 7B Q4_K_M: output, half of the v and down projections.
    let q6_k: u64 = 152_064 * 3584 + 14 * (512 * 3584 + 3584 * 18_944);
    assert_eq!(q6_k, 1_521_221_632, "exp: a byte an element");
    let tensor =
        |name, dims: &[u64]| common::Tensor { name, quant: common::Q6_K, dims: dims.to_vec() };
    let mut tensors = vec![tensor("output.weight", &[3584, 152_064])];
    let names: Vec<&'static str> =
        (0..28).map(|i| &*Box::leak(format!("blk.{i}.weight").into_boxed_str())).collect();
    for (i, &name) in names.iter().enumerate() {
        tensors.push(match i % 2 {
            0 => tensor(name, &[3584, 512]),
            _ => tensor(name, &[18_944, 3584]),
        });
    }
    let header = TinyGguf { tensors, ..TinyGguf::new() }.header();
    let gguf = format_spec::Gguf::parse_header(&header).expect("a header");
    let plan = preprocess::Plan::new(&gguf, &PlaneSet::default()).expect("a plan");
    let bytes_of = |kind| {
        let rows = plan.figures().rows;
        let row = rows.iter().find(|row| row.kind == kind).expect("planned");
        (row.n_objects, row.object_bytes)
    };
    assert_eq!(bytes_of(PlaneKind::Exp), (29, 1_521_221_632));
    assert_eq!(bytes_of(PlaneKind::Dsc), (29, 380_305_408));
}
