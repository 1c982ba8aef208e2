//! What can go wrong between here and a GPU.

/// Result of this module.
pub type CudaResult<T> = Result<T, CudaError>;

/// Why the GPU cannot be used, or stopped being usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// No driver library.
    #[error("no NVIDIA driver is installed (libcuda was not found)")]
    NoDriver,
    /// The driver finds no device.
    #[error("the NVIDIA driver finds no GPU ({0})")]
    NoDevice(String),
    /// A device number that does not exist.
    #[error("there is no GPU {ordinal}: this machine has {n_devices}")]
    NoSuchDevice {
        /// The number asked for.
        ordinal: usize,
        /// Devices there are.
        n_devices: usize,
    },
    /// The driver is older than the kernels' compiler allows.
    #[error(
        "the NVIDIA driver supports CUDA {major}.{minor}, minfer needs 13.0 (driver r580 or newer)"
    )]
    OldDriver {
        /// Major version of CUDA that the driver knows.
        major: i32,
        /// Minor version.
        minor: i32,
    },
    /// The device is older than the oldest that kernels are built for.
    #[error("{name} has compute capability {major}.{minor}, minfer needs 8.0 or newer")]
    OldDevice {
        /// The device's name.
        name: String,
        /// Major compute capability.
        major: i32,
        /// Minor compute capability.
        minor: i32,
    },
    /// A call into the driver failed.
    #[error("{what}: {code}")]
    Driver {
        /// What was being done.
        what: &'static str,
        /// The driver's name for the failure.
        code: String,
    },
    /// Device memory ran out.
    #[error("{n_bytes} bytes of GPU memory could not be allocated")]
    Memory {
        /// How much was asked for.
        n_bytes: u64,
    },
    /// A product that the library refuses.
    #[error("cuBLASLt: {0}")]
    Blas(String),
    /// A weight that no kernel reads.
    #[error("{0}")]
    Weight(String),
}
