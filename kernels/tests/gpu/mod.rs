//! A GPU for tests: modules, memory, launches, and random weights in every object kind.
//!
//! Without a driver or device, [`Device::open`] says why, and tests report themselves skipped.
#![allow(unsafe_code)] // launches
#![allow(dead_code)] // tests and benches use different parts

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DeviceRepr,
    LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use format_spec::{Geometry, Layout, PlaneKind, QuantType};
use half::f16;
use kernels::cuda::mmq::{MmqArgs, MmqKernel};

/// xorshift64*: deterministic, good enough for bytes.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in -1..1.
    pub(crate) fn f32(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Where the f16 numbers of a block are.
fn scale_offsets(quant: QuantType) -> &'static [usize] {
    match quant {
        QuantType::Q4_0 | QuantType::Q5_0 | QuantType::Q8_0 => &[0],
        QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q4_K | QuantType::Q5_K => &[0, 2],
        QuantType::Q2_K => &[80, 82],
        QuantType::Q3_K => &[108],
        QuantType::Q6_K => &[208],
        _ => &[],
    }
}

/// A random quantized tensor: any stored integers, finite scales (zero and subnormal ones too).
pub(crate) struct Tensor {
    pub(crate) quant: QuantType,
    pub(crate) geometry: Geometry,
    pub(crate) gguf: Vec<u8>,
}

impl Tensor {
    pub(crate) fn random(quant: QuantType, n_rows: usize, row_len: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let n_bytes = n_rows * row_len / quant.block_elems() * quant.block_bytes();
        let mut gguf = Vec::with_capacity(n_bytes + 8);
        while gguf.len() < n_bytes {
            gguf.extend_from_slice(&rng.next().to_le_bytes());
        }
        gguf.truncate(n_bytes);
        for block in gguf.chunks_exact_mut(quant.block_bytes()) {
            for &at in scale_offsets(quant) {
                let scale = match rng.next() % 64 {
                    0 => f16::ZERO,
                    1 => f16::from_bits(3),
                    _ => f16::from_f32(rng.f32() * 0.02),
                };
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        let geometry = Geometry { n_rows: n_rows as u64, row_len: row_len as u64 };
        Self { quant, geometry, gguf }
    }

    pub(crate) fn n_rows(&self) -> usize {
        self.geometry.n_rows as usize
    }

    pub(crate) fn row_len(&self) -> usize {
        self.geometry.row_len as usize
    }

    /// The object of a kind.
    pub(crate) fn object(&self, kind: PlaneKind) -> (Layout, Vec<u8>) {
        let layout = Layout::new(kind, self.quant, self.geometry).expect("a layout");
        let mut bytes = vec![0xa5; layout.len_bytes() as usize];
        layout.write_units(&self.gguf, 0..layout.n_units(), &mut bytes).expect("lengths fit");
        (layout, bytes)
    }

    /// The weights of a row, exactly.
    pub(crate) fn row(&self, row: usize) -> Vec<f32> {
        let row_bytes = self.quant.row_bytes(self.row_len());
        let mut weights = vec![0.0; self.row_len()];
        self.quant.dequantize(&self.gguf[row * row_bytes..][..row_bytes], &mut weights);
        weights
    }
}

/// `[n_tokens, row_len]` activations with outliers.
pub(crate) fn activations(n_tokens: usize, row_len: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    let draw = |_| {
        let scale = if rng.next().is_multiple_of(97) { 20.0 } else { 1.0 };
        rng.f32() * scale
    };
    (0..n_tokens * row_len).map(draw).collect()
}

/// An `MmqArgs` as a kernel parameter.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct ArgsParam(pub(crate) MmqArgs);

// SAFETY: plain numbers in C order.
unsafe impl DeviceRepr for ArgsParam {}

/// A tensor's objects on the device, of every kind that an MMQ kernel reads.
pub(crate) type Objects = HashMap<PlaneKind, (Layout, CudaSlice<u8>)>;

/// Quantized activations on the device.
pub(crate) struct Activations {
    pub(crate) q: CudaSlice<i8>,
    pub(crate) ds: CudaSlice<f32>,
}

pub(crate) struct Device {
    pub(crate) stream: Arc<CudaStream>,
    modules: HashMap<&'static str, Arc<CudaModule>>,
}

impl Device {
    /// The first GPU with the modules of MMQ and quantization.
    ///
    /// Fatbins are read from `KERNELS_DIST`, or from the source tree.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn open() -> Result<Self, String> {
        // SAFETY: it looks for a library and loads it.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err("no CUDA driver".to_owned());
        }
        let context = CudaContext::new(0).map_err(|e| format!("no device: {e}"))?;
        let dir = std::env::var_os("KERNELS_DIST")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("dist"), PathBuf::from);
        let mut modules = HashMap::new();
        for name in ["mmq_q6_k", "mmq_q4_k", "mmq_generic", "quantize"] {
            let path = dir.join(format!("{name}.fatbin"));
            let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let module = context.load_module(Ptx::from_binary(bytes));
            modules.insert(name, module.map_err(|e| format!("{name}: {e}"))?);
        }
        let stream = context.new_stream().map_err(|e| e.to_string())?;
        Ok(Self { stream, modules })
    }

    pub(crate) fn function(&self, module: &str, name: &str) -> CudaFunction {
        self.modules[module].load_function(name).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub(crate) fn upload<T: DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).expect("memory")
    }

    pub(crate) fn download<T: DeviceRepr>(&self, values: &CudaSlice<T>) -> Vec<T> {
        let host = self.stream.clone_dtoh(values).expect("a download");
        self.stream.synchronize().expect("earlier launches");
        host
    }

    pub(crate) fn address<T>(&self, values: &CudaSlice<T>) -> u64 {
        values.device_ptr(&self.stream).0
    }

    pub(crate) fn objects(&self, tensor: &Tensor) -> Objects {
        let kinds =
            [PlaneKind::Padded, PlaneKind::Exp, PlaneKind::Dsc, PlaneKind::Eb, PlaneKind::Sb];
        let object = |kind: PlaneKind| {
            let (layout, bytes) = tensor.object(kind);
            let object = self.upload(&bytes);
            assert!(self.download(&object) == bytes, "{} read back", kind.name());
            (kind, (layout, object))
        };
        kinds.into_iter().filter(|kind| kind.applies_to(tensor.quant)).map(object).collect()
    }

    /// Arguments of a kernel for a weight, its activations and its output.
    pub(crate) fn args(
        &self,
        kernel: &MmqKernel,
        objects: &Objects,
        (x, n_tokens): (&Activations, usize),
        y: &CudaSlice<f32>,
    ) -> MmqArgs {
        let (w, p) = kernel.objects.kinds();
        let ((w_layout, w), (p_layout, p)) = (&objects[&w], &objects[&p]);
        MmqArgs {
            y: self.address(y),
            xq: self.address(&x.q),
            xds: self.address(&x.ds),
            w: self.address(w),
            p: self.address(p),
            n_tokens: n_tokens as u32,
            ..MmqArgs::new(kernel, w_layout, p_layout).expect("objects fit the kernel")
        }
    }

    /// Quantizes on the device, into poisoned memory.
    pub(crate) fn quantize(&self, x: &[f32], n_tokens: usize) -> Activations {
        let row_len = x.len() / n_tokens;
        let x = self.upload(x);
        let mut q = self.upload(&vec![0x55_i8; n_tokens * row_len]);
        let mut ds = self.upload(&vec![f32::NAN; n_tokens * row_len / 32 * 2]);
        let function = self.function("quantize", "quantize_q8");
        let grid_dim = ((row_len as u32).div_ceil(1024), n_tokens as u32, 1);
        let row_len = row_len as u32;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&mut q).arg(&mut ds).arg(&x).arg(&row_len);
        let config = LaunchConfig { grid_dim, block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the parameters of `quantize_q8`, of these lengths.
        unsafe { launch.launch(config) }.expect("a launch");
        self.stream.synchronize().expect("quantize_q8");
        Activations { q, ds }
    }

    pub(crate) fn prepare(&self, kernel: &MmqKernel) -> CudaFunction {
        let function = self.function(kernel.module, kernel.name);
        let attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, kernel.shared_bytes as i32).expect("shared memory");
        function
    }

    pub(crate) fn launch(&self, kernel: &MmqKernel, function: &CudaFunction, args: MmqArgs) {
        let param = ArgsParam(args);
        let mut launch = self.stream.launch_builder(function);
        launch.arg(&param);
        let config = LaunchConfig {
            grid_dim: kernel.grid(args.n_tokens, args.n_rows),
            block_dim: (MmqKernel::THREADS, 1, 1),
            shared_mem_bytes: kernel.shared_bytes,
        };
        // SAFETY: the one parameter of the kernel; the caller's buffers are as long as it says.
        unsafe { launch.launch(config) }.unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
    }
}
