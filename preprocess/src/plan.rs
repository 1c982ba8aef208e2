//! The plan: which tensor gets which objects, and what that costs, before a byte is written.

use format_spec::QuantType;
use format_spec::container::OBJECT_ALIGN;
use format_spec::gguf::{Gguf, TensorInfo};
use format_spec::plane::{Geometry, Layout, PlaneKind};

use crate::PlaneSet;
use crate::error::Result;

/// What one tensor gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Name as the GGUF has it.
    pub name: String,
    /// Type of the weights.
    pub quant: QuantType,
    /// Rows and elements a row.
    pub geometry: Geometry,
    /// Bytes in the GGUF.
    pub gguf_bytes: u64,
    /// Layouts of its objects, the base first.
    pub layouts: Vec<Layout>,
    /// Rows read for one decoded token.
    pub rows_per_token: u64,
}

/// Which tensor gets which objects. A pure function of tensor directory and plane set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The tensors, in the order of the GGUF.
    pub tensors: Vec<PlannedTensor>,
}

/// What decides how often a tensor's rows are read for a token.
const TOKEN_EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// Experts of a layer, of which a token reads some.
#[derive(Debug, Clone, Copy)]
struct Experts {
    n_expert: u64,
    n_used: u64,
}

impl Experts {
    /// What the keys say, where it can be true.
    fn of(gguf: &Gguf<'_>) -> Option<Self> {
        let metadata = gguf.metadata();
        let architecture = metadata.str("general.architecture").ok()??;
        let count = |key: &str| metadata.u64(&format!("{architecture}.{key}")).ok()?;
        let (n_expert, n_used) = (count("expert_count")?, count("expert_used_count")?);
        (n_used <= n_expert && n_expert > 0).then_some(Self { n_expert, n_used })
    }

    /// Rows of a tensor that a token reads, if it is all experts' of a layer, or one's own
    /// (`blk.0.ffn_up.7.weight`): of these the first stand for whichever they are.
    fn rows_read(self, tensor: &TensorInfo<'_>) -> Option<u64> {
        let n_rows = tensor.n_rows();
        if tensor.dims().len() == 3 && tensor.dims().last() == Some(&self.n_expert) {
            return Some(n_rows / self.n_expert * self.n_used);
        }
        let parts: Vec<&str> = tensor.name().split('.').collect();
        let ["blk", _, _, expert, "weight"] = parts[..] else { return None };
        let is_read = expert.parse::<u64>().ok()? < self.n_used;
        Some(if is_read { n_rows } else { 0 })
    }
}

impl Plan {
    /// Plans every tensor of `gguf`.
    ///
    /// # Errors
    /// If an object would be too large to be addressed.
    pub fn new(gguf: &Gguf<'_>, planes: &PlaneSet) -> Result<Self> {
        Self::of_files(&[gguf], planes)
    }

    /// Plans all tensors of a model, in order, whichever files they are in; the first has the keys.
    ///
    /// # Errors
    /// If an object would be too large to be addressed.
    pub fn of_files(files: &[&Gguf<'_>], planes: &PlaneSet) -> Result<Self> {
        let tensors: Vec<_> = files.iter().flat_map(|gguf| gguf.tensors()).collect();
        // Without an output matrix of its own, a model multiplies with the embedding.
        let tied = !tensors.iter().any(|tensor| tensor.name() == OUTPUT);
        let experts = files.first().and_then(|gguf| Experts::of(gguf));
        let plan = |tensor: &TensorInfo<'_>| {
            let geometry = Geometry { n_rows: tensor.n_rows(), row_len: tensor.row_len() };
            // An embedding that is only looked up takes part in no product.
            let is_looked_up = tensor.name() == TOKEN_EMBEDDING && !tied;
            let is_matrix = tensor.dims().len() > 1 && !is_looked_up;
            let layouts: Result<Vec<_>, _> = planes
                .for_tensor(tensor.quant(), is_matrix)
                .into_iter()
                .map(|kind| Layout::new(kind, tensor.quant(), geometry))
                .collect();
            let of_experts = experts.and_then(|experts| experts.rows_read(tensor));
            let rows_per_token =
                if is_looked_up { 1 } else { of_experts.unwrap_or(geometry.n_rows) };
            Ok(PlannedTensor {
                name: tensor.name().to_owned(),
                quant: tensor.quant(),
                geometry,
                gguf_bytes: tensor.n_bytes(),
                layouts: layouts?,
                rows_per_token,
            })
        };
        let tensors: Result<Vec<_>> = tensors.into_iter().map(plan).collect();
        Ok(Self { tensors: tensors? })
    }

    /// Objects in file order, each with the index of its tensor: all bases in the order of the
    /// tensors, then the other planes kind by kind.
    pub fn objects(&self) -> impl Iterator<Item = (usize, &Layout)> {
        let bases = self
            .tensors
            .iter()
            .enumerate()
            .flat_map(|(i, tensor)| tensor.layouts.first().map(|layout| (i, layout)));
        let others = PlaneKind::ALL.iter().flat_map(move |&kind| {
            self.tensors.iter().enumerate().flat_map(move |(i, tensor)| {
                let layouts = tensor.layouts.iter().skip(1);
                layouts.filter(move |layout| layout.kind() == kind).map(move |layout| (i, layout))
            })
        });
        bases.chain(others)
    }

    /// What the plan costs, by quant type and plane kind.
    pub fn figures(&self) -> Figures {
        let mut rows: Vec<FigureRow> = Vec::new();
        for tensor in &self.tensors {
            for (nth, layout) in tensor.layouts.iter().enumerate() {
                let key = (tensor.quant, layout.kind());
                let at = rows.iter().position(|row| (row.quant, row.kind) == key);
                let at = at.unwrap_or_else(|| {
                    rows.push(FigureRow::new(tensor.quant, layout.kind()));
                    rows.len() - 1
                });
                if let Some(row) = rows.get_mut(at) {
                    row.count(tensor, layout, nth == 0);
                }
            }
        }
        rows.sort_by_key(|row| (row.quant, row.kind));
        Figures { rows }
    }
}

/// Sums over all objects of one quant type and plane kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FigureRow {
    /// Type of the weights.
    pub quant: QuantType,
    /// Plane kind.
    pub kind: PlaneKind,
    /// Number of objects.
    pub n_objects: u64,
    /// Bytes of their tensors in the GGUF; 0 for planes beside a base, so that sums are right.
    pub gguf_bytes: u64,
    /// Bytes of the objects themselves.
    pub object_bytes: u64,
    /// Bytes on disk: each object rounded up to [`OBJECT_ALIGN`]. The device arena has the same
    /// order and alignment, so that this is the GPU memory too.
    pub stored_bytes: u64,
    /// Bytes read to decode one token. Decoding reads bases; `exp` and `dsc` serve prefill.
    pub token_bytes: u64,
}

impl FigureRow {
    fn new(quant: QuantType, kind: PlaneKind) -> Self {
        Self {
            quant,
            kind,
            n_objects: 0,
            gguf_bytes: 0,
            object_bytes: 0,
            stored_bytes: 0,
            token_bytes: 0,
        }
    }

    fn count(&mut self, tensor: &PlannedTensor, layout: &Layout, is_base: bool) {
        let object_bytes = layout.len_bytes();
        self.n_objects += 1;
        self.object_bytes = self.object_bytes.saturating_add(object_bytes);
        let stored = object_bytes.next_multiple_of(OBJECT_ALIGN);
        self.stored_bytes = self.stored_bytes.saturating_add(stored);
        if is_base {
            self.gguf_bytes = self.gguf_bytes.saturating_add(tensor.gguf_bytes);
            let row_bytes = object_bytes / tensor.geometry.n_rows.max(1);
            let read = row_bytes.saturating_mul(tensor.rows_per_token);
            self.token_bytes = self.token_bytes.saturating_add(read);
        }
    }
}

/// What a plan costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// By quant type, then plane kind.
    pub rows: Vec<FigureRow>,
}

impl Figures {
    /// Sum of one column.
    pub fn total(&self, column: impl Fn(&FigureRow) -> u64) -> u64 {
        self.rows.iter().map(column).fold(0, u64::saturating_add)
    }
}
