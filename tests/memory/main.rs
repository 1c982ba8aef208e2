//! Peak memory is bounded by the bytes that are there: an allocator that counts watches the readers
//! on hostile files, and packer, verifier and unpacker on a model larger than what they may use.
//!
//! One test function: the count is that of the whole process.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions, this in their helpers

#[path = "../it/gguf_cases.rs"]
mod gguf_cases;

use std::io;

use format_spec::container::Container;
use format_spec::{Gguf, QuantType};
use peak_alloc::PeakAlloc;
use preprocess::{Input, Packer, PlaneSet, Unpacker, WriteAt, verify};
use tests::gguf_writer::GgufBuilder;
use tests::packing::pack;
use tests::properties::reseal;
use tests::tiny_model::{random_weights, smallest_model};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What error texts, hash maps of a few entries and the like take.
const SMALL: usize = 64 << 10;

/// Runs `f` and demands that it never holds more than `most` bytes beyond what is held already.
#[track_caller]
fn at_most<T>(what: &str, most: usize, f: impl FnOnce() -> T) -> (T, usize) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let result = f();
    let used = MEMORY.peak_usage().saturating_sub(before);
    assert!(used <= most, "{what}: {used} bytes at once, {most} are allowed");
    (result, used)
}

fn readers_of_gguf() {
    for (name, file, _) in gguf_cases::all_cases() {
        at_most(name, 8 * file.len() + SMALL, || Gguf::parse(&file).is_err());
        let (copy, len) = (file.clone(), file.len() as u64);
        // The packer holds the header beside the view.
        at_most(name, 9 * file.len() + SMALL, || Input::open(copy, len).is_err());
    }
    // Sound files of many small entries: the densest that there are.
    let mut keys = GgufBuilder::new();
    let mut tensors = GgufBuilder::new();
    for i in 0..100_000 {
        keys = keys.kv_u8(&format!("k{i}"), 1);
        tensors = tensors.tensor(&format!("t{i}"), &[1], QuantType::F32, &[0; 4]);
    }
    for (name, file) in [("keys", keys.build()), ("tensors", tensors.build())] {
        at_most(name, 8 * file.len() + SMALL, || Gguf::parse(&file).unwrap().tensors().len());
    }
}

fn readers_of_containers() {
    for planes in ["default", "planar,bf16", "tile"] {
        let sound = pack(&smallest_model(), planes);
        let data_offset = Container::parse(&sound).unwrap().header().data_offset as usize;
        let numbers = [0, 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, u64::MAX];
        for at in (0..data_offset - 8).step_by(4) {
            for number in numbers {
                let mut file = sound.clone();
                file[at..at + 8].copy_from_slice(&u64::to_le_bytes(number));
                reseal(&mut file);
                let what = format!("{number:#x} at {at}");
                at_most(&what, 8 * file.len() + SMALL, || Container::parse(&file).is_ok());
            }
        }
        for len in (0..sound.len()).step_by(64) {
            let what = format!("{len} bytes");
            at_most(&what, 8 * len + SMALL, || Container::parse(&sound[..len]).is_err());
        }
    }
}

/// Takes what is written and keeps nothing.
struct Nowhere;

impl WriteAt for Nowhere {
    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Ok(())
    }
}

fn writers() {
    // Rows of several lengths, so that leaves end inside them; 96 MiB.
    let mut file = GgufBuilder::new().kv_str("general.architecture", "llama");
    for (i, (quant, dims)) in [
        (QuantType::F32, [1024, 4096]),
        (QuantType::Q8_0, [96_000, 400]),
        (QuantType::Q4_K, [2560, 26_000]),
    ]
    .into_iter()
    .enumerate()
    {
        let row = random_weights(quant, &dims[..1], i as u64);
        file = file.tensor(&format!("t{i}"), &dims, quant, &row.repeat(dims[1] as usize));
    }
    let gguf = file.build();
    drop(file);
    let len = gguf.len();
    let input = Input::open(gguf, len as u64).unwrap();
    // Hashes of leaves, names, descriptors; threads and their stacks are not counted.
    let beside = 2 << 20;
    for n_threads in [1, 4] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        for planes in ["none", "default", "planar", "tile"] {
            let packer = Packer::new(&input, &planes.parse::<PlaneSet>().unwrap()).unwrap();
            let most = packer.working_bytes(n_threads) as usize + beside;
            assert!(most < len, "the model is too small to prove anything");
            let what = format!("packing {planes}, {n_threads} threads");
            at_most(&what, most, || pool.install(|| packer.write(&Nowhere, &|_| ())).unwrap());
        }
    }
    drop(input);
    let gguf = smallest_and_large();
    for planes in ["none", "planar", "tile"] {
        let container = pack(&gguf, planes);
        let len = container.len() as u64;
        let input = Input::open(container, len).unwrap();
        let unpacker = Unpacker::new(&input).unwrap();
        for n_threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            let most = unpacker.working_bytes(n_threads) as usize + beside;
            assert!(most < len as usize, "the model is too small to prove anything");
            let what = format!("unpacking {planes}, {n_threads} threads");
            at_most(&what, most, || {
                pool.install(|| unpacker.write(&[&Nowhere], &|_| ())).unwrap();
            });
            let container = input.container().unwrap().unwrap();
            let reader = input.readers()[0];
            let most = n_threads * (4 << 20) + beside;
            let what = format!("verifying {planes}, {n_threads} threads");
            at_most(&what, most, || {
                assert_eq!(
                    pool.install(|| verify::hashes(reader, &container, &|_| ())).unwrap(),
                    []
                );
            });
        }
    }
}

/// 64 MiB of q8_0 in rows of 6.5 KiB, and one row that is longer than a leaf.
fn smallest_and_large() -> Vec<u8> {
    let (quant, dims) = (QuantType::Q8_0, [6112, 10_000]);
    let row = random_weights(quant, &dims[..1], 1);
    let long = random_weights(QuantType::F32, &[1_200_000], 2);
    GgufBuilder::new()
        .kv_str("general.architecture", "llama")
        .tensor("t0", &dims, quant, &row.repeat(dims[1] as usize))
        .tensor("t1", &[1_200_000], QuantType::F32, &long)
        .build()
}

#[test]
fn peak_memory_is_bounded() {
    readers_of_gguf();
    readers_of_containers();
    writers();
}
