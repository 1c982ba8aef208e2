//! From a container to a model: each tensor, at the shape that the hyper-parameters imply, handed
//! to the backend that will run it.

use crate::backend::{Bind, ExpertMatrices, ExpertShape};
use crate::error::{Error, Result};
use format_spec::container::{Container, TensorEntry};
use format_spec::model::ExpectedTensor;
use std::collections::HashMap;
use std::ops::Range;

/// Hands out a container's tensors to an architecture and remembers which.
///
/// The blueprint has compared them with the file: what is required is there, and has its shape.
pub(crate) struct Loader<'l, 'a, B> {
    backend: &'l B,
    file: &'a [u8],
    container: &'a Container<'a>,
    /// Tensors that have not been taken yet.
    waiting: HashMap<&'l str, &'l ExpectedTensor>,
}

impl<'l, 'a, B: Bind<'a>> Loader<'l, 'a, B> {
    /// `tensors` are the blueprint's.
    pub(crate) fn new(
        backend: &'l B,
        file: &'a [u8],
        container: &'a Container<'a>,
        tensors: &'l [ExpectedTensor],
    ) -> Self {
        let waiting = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        Self { backend, file, container, waiting }
    }

    /// The matrix `{name}.weight` with `{name}.bias` if there is one.
    pub(crate) fn matrix(&mut self, name: &str) -> Result<B::Matrix> {
        self.optional_matrix(name)?.ok_or_else(|| absent(&format!("{name}.weight")))
    }

    /// As [`matrix`](Self::matrix), if it is there.
    pub(crate) fn optional_matrix(&mut self, name: &str) -> Result<Option<B::Matrix>> {
        let Some(entry) = self.take(&format!("{name}.weight"))? else {
            return Ok(None);
        };
        let bias = self.optional_values(&format!("{name}.bias"))?;
        self.backend.matrix(self.file, &entry, bias).map(Some)
    }

    /// The matrix of this full name, which never has a bias.
    pub(crate) fn weight(&mut self, name: &str) -> Result<B::Matrix> {
        let entry = self.take(name)?.ok_or_else(|| absent(name))?;
        self.backend.matrix(self.file, &entry, None)
    }

    /// The experts that these matrices are.
    pub(crate) fn experts(
        &self,
        matrices: ExpertMatrices<B::Matrix>,
        shape: ExpertShape,
    ) -> Result<B::Experts> {
        self.backend.experts(matrices, shape)
    }

    /// A parameter vector.
    pub(crate) fn vector(&mut self, name: &str) -> Result<B::Vector> {
        let values = self.optional_values(name)?.ok_or_else(|| absent(name))?;
        self.backend.vector(values)
    }

    /// The values of a vector, if it is there.
    pub(crate) fn optional_values(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(entry) = self.take(name)? else { return Ok(None) };
        self.backend.values(self.file, &entry).map(Some)
    }

    /// Whether the architecture has a use for the tensor.
    pub(crate) fn lists(&self, name: &str) -> bool {
        self.waiting.contains_key(name)
    }

    /// Refuses to leave a tensor of `layers` unused: it would be missing from the results.
    pub(crate) fn finish(self, layers: &Range<usize>) -> Result<()> {
        let is_left = |tensor: &&ExpectedTensor| {
            let is_ours = tensor.layer.is_some_and(|layer| layers.contains(&layer));
            is_ours && self.container.tensor(&tensor.name).is_some()
        };
        match self.waiting.values().copied().find(is_left) {
            None => Ok(()),
            Some(tensor) => Err(Error::Weight {
                tensor: tensor.name.clone(),
                reason: "the architecture lists it and does not read it".to_owned(),
            }),
        }
    }

    /// The tensor, unless the file is without it.
    fn take(&mut self, name: &str) -> Result<Option<TensorEntry<'a>>> {
        if self.waiting.remove(name).is_none() {
            return Err(Error::Weight {
                tensor: name.to_owned(),
                reason: "the architecture does not list it, or reads it twice".to_owned(),
            });
        }
        Ok(self.container.tensor(name))
    }
}

fn absent(tensor: &str) -> Error {
    let reason = "the architecture lists it as optional and cannot do without".to_owned();
    Error::Weight { tensor: tensor.to_owned(), reason }
}
