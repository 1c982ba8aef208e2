//! What a model would take of a GPU, without taking it.

use crate::backend::cuda::Prepared;
use crate::error::Result;
use crate::open::{CudaOptions, LoadOptions, blueprint};
use crate::report::GpuPlan;
use format_spec::container::Container;
use format_spec::model::{Blueprint, Config};
use kernels::cuda::DeviceInfo;

/// A model beside a GPU that it may go to.
#[derive(Debug)]
pub struct GpuOutlook<'c> {
    prepared: Prepared,
    blueprint: Blueprint,
    container: &'c Container<'c>,
    options: CudaOptions,
}

impl<'c> GpuOutlook<'c> {
    /// Opens the GPU; no weights are read.
    ///
    /// # Errors
    /// If the architecture is not supported, a hyper-parameter is missing or has a value that it
    /// cannot have; if there is no driver, no such GPU, or one of them is too old.
    pub fn new(
        container: &'c Container<'c>,
        common: &LoadOptions,
        options: &CudaOptions,
    ) -> Result<Self> {
        let blueprint = blueprint(container)?;
        let prepared = Prepared::new(options, common, container)?;
        Ok(Self { prepared, blueprint, container, options: *options })
    }

    /// The GPU.
    pub fn gpu(&self) -> &DeviceInfo {
        self.prepared.info()
    }

    /// The hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.blueprint.config
    }

    /// What the model takes with a context of `n_ctx` positions; 0: those that a session begins with.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn plan(&self, n_ctx: usize) -> Result<GpuPlan> {
        let options = CudaOptions { n_ctx, ..self.options };
        self.prepared.plan(&options, &self.blueprint, self.container)
    }
}
