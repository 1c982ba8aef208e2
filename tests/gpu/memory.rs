//! What goes to the device: the bytes of the objects and no others, and only if all of it fits.

use crate::Test;
use crate::model::{all_logits, divergence, ids, on_gpu, options, packed, row};
use format_spec::PlaneKind;
use format_spec::container::Container;
use runtime::report::GpuPlan;
use runtime::{
    CudaOptions, Error, GpuLayers, GpuOutlook, Load, LoadOptions, LoadWatch, LogitsWanted, Model,
    Prefill, Session,
};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const TESTS: &[Test] = &[
    ("uploads_are_the_objects", uploads_are_the_objects),
    ("what_does_not_fit_is_refused_first", what_does_not_fit_is_refused_first),
    ("heads_without_a_kernel_are_refused_first", heads_without_a_kernel_are_refused_first),
    ("the_plan_covers_what_is_taken", the_plan_covers_what_is_taken),
    ("an_outlook_says_what_a_load_plans", an_outlook_says_what_a_load_plans),
    ("pages_are_read_ahead_of_the_upload", pages_are_read_ahead_of_the_upload),
    ("copies_are_kept_where_there_is_room", copies_are_kept_where_there_is_room),
    ("short_prompts_read_copies", short_prompts_read_copies),
];

fn object_bytes(file: &[u8], kinds: &[PlaneKind]) -> u64 {
    let container = Container::parse(file).unwrap();
    container.objects().iter().filter(|o| kinds.contains(&o.kind)).map(|o| o.len).sum()
}

fn uploads_are_the_objects() {
    use PlaneKind::{Bf16, Dsc, Exp, Padded, Planar};
    for (planes, prefill, kinds) in [
        ("default", Prefill::Mmq, &[Padded, Exp, Dsc][..]),
        ("default", Prefill::Bf16, &[Padded]),
        ("cuda-fast", Prefill::Bf16, &[Planar, Padded, Bf16]),
        ("cuda-fast", Prefill::Mmq, &[Planar, Padded]),
    ] {
        let file = packed(planes);
        let expected = object_bytes(&file, kinds);
        let container = Container::parse(&file).unwrap();
        let cpu = Model::open(&file, &container, &LoadOptions::default()).unwrap();
        let reference = all_logits(&cpu, 30, 30);
        let mut logits: Option<Vec<f32>> = None;
        // Small pieces, so that objects are cut and share them.
        for load in [Load::Pinned, Load::Map(Load::MAP_BYTES), Load::Map(4096), Load::Map(65_536)] {
            on_gpu(&file, &CudaOptions { load, ..options(prefill) }, true, |model| {
                assert_eq!(model.uploaded_bytes(), expected, "{planes} {load:?}");
                let in_place = model.uploaded_in_place_bytes();
                match load {
                    Load::Pinned => assert_eq!(in_place, 0),
                    Load::Map(_) => println!("  {load:?}: {in_place} of {expected} in place"),
                }
                let found = all_logits(model, 30, 30);
                let kl = divergence(&reference, &found, cpu.n_vocab());
                assert!(kl < 0.001, "{planes} {load:?}: mean KL {kl} from the CPU");
                match &logits {
                    None => logits = Some(found),
                    Some(expected) => assert_eq!(found, *expected, "{planes} {load:?}"),
                }
            });
        }
    }
}

fn what_does_not_fit_is_refused_first() {
    let file = packed("default");
    let container = Container::parse(&file).unwrap();
    let n_sent = AtomicU64::new(0);
    let seen = RefCell::new(None);
    let planned = |plan: &GpuPlan| *seen.borrow_mut() = Some(plan.clone());
    let sent = |n| {
        n_sent.fetch_add(n, Ordering::Relaxed);
    };
    let watch = LoadWatch { planned: &planned, sent: &sent };
    let cuda = CudaOptions { n_ctx: 1 << 30, ..options(Prefill::Mmq) };
    let refused = Model::open_cuda(&file, &container, &LoadOptions::default(), &cuda, watch);
    let Err(Error::DeviceMemory { need, free, .. }) = refused else { panic!("{refused:?}") };
    let plan = seen.take().unwrap();
    assert_eq!((need, free), (plan.need_bytes(), plan.free_bytes));
    assert!(need > free && plan.kv_bytes > free, "{plan:?}");
    assert_eq!(n_sent.load(Ordering::Relaxed), 0, "nothing was sent");
    // The same watch sees a load that fits to its end.
    let cuda = CudaOptions { n_ctx: 4096, ..cuda };
    let model = Model::open_cuda(&file, &container, &LoadOptions::default(), &cuda, watch).unwrap();
    assert_eq!(n_sent.load(Ordering::Relaxed), model.uploaded_bytes());
    let plan = model.gpu_plan().unwrap();
    let bytes = object_bytes(&file, &[PlaneKind::Padded, PlaneKind::Exp, PlaneKind::Dsc]);
    assert_eq!((plan.upload_bytes, model.uploaded_bytes()), (bytes, bytes));
    // Keys and values by hand: 7 layers, 2 heads of 128, keys and values, 2 bytes.
    assert_eq!(plan.kv_bytes, 4096 * 7 * 2 * 128 * 2 * 2);
}

/// Kept or made anew, copies hold the same bits; without room there are none.
fn copies_are_kept_where_there_is_room() {
    let file = packed("default");
    let container = Container::parse(&file).unwrap();
    let matrices = container.tensors().map(|t| t.geometry).filter(|g| g.n_rows > 1);
    let all: u64 = matrices.map(|g| (2 * g.n_rows * g.row_len).next_multiple_of(256)).sum();
    let mut logits: Option<Vec<f32>> = None;
    let kept = options(Prefill::Bf16);
    let tight = {
        let mut without = 0;
        on_gpu(&file, &CudaOptions { keep_bf16: false, ..kept }, true, |model| {
            without = model.gpu_plan().unwrap().need_bytes();
        });
        without + all
    };
    for (cuda, expected) in [
        (kept, all),
        (CudaOptions { keep_bf16: false, ..kept }, 0),
        (CudaOptions { max_bytes: tight, ..kept }, 0),
        (options(Prefill::Mmq), 0),
    ] {
        on_gpu(&file, &cuda, true, |model| {
            assert_eq!(model.gpu_plan().unwrap().copies_bytes, expected, "{cuda:?}");
            if cuda.prefill == Prefill::Mmq {
                return;
            }
            let first = all_logits(model, 100, 100);
            let made = model.gpu_copies().unwrap();
            assert_eq!((made.n_bytes, made.n_made > 0), (expected, expected > 0), "{made:?}");
            // The second prompt reads what the first made, and makes none.
            assert_eq!(all_logits(model, 100, 100), first);
            let read = model.gpu_copies().unwrap();
            assert_eq!(read.n_made, made.n_made, "{read:?}");
            assert_eq!(read.n_read - made.n_read, made.n_made, "{read:?}");
            assert_eq!(*logits.get_or_insert_with(|| first.clone()), first, "{cuda:?}");
            let reason = row(model, "blk.0.ffn_up.weight").prefill.reason;
            assert_eq!(reason.contains("a copy that is kept"), expected > 0, "{reason}");
        });
    }
}

/// Where copies are kept, and on Hopper, short prompts are multiplied in bf16 too; elsewhere, where
/// that is the rule for long ones, they read blocks.
fn short_prompts_read_copies() {
    let file = packed("default");
    let hopper = kernels::cuda::probe(0).unwrap().compute == (9, 0);
    for keep_bf16 in [true, false] {
        let cuda = CudaOptions { keep_bf16, ..options(Prefill::Auto) };
        on_gpu(&file, &cuda, true, |model| {
            let mut session = Session::new(model, 64).unwrap();
            session.prefill(&ids(20), 64, LogitsWanted::Last).unwrap();
            let kept = model.gpu_plan().unwrap().copies_bytes > 0;
            let found = row(model, "blk.0.ffn_up.weight").prefill;
            assert_eq!(found.n_launches, 1, "{found:?}");
            if kept || hopper {
                assert!(!found.reason.contains("int8"), "{found:?}");
            } else if found.kernel.contains("bf16") {
                assert!(found.reason.contains("int8 products (1 launches)"), "{found:?}");
            }
        });
    }
}

/// Heads of 32: an error of the device, for which `--device auto` takes the CPU, with nothing sent.
fn heads_without_a_kernel_are_refused_first() {
    let file = include_bytes!("../golden/container/v1.0-model-exp-dsc.mpk");
    let container = Container::parse(file).unwrap();
    let n_calls = AtomicU64::new(0);
    let planned = |_: &GpuPlan| {
        n_calls.fetch_add(1, Ordering::Relaxed);
    };
    let sent = |n| {
        n_calls.fetch_add(n, Ordering::Relaxed);
    };
    let watch = LoadWatch { planned: &planned, sent: &sent };
    let (common, cuda) = (LoadOptions::default(), options(Prefill::Auto));
    let refused = Model::open_cuda(file, &container, &common, &cuda, watch);
    let Err(error @ Error::Device(_)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("attention heads of 32 elements"), "{error}");
    assert_eq!(n_calls.load(Ordering::Relaxed), 0);
    assert!(matches!(
        GpuOutlook::new(&container, &common, &cuda).and_then(|gpu| gpu.plan(0)),
        Err(Error::Device(_))
    ));
}

/// What a run takes stays under what the table said.
fn the_plan_covers_what_is_taken() {
    for (planes, prefill) in
        [("default", Prefill::Mmq), ("default", Prefill::Bf16), ("cuda-fast", Prefill::Auto)]
    {
        let cuda = CudaOptions { n_ctx: 4096, ..options(prefill) };
        on_gpu(&packed(planes), &cuda, true, |model| {
            let mut session = Session::new(model, 4096).unwrap();
            session.prefill(&ids(600), 512, LogitsWanted::Last).unwrap();
            session.decode(3).unwrap();
            session.decode(4).unwrap();
            let plan = model.gpu_plan().unwrap();
            let taken = plan.free_bytes.saturating_sub(model.gpu_free_bytes().unwrap());
            println!("  {planes} {prefill:?}: {taken} taken of {} planned", plan.need_bytes());
            assert!(taken <= plan.need_bytes(), "{taken} of {plan:?}");
            assert_eq!(session.cache_bytes(), plan.kv_bytes);
        });
    }
}

/// Without a byte on its way an outlook has the plan of the load.
fn an_outlook_says_what_a_load_plans() {
    for (planes, prefill, layers) in [
        ("default", Prefill::Mmq, GpuLayers::All),
        ("cuda-fast", Prefill::Auto, GpuLayers::All),
        ("default", Prefill::Bf16, GpuLayers::Last(3)),
    ] {
        let file = packed(planes);
        let container = Container::parse(&file).unwrap();
        let cuda = CudaOptions { n_ctx: 777, layers, ..options(prefill) };
        let common = LoadOptions::default();
        let outlook = GpuOutlook::new(&container, &common, &cuda).unwrap();
        let (found, longer) = (outlook.plan(777).unwrap(), outlook.plan(7770).unwrap());
        assert_eq!(longer.kv_bytes, 10 * found.kv_bytes);
        let name = outlook.gpu().name.clone();
        drop(outlook);
        on_gpu(&file, &cuda, true, |model| {
            let plan = model.gpu_plan().unwrap();
            // What is free is another program's matter, too.
            assert_eq!(GpuPlan { free_bytes: plan.free_bytes, ..found.clone() }, *plan);
            assert_eq!(model.gpu().unwrap().name, name);
        });
    }
}

/// Making a context takes long enough for the bases of a small model.
fn pages_are_read_ahead_of_the_upload() {
    let file = packed("cuda-fast");
    let bases = object_bytes(&file, &[PlaneKind::Planar, PlaneKind::Padded]);
    on_gpu(&file, &options(Prefill::Bf16), false, |model| {
        let load = model.gpu_load().unwrap();
        println!("  {load:?}");
        assert_eq!(load.read_ahead, bases);
        assert!(load.context > std::time::Duration::ZERO);
        assert!(load.upload > std::time::Duration::ZERO);
    });
    let some = CudaOptions { layers: GpuLayers::Last(2), ..options(Prefill::Bf16) };
    on_gpu(&file, &some, false, |model| {
        assert_eq!(model.gpu_load().unwrap().read_ahead, 0, "which layers was not known");
    });
}
