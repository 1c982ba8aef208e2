//! GEMV, dequantization and GEMM of every quant type.

use crate::fixture::{Fixture, activations, product, quantized};
use crate::{POISON, Test, assert_close};
use format_spec::plane::PlaneKind;
use format_spec::{Layout, QuantType};
use kernels::Tier;
use kernels::cuda::{
    Blas, Buffer, DeviceWeight, GemvOut, Gpu, MAX_GEMV_TOKENS, OperandRef, Uploader,
};
use std::sync::Arc;

pub(crate) const TESTS: &[Test] = &[
    ("upload_is_verbatim", upload_is_verbatim),
    ("gemv_agrees_with_the_cpu", gemv_agrees_with_the_cpu),
    ("gemv_shares_a_launch", gemv_shares_a_launch),
    ("mmq_agrees_with_the_cpu", mmq_agrees_with_the_cpu),
    ("dequantize_is_rounded_weights", dequantize_is_rounded_weights),
    ("embed_is_scaled_rows", embed_is_scaled_rows),
    ("descriptors_give_the_weights", descriptors_give_the_weights),
    ("gemm_agrees_with_f64", gemm_agrees_with_f64),
    ("cublaslt_agrees_with_f64", cublaslt_agrees_with_f64),
    ("sm90_agrees_with_f64", crate::sm90::agrees_with_f64),
    ("sm90_shares_a_launch", crate::sm90::shares_a_launch),
    ("sm90_gates", crate::sm90::gates),
];

/// Rows and row lengths: the plane shapes of the record, odd rows, several super-blocks.
const SHAPES: &[(usize, usize)] =
    &[(64, 256), (40, 512), (24, 768), (1, 256), (7, 1024), (33, 3584), (130, 2304)];

pub(crate) struct OnDevice {
    _bytes: Buffer<u8>,
    pub(crate) weight: DeviceWeight,
}

pub(crate) fn on_device(gpu: &Arc<Gpu>, fixture: &Fixture) -> OnDevice {
    on_device_as(gpu, fixture, PlaneKind::Padded)
}

pub(crate) fn on_device_as(gpu: &Arc<Gpu>, fixture: &Fixture, base: PlaneKind) -> OnDevice {
    let geometry =
        format_spec::Geometry { n_rows: fixture.n_rows as u64, row_len: fixture.row_len as u64 };
    let layout = Layout::new(base, fixture.quant, geometry).unwrap();
    let mut object = vec![0; layout.len_bytes() as usize];
    layout.write_units(&fixture.gguf, 0..layout.n_units(), &mut object).unwrap();
    let bytes = gpu.upload(&object).unwrap();
    let weight = DeviceWeight::new(gpu, (&layout, bytes.all()), &[]).unwrap();
    OnDevice { _bytes: bytes, weight }
}

fn upload_is_verbatim(gpu: &Arc<Gpu>) {
    for len in [1, 4095, Uploader::PIECE_BYTES, 3 * Uploader::PIECE_BYTES + 17] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let buffer = gpu.alloc::<u8>(len).unwrap();
        let mut uploader = Uploader::new(gpu).unwrap();
        uploader
            .send(buffer.all(), len, |at, piece| {
                piece.copy_from_slice(&bytes[at..at + piece.len()]);
                Ok::<(), kernels::cuda::CudaError>(())
            })
            .unwrap();
        assert_eq!(uploader.finish().unwrap(), (len as u64, 0));
        let mut back = vec![0; len];
        gpu.read(&mut back, buffer.all()).unwrap();
        assert!(back == bytes, "{len} bytes");
        // From where they lie, back to front and in two parts; where the system pins such memory.
        gpu.fill_words(buffer.all(), POISON).unwrap();
        gpu.synchronize().unwrap();
        let mut uploader = Uploader::new(gpu).unwrap();
        let half = len / 2;
        let parts = [(half, len - half, buffer.span(half..len)), (0, half, buffer.span(0..half))];
        match uploader.send_in_place(&bytes, &parts) {
            Err(kernels::cuda::CudaError::Driver { what: "pinning the file", code }) => {
                println!("  not pinned in place: {code}");
                continue;
            }
            other => other.unwrap(),
        }
        assert_eq!(uploader.finish().unwrap(), (len as u64, len as u64));
        gpu.read(&mut back, buffer.all()).unwrap();
        assert!(back == bytes, "{len} bytes in place");
    }
}

/// Activations in every form.
pub(crate) struct Forms {
    f32: Buffer<f32>,
    bf16: Buffer<half::bf16>,
    q: Buffer<i8>,
    ds: Buffer<[f32; 2]>,
}

impl Forms {
    pub(crate) fn new(gpu: &Arc<Gpu>, x: &[f32]) -> Self {
        let forms = Self {
            f32: gpu.alloc(x.len()).unwrap(),
            bf16: gpu.alloc(x.len()).unwrap(),
            q: gpu.alloc(x.len()).unwrap(),
            ds: gpu.alloc(x.len() / 32).unwrap(),
        };
        let from = gpu.upload(x).unwrap();
        gpu.convert(&forms.get(), from.all()).unwrap();
        gpu.synchronize().unwrap();
        forms
    }

    pub(crate) fn get(&self) -> OperandRef<'_> {
        OperandRef {
            f32: Some(self.f32.all()),
            bf16: Some(self.bf16.all()),
            int8: Some((self.q.all(), self.ds.all())),
        }
    }
}

/// Sum of the magnitudes that each output is made of: what rounding is relative to.
pub(crate) fn magnitudes(fixture: &Fixture, x: &[f32]) -> Vec<f64> {
    let w = fixture.dequantized();
    x.chunks_exact(fixture.row_len)
        .flat_map(|x| {
            w.chunks_exact(fixture.row_len).map(move |w| {
                w.iter().zip(x).map(|(&w, &x)| f64::from(w * x).abs()).sum::<f64>() + 1e-3
            })
        })
        .collect()
}

/// Every type in every base that it has.
fn bases() -> impl Iterator<Item = (QuantType, PlaneKind)> {
    let kinds = [PlaneKind::Padded, PlaneKind::Planar, PlaneKind::Tile];
    let all = QuantType::ALL.iter().flat_map(move |&quant| kinds.map(|kind| (quant, kind)));
    all.filter(|&(quant, kind)| kind.applies_to(quant))
}

fn gemv_agrees_with_the_cpu(gpu: &Arc<Gpu>) {
    for (quant, base) in bases() {
        for &(n_rows, row_len) in SHAPES {
            let fixture = Fixture::new(quant, n_rows, row_len, 7);
            let device = on_device_as(gpu, &fixture, base);
            for n_tokens in 1..=MAX_GEMV_TOKENS {
                let x = activations(n_tokens, row_len, 11);
                let matmul = fixture.matmul(Tier::Scalar);
                let expected = product(
                    &matmul,
                    &quantized(Tier::Scalar, &x, n_tokens),
                    std::slice::from_ref(&(0..n_rows)),
                );
                let forms = Forms::new(gpu, &x);
                let y = gpu.alloc::<f32>(n_tokens * n_rows).unwrap();
                gpu.fill_words(y.all(), POISON).unwrap();
                let out = GemvOut { weight: &device.weight, y: y.all(), bias: None, add: false };
                gpu.gemv(&[out], &forms.get(), n_tokens).unwrap();
                let mut found = vec![0.0; y.len()];
                gpu.read(&mut found, y.all()).unwrap();
                let expected: Vec<f64> = expected.iter().map(|&y| f64::from(y)).collect();
                let kind = base.name();
                let what = format!("{} {kind} {n_rows}x{row_len}, {n_tokens}", quant.name());
                assert_close(&what, &found, &expected, &magnitudes(&fixture, &x), 2e-5);
            }
        }
    }
}

fn mmq_agrees_with_the_cpu(gpu: &Arc<Gpu>) {
    for &quant in QuantType::ALL {
        for &(n_rows, row_len) in SHAPES {
            let fixture = Fixture::new(quant, n_rows, row_len, 7);
            let device = on_device(gpu, &fixture);
            for n_tokens in [5, 33, 130] {
                let Some(kernel) = device.weight.mmq(n_tokens) else {
                    assert!(quant.is_float());
                    continue;
                };
                let x = activations(n_tokens, row_len, 11);
                let matmul = fixture.matmul(Tier::Scalar);
                let expected = product(
                    &matmul,
                    &quantized(Tier::Scalar, &x, n_tokens),
                    std::slice::from_ref(&(0..n_rows)),
                );
                let forms = Forms::new(gpu, &x);
                let y = gpu.upload(&vec![0.25f32; n_tokens * n_rows]).unwrap();
                let out = GemvOut { weight: &device.weight, y: y.all(), bias: None, add: true };
                gpu.mmq(kernel, &out, &forms.get(), n_tokens).unwrap();
                let mut found = vec![0.0; y.len()];
                gpu.read(&mut found, y.all()).unwrap();
                let expected: Vec<f64> = expected.iter().map(|&y| f64::from(y) + 0.25).collect();
                let what = format!("{} {n_rows}x{row_len}, {n_tokens} tokens", kernel.name);
                assert_close(&what, &found, &expected, &magnitudes(&fixture, &x), 2e-5);
            }
        }
    }
}

fn gemv_shares_a_launch(gpu: &Arc<Gpu>) {
    let shapes = [(33, 512), (64, 512), (5, 512)];
    let fixtures: Vec<_> =
        shapes.iter().map(|&(rows, len)| Fixture::new(QuantType::Q4_K, rows, len, 3)).collect();
    let devices: Vec<_> = fixtures.iter().map(|fixture| on_device(gpu, fixture)).collect();
    let x = activations(2, 512, 5);
    let forms = Forms::new(gpu, &x);
    let bias: Vec<f32> = (0..64).map(|i| i as f32 / 8.0).collect();
    let bias = gpu.upload(&bias).unwrap();
    let start: Vec<Vec<f32>> = shapes.iter().map(|&(rows, _)| vec![0.5; 2 * rows]).collect();
    let ys: Vec<_> = start.iter().map(|start| gpu.upload(start).unwrap()).collect();
    let outs: Vec<_> = devices
        .iter()
        .zip(&ys)
        .map(|(device, y)| GemvOut {
            weight: &device.weight,
            y: y.all(),
            bias: Some(bias.all()),
            add: true,
        })
        .collect();
    let before = gpu.n_launches();
    gpu.gemv(&outs, &forms.get(), 2).unwrap();
    assert_eq!(gpu.n_launches(), before + 1, "one launch for three matrices");
    for (fixture, y) in fixtures.iter().zip(&ys) {
        let mut found = vec![0.0; y.len()];
        gpu.read(&mut found, y.all()).unwrap();
        let matmul = fixture.matmul(Tier::Scalar);
        let plain = product(
            &matmul,
            &quantized(Tier::Scalar, &x, 2),
            std::slice::from_ref(&(0..fixture.n_rows)),
        );
        let expected: Vec<f64> = plain
            .iter()
            .enumerate()
            .map(|(i, &y)| f64::from(y) + 0.5 + (i % fixture.n_rows) as f64 / 8.0)
            .collect();
        let scale: Vec<f64> = magnitudes(fixture, &x).iter().map(|m| m + 10.0).collect();
        assert_close("shared launch", &found, &expected, &scale, 2e-5);
    }
}

fn dequantize_is_rounded_weights(gpu: &Arc<Gpu>) {
    for (quant, base) in bases() {
        for &(n_rows, row_len) in SHAPES {
            let fixture = Fixture::new(quant, n_rows, row_len, 13);
            let device = on_device_as(gpu, &fixture, base);
            let out = gpu.alloc::<half::bf16>(n_rows * row_len).unwrap();
            gpu.fill_words(out.all(), POISON).unwrap();
            gpu.dequantize(out.all(), &device.weight).unwrap();
            let mut found = vec![half::bf16::ZERO; out.len()];
            gpu.read(&mut found, out.all()).unwrap();
            let found: Vec<f32> = found.iter().map(|v| v.to_f32()).collect();
            let exact: Vec<f64> = fixture.dequantized().iter().map(|&w| f64::from(w)).collect();
            let scale: Vec<f64> = exact.iter().map(|w| w.abs() + 1e-6).collect();
            let what = format!("{} {n_rows}x{row_len}", quant.name());
            assert_close(&what, &found, &exact, &scale, 1.0 / 255.0);
        }
    }
}

fn embed_is_scaled_rows(gpu: &Arc<Gpu>) {
    for (quant, base) in bases() {
        let (n_rows, row_len) = (40, 768);
        let fixture = Fixture::new(quant, n_rows, row_len, 17);
        let device = on_device_as(gpu, &fixture, base);
        let tokens = [39u32, 0, 7, 7];
        let ids = gpu.upload(&tokens).unwrap();
        let out = gpu.alloc::<f32>(tokens.len() * row_len).unwrap();
        gpu.fill_words(out.all(), POISON).unwrap();
        gpu.embed(out.all(), &device.weight, ids.all(), tokens.len(), 2.5).unwrap();
        let mut found = vec![0.0; out.len()];
        gpu.read(&mut found, out.all()).unwrap();
        let w = fixture.dequantized();
        let expected: Vec<f64> = tokens
            .iter()
            .flat_map(|&t| &w[t as usize * row_len..][..row_len])
            .map(|&w| 2.5 * f64::from(w))
            .collect();
        let scale: Vec<f64> = expected.iter().map(|w| w.abs() + 1e-2).collect();
        assert_close(quant.name(), &found, &expected, &scale, 2e-6);
    }
}

/// Every base read by its descriptors alone: the weights of [`Layout::value`], bit for bit, and the
/// products of the kernels that were made for it.
fn descriptors_give_the_weights(gpu: &Arc<Gpu>) {
    for (quant, base) in bases() {
        for &(n_rows, row_len) in &[(33, 768), (5, 512)] {
            let fixture = Fixture::new(quant, n_rows, row_len, 29);
            let what = format!("{} {} {n_rows}x{row_len}", quant.name(), base.name());
            let geometry = format_spec::Geometry { n_rows: n_rows as u64, row_len: row_len as u64 };
            let layout = Layout::new(base, quant, geometry).unwrap();
            let mut object = vec![0; layout.len_bytes() as usize];
            layout.write_units(&fixture.gguf, 0..layout.n_units(), &mut object).unwrap();
            let bytes = gpu.upload(&object).unwrap();
            let weight = DeviceWeight::by_descriptors(gpu, (&layout, bytes.all())).unwrap();
            assert!(weight.is_read_by_descriptors() && weight.few_kind() == base);
            let expected: Vec<f32> = (0..n_rows as u64)
                .flat_map(|row| (0..row_len as u64).map(move |k| (row, k)))
                .map(|(row, k)| layout.value(&object, row, k))
                .collect();
            let rows: Vec<u32> = (0..n_rows as u32).collect();
            let ids = gpu.upload(&rows).unwrap();
            let out = gpu.alloc::<f32>(expected.len()).unwrap();
            gpu.fill_words(out.all(), POISON).unwrap();
            gpu.embed(out.all(), &weight, ids.all(), n_rows, 1.0).unwrap();
            let mut found = vec![0.0; out.len()];
            gpu.read(&mut found, out.all()).unwrap();
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert!(bits(&found) == bits(&expected), "{what}: rows");
            let dense = gpu.alloc::<half::bf16>(expected.len()).unwrap();
            gpu.fill_words(dense.all(), POISON).unwrap();
            gpu.dequantize(dense.all(), &weight).unwrap();
            let mut found = vec![half::bf16::ZERO; dense.len()];
            gpu.read(&mut found, dense.all()).unwrap();
            assert!(found == bf16s(&expected), "{what}: bf16");
            descriptors_multiply(gpu, &fixture, &weight, &what);
        }
    }
}

fn descriptors_multiply(gpu: &Arc<Gpu>, fixture: &Fixture, weight: &DeviceWeight, what: &str) {
    let (n_rows, n_tokens) = (fixture.n_rows, 3);
    let x = activations(n_tokens, fixture.row_len, 31);
    let forms = Forms::new(gpu, &x);
    let bias: Vec<f32> = (0..n_rows).map(|i| i as f32 / 8.0).collect();
    let bias_device = gpu.upload(&bias).unwrap();
    let y = [0, 1].map(|_| gpu.upload(&vec![0.5f32; n_tokens * n_rows]).unwrap());
    let outs = [(&y[0], true), (&y[1], false)].map(|(y, add)| GemvOut {
        weight,
        y: y.all(),
        bias: Some(bias_device.all()),
        add,
    });
    gpu.gemv(&outs, &forms.get(), n_tokens).unwrap();
    let plain = product(
        &fixture.matmul(Tier::Scalar),
        &quantized(Tier::Scalar, &x, n_tokens),
        std::slice::from_ref(&(0..n_rows)),
    );
    let scale: Vec<f64> = magnitudes(fixture, &x).iter().map(|m| m + 10.0).collect();
    for (y, start) in y.iter().zip([0.5, 0.0]) {
        let mut found = vec![0.0; y.len()];
        gpu.read(&mut found, y.all()).unwrap();
        let expected: Vec<f64> = plain
            .iter()
            .enumerate()
            .map(|(i, &y)| f64::from(y) + start + f64::from(bias[i % n_rows]))
            .collect();
        assert_close(what, &found, &expected, &scale, 2e-5);
    }
}

/// (tokens, rows, row length).
const GEMMS: &[(usize, usize, usize)] =
    &[(1, 64, 256), (7, 40, 512), (33, 24, 768), (130, 129, 96), (512, 200, 1536), (257, 384, 32)];

pub(crate) fn bf16s(values: &[f32]) -> Vec<half::bf16> {
    values.iter().map(|&v| half::bf16::from_f32(v)).collect()
}

/// (y, w, x, bias, (tokens, rows, row length), whether it adds).
pub(crate) type GemmCase<'c> = (
    &'c Buffer<f32>,
    &'c Buffer<half::bf16>,
    &'c Buffer<half::bf16>,
    Option<&'c Buffer<f32>>,
    (usize, usize, usize),
    bool,
);

/// Each of some ways to multiply, by name.
pub(crate) fn check_gemm<'w>(
    gpu: &Arc<Gpu>,
    ways: &[&'w str],
    multiply: impl Fn(&'w str, GemmCase<'_>),
) {
    for &(n_tokens, n_rows, row_len) in GEMMS {
        let x = bf16s(&activations(n_tokens, row_len, 19));
        let w = bf16s(&activations(n_rows, row_len, 23));
        let bias: Vec<f32> = (0..n_rows).map(|i| i as f32 * 0.25 - 3.0).collect();
        let (x_device, w_device) = (gpu.upload(&x).unwrap(), gpu.upload(&w).unwrap());
        let bias_device = gpu.upload(&bias).unwrap();
        let mut sums = Vec::with_capacity(n_tokens * n_rows);
        for x in x.chunks_exact(row_len) {
            for w in w.chunks_exact(row_len) {
                let terms = || w.iter().zip(x).map(|(w, x)| w.to_f64() * x.to_f64());
                sums.push((terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>()));
            }
        }
        for (with_bias, add) in [(false, false), (true, false), (false, true)] {
            let start = if add { 0.75 } else { 0.0 };
            let bias_of = |i: usize| if with_bias { f64::from(bias[i % n_rows]) } else { 0.0 };
            let each = sums
                .iter()
                .enumerate()
                .map(|(i, (sum, size))| (sum + start + bias_of(i), size + bias_of(i).abs() + 1.0));
            let (expected, scale): (Vec<f64>, Vec<f64>) = each.unzip();
            for way in ways {
                let y = gpu.upload(&vec![0.75f32; n_tokens * n_rows]).unwrap();
                if !add {
                    gpu.fill_words(y.all(), POISON).unwrap();
                }
                let given = with_bias.then_some(&bias_device);
                let shape = (n_tokens, n_rows, row_len);
                multiply(way, (&y, &w_device, &x_device, given, shape, add));
                let mut found = vec![0.0; y.len()];
                gpu.read(&mut found, y.all()).unwrap();
                let shape = format!("{n_tokens}x{n_rows}x{row_len}");
                let what = format!("{way}: {shape}, bias {with_bias}, add {add}");
                assert_close(&what, &found, &expected, &scale, 2e-6);
            }
        }
    }
}

fn gemm_agrees_with_f64(gpu: &Arc<Gpu>) {
    check_gemm(gpu, &["gemm_bf16"], |_, (y, w, x, bias, shape, add)| {
        let bias = bias.map(Buffer::all);
        gpu.gemm_bf16(y.all(), (w.all(), shape.2), x.all(), bias, shape, add).unwrap();
    });
}

fn cublaslt_agrees_with_f64(gpu: &Arc<Gpu>) {
    let blas = Blas::find(gpu).unwrap();
    assert!(blas.is_some() || std::env::var_os("MINFER_NO_CUBLASLT").is_some(), "no cuBLASLt here");
    let Some(blas) = blas else { return };
    check_gemm(gpu, &["cublaslt"], |_, (y, w, x, bias, shape, add)| {
        let bias = bias.map(Buffer::all);
        blas.gemm(y.all(), (w.all(), shape.2), x.all(), bias, shape, add).unwrap();
    });
}
