//! bf16 products in cuBLASLt, where the library is found.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::{result, sys};

use super::driver::Gpu;
use super::error::{CudaError, CudaResult};
use super::memory::{Buffer, Span};

/// What NVIDIA recommends for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;

/// `CUBLAS_OP_T`, whose enumeration belongs to another library.
const TRANSPOSED: i32 = 1;

/// A shape whose algorithm is chosen once: (rows, tokens, row length, row stride, adds, has bias).
type Key = (usize, usize, usize, usize, bool, bool);

struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    y: sys::cublasLtMatrixLayout_t,
    algo: sys::cublasLtMatmulAlgo_t,
}

/// The library's handle, its workspace, and the algorithms chosen so far.
pub struct Blas {
    gpu: Arc<Gpu>,
    handle: sys::cublasLtHandle_t,
    workspace: Buffer<u8>,
    plans: Mutex<HashMap<Key, Plan>>,
}

// SAFETY: handles of the library may be used from any thread; descriptors are behind the mutex.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

fn check<T>(r: Result<T, result::CublasError>) -> CudaResult<T> {
    r.map_err(|e| CudaError::Blas(format!("{:?}", e.0)))
}

impl Blas {
    /// Device memory that it takes for itself.
    pub const WORKSPACE_BYTES: usize = WORKSPACE_BYTES;

    /// Whether this machine has the library.
    pub fn is_here() -> bool {
        // SAFETY: it only tries to load the library.
        unsafe { sys::is_culib_present() }
    }

    /// The library, or `None` if this machine does not have it.
    ///
    /// # Errors
    /// If it is there and cannot be used.
    pub fn find(gpu: &Arc<Gpu>) -> CudaResult<Option<Self>> {
        if !Self::is_here() {
            return Ok(None);
        }
        gpu.bind()?;
        let handle = check(result::create_handle())?;
        let workspace = gpu.alloc(WORKSPACE_BYTES)?;
        Ok(Some(Self { gpu: Arc::clone(gpu), handle, workspace, plans: Mutex::default() }))
    }

    /// Multiplies once in each of these shapes, (rows, row length), so that the first prompt does
    /// not wait for algorithms to be chosen and loaded. Without memory for it nothing happens.
    ///
    /// # Errors
    /// If the library refuses a product.
    pub fn warm_up(&self, shapes: &[(usize, usize)], n_tokens: usize) -> CudaResult<()> {
        let most = |len: fn(&(usize, usize)) -> usize| shapes.iter().map(len).max().unwrap_or(0);
        let n_weights = most(|(n_rows, row_len)| n_rows * row_len);
        let n_inputs = most(|(_, row_len)| *row_len) * n_tokens;
        let n_outputs = most(|(n_rows, _)| *n_rows) * n_tokens;
        let buffers = (|| {
            Ok((self.gpu.alloc(n_weights)?, self.gpu.alloc(n_inputs)?, self.gpu.alloc(n_outputs)?))
        })();
        let (w, x, y): (Buffer<half::bf16>, Buffer<half::bf16>, Buffer<f32>) = match buffers {
            Err(CudaError::Memory { .. }) => return Ok(()),
            other => other?,
        };
        for &(n_rows, row_len) in shapes {
            let shape = (n_tokens, n_rows, row_len);
            self.gemm(y.all(), (w.all(), row_len), x.all(), None, shape, false)?;
        }
        self.gpu.synchronize()
    }

    /// `y = x w^T + bias`, or added to `y`. `w`: `[n_rows, row_len]` at `w_stride` elements from
    /// row to row, `x`: `[n_tokens, row_len]`, `y`: `[n_tokens, n_rows]`.
    ///
    /// # Errors
    /// If the library refuses the product.
    ///
    /// # Panics
    /// If shapes disagree.
    #[allow(clippy::too_many_arguments)]
    pub fn gemm(
        &self,
        y: Span<'_, f32>,
        (w, w_stride): (Span<'_, half::bf16>, usize),
        x: Span<'_, half::bf16>,
        bias: Option<Span<'_, f32>>,
        (n_tokens, n_rows, row_len): (usize, usize, usize),
        add: bool,
    ) -> CudaResult<()> {
        assert!(n_tokens > 0 && n_rows > 0 && row_len <= w_stride, "shape");
        assert!(w.len() >= (n_rows - 1) * w_stride + row_len, "weights");
        assert!(x.len() >= n_tokens * row_len && y.len() >= n_tokens * n_rows, "activations");
        assert!(bias.is_none_or(|bias| bias.len() >= n_rows), "bias");
        self.gpu.bind()?;
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (n_rows, n_tokens, row_len, w_stride, add, bias.is_some());
        let plan = match plans.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.plan(key)?),
        };
        if let Some(bias) = bias {
            let what = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            set(plan.desc, what, &bias.ptr)?;
        }
        let (alpha, beta) = (1.0f32, if add { 1.0f32 } else { 0.0 });
        let pointer = |address: u64| address as *mut c_void;
        // SAFETY: descriptors are the plan's and describe the spans, whose lengths are checked.
        check(unsafe {
            result::matmul(
                self.handle,
                plan.desc,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                pointer(w.ptr),
                plan.w,
                pointer(x.ptr),
                plan.x,
                pointer(y.ptr),
                plan.y,
                pointer(y.ptr),
                plan.y,
                &raw const plan.algo,
                pointer(self.workspace.all().ptr),
                WORKSPACE_BYTES,
                self.gpu.stream().cast(),
            )
        })
    }

    fn plan(&self, key: Key) -> CudaResult<Plan> {
        let (n_rows, n_tokens, row_len, w_stride, _, has_bias) = key;
        let (rows, tokens, inner) = (n_rows as u64, n_tokens as u64, row_len as u64);
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let (bf16, f32) = (sys::cudaDataType::CUDA_R_16BF, sys::cudaDataType::CUDA_R_32F);
        let desc = check(result::create_matmul_desc(compute, f32))?;
        use sys::cublasLtMatmulDescAttributes_t as D;
        set(desc, D::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if has_bias {
            let bias = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            set(desc, D::CUBLASLT_MATMUL_DESC_EPILOGUE, &bias)?;
        }
        // The library counts in columns: our rows are its columns.
        let w = check(result::create_matrix_layout(bf16, inner, rows, w_stride as i64))?;
        let x = check(result::create_matrix_layout(bf16, inner, tokens, row_len as i64))?;
        let y = check(result::create_matrix_layout(f32, rows, tokens, n_rows as i64))?;
        let pref = check(result::create_matmul_pref())?;
        let limit =
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = WORKSPACE_BYTES;
        // SAFETY: the attribute is a size_t.
        check(unsafe {
            result::set_matmul_pref_attribute(
                pref,
                limit,
                (&raw const bytes).cast(),
                size_of::<usize>(),
            )
        })?;
        // SAFETY: all descriptors are alive.
        let found =
            unsafe { result::get_matmul_algo_heuristic(self.handle, desc, w, x, y, y, pref) };
        // SAFETY: made above, used by nothing any more.
        let freed = unsafe { result::destroy_matmul_pref(pref) };
        let algo = check(found)?.algo;
        check(freed)?;
        Ok(Plan { desc, w, x, y, algo })
    }
}

/// Sets an attribute of a product's description.
fn set<T>(
    desc: sys::cublasLtMatmulDesc_t,
    what: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> CudaResult<()> {
    let value: *const T = value;
    // SAFETY: the description is alive; the callers give each attribute a value of its type.
    check(unsafe { result::set_matmul_desc_attribute(desc, what, value.cast(), size_of::<T>()) })
}

impl Drop for Blas {
    fn drop(&mut self) {
        let plans = self.plans.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, plan) in plans.drain() {
            for layout in [plan.w, plan.x, plan.y] {
                // SAFETY: made in `plan`, used by nothing any more.
                let _ = unsafe { result::destroy_matrix_layout(layout) };
            }
            // SAFETY: as above.
            let _ = unsafe { result::destroy_matmul_desc(plan.desc) };
        }
        // SAFETY: made in `find`, used by nothing any more.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl std::fmt::Debug for Blas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blas").finish_non_exhaustive()
    }
}
