//! From a container to a model: hyper-parameters, then each tensor at the shape that they imply.

use crate::backend::Bind;
use crate::error::{Error, Result};
use format_spec::container::{Container, TensorEntry};
use std::collections::HashSet;

/// Hands out a container's tensors to an architecture and remembers which.
pub(crate) struct Loader<'l, 'a, B> {
    backend: &'l B,
    file: &'a [u8],
    container: &'a Container<'a>,
    used: HashSet<String>,
}

impl<'l, 'a, B: Bind<'a>> Loader<'l, 'a, B> {
    pub(crate) fn new(backend: &'l B, file: &'a [u8], container: &'a Container<'a>) -> Self {
        Self { backend, file, container, used: HashSet::new() }
    }

    /// The matrix `{name}.weight`, `[n_rows, row_len]`, with `{name}.bias` if there is one.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        n_rows: usize,
        row_len: usize,
    ) -> Result<B::Matrix> {
        let full = format!("{name}.weight");
        match self.optional_matrix(name, n_rows, row_len)? {
            Some(matrix) => Ok(matrix),
            None => Err(missing(&full, n_rows, row_len)),
        }
    }

    /// As [`matrix`](Self::matrix), if it is there.
    pub(crate) fn optional_matrix(
        &mut self,
        name: &str,
        n_rows: usize,
        row_len: usize,
    ) -> Result<Option<B::Matrix>> {
        let Some(entry) = self.take(&format!("{name}.weight"), n_rows, row_len)? else {
            return Ok(None);
        };
        let bias = self.optional_values(&format!("{name}.bias"), n_rows)?;
        self.backend.matrix(self.file, &entry, bias).map(Some)
    }

    /// A parameter vector of `len` elements.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<B::Vector> {
        let values = self.optional_values(name, len)?.ok_or_else(|| missing(name, 1, len))?;
        self.backend.vector(values)
    }

    /// The values of a vector of `len` elements, if it is there.
    pub(crate) fn optional_values(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let Some(entry) = self.take(name, 1, len)? else { return Ok(None) };
        self.backend.values(self.file, &entry).map(Some)
    }

    /// Refuses a container with tensors that the architecture has no use for: they would be
    /// missing from its results.
    pub(crate) fn finish(self) -> Result<()> {
        match self.container.tensors().find(|entry| !self.used.contains(entry.name)) {
            None => Ok(()),
            Some(entry) => Err(Error::Tensor {
                tensor: entry.name.to_owned(),
                expected: "nothing (the architecture has no such tensor)".to_owned(),
                found: shape(entry.geometry.n_rows, entry.geometry.row_len),
            }),
        }
    }

    fn take(
        &mut self,
        name: &str,
        n_rows: usize,
        row_len: usize,
    ) -> Result<Option<TensorEntry<'a>>> {
        let Some(entry) = self.container.tensor(name) else { return Ok(None) };
        let geometry = entry.geometry;
        if (geometry.n_rows, geometry.row_len) != (n_rows as u64, row_len as u64) {
            return Err(Error::Tensor {
                tensor: name.to_owned(),
                expected: shape(n_rows as u64, row_len as u64),
                found: shape(geometry.n_rows, geometry.row_len),
            });
        }
        self.used.insert(name.to_owned());
        Ok(Some(entry))
    }
}

fn missing(name: &str, n_rows: usize, row_len: usize) -> Error {
    Error::Tensor {
        tensor: name.to_owned(),
        expected: shape(n_rows as u64, row_len as u64),
        found: "nothing".to_owned(),
    }
}

/// A shape as messages give it: rows first.
fn shape(n_rows: u64, row_len: u64) -> String {
    if n_rows == 1 { format!("[{row_len}]") } else { format!("[{n_rows}, {row_len}]") }
}
