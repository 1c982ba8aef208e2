//! What is there: the driver's version, the devices, and what they say about themselves.

use cudarc::driver::{result, sys};

use super::driver::{check, name_of};
use super::error::{CudaError, CudaResult};

/// CUDA 13.0, which driver r580 brings.
const MIN_DRIVER: i32 = 13000;
/// Compute capability 8.0.
const MIN_COMPUTE: (i32, i32) = (8, 0);

/// What a device says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number among the machine's devices.
    pub ordinal: usize,
    /// Name.
    pub name: String,
    /// Compute capability.
    pub compute: (i32, i32),
    /// Multiprocessors.
    pub n_multiprocessors: u32,
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Version of CUDA that the driver supports, 1000 * major + 10 * minor.
    pub driver: i32,
}

/// The version of CUDA that the driver supports.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::OldDriver`].
pub(super) fn driver_version() -> CudaResult<i32> {
    // SAFETY: it only tries to load the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the library is there; the function needs no initialization.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    check("asking for the driver's version", status.result())?;
    if version < MIN_DRIVER {
        return Err(CudaError::OldDriver { major: version / 1000, minor: version % 1000 / 10 });
    }
    Ok(version)
}

pub(super) fn describe(ordinal: usize, driver: i32) -> CudaResult<(sys::CUdevice, DeviceInfo)> {
    result::init().map_err(|e| CudaError::NoDevice(name_of(e)))?;
    let n_devices = check("counting devices", result::device::get_count())?;
    let n_devices = usize::try_from(n_devices).unwrap_or(0);
    if n_devices == 0 {
        return Err(CudaError::NoDevice("0 devices".to_owned()));
    }
    let number = i32::try_from(ordinal).ok().filter(|_| ordinal < n_devices);
    let number = number.ok_or(CudaError::NoSuchDevice { ordinal, n_devices })?;
    let device = check("opening the device", result::device::get(number))?;
    let attribute = |attribute| {
        // SAFETY: `device` is a device.
        check("asking the device", unsafe { result::device::get_attribute(device, attribute) })
    };
    use sys::CUdevice_attribute as A;
    let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let name = check("asking the device's name", result::device::get_name(device))?;
    if (major, minor) < MIN_COMPUTE {
        return Err(CudaError::OldDevice { name, major, minor });
    }
    let n = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    // SAFETY: `device` is a device.
    let total = check("asking the device", unsafe { result::device::total_mem(device) })?;
    let info = DeviceInfo {
        ordinal,
        name,
        compute: (major, minor),
        n_multiprocessors: u32::try_from(n).unwrap_or(1).max(1),
        total_bytes: total as u64,
        driver,
    };
    Ok((device, info))
}

/// Looks at a device without using it.
///
/// # Errors
/// If there is no driver, no such device, or one of them is too old.
pub fn probe(ordinal: usize) -> CudaResult<DeviceInfo> {
    Ok(describe(ordinal, driver_version()?)?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_says_why() {
        match probe(9999) {
            Ok(info) => panic!("{info:?}"),
            Err(CudaError::NoSuchDevice { ordinal, n_devices }) => {
                assert!(ordinal == 9999 && n_devices > 0);
            }
            Err(other) => assert!(other.to_string().contains("NVIDIA"), "{other}"),
        }
    }
}
