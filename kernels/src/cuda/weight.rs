//! A weight in device memory, with the kernels that read its type.

use format_spec::QuantType;
use format_spec::plane::{FieldName, Layout, PlaneKind};

use super::driver::Gpu;
use super::error::{CudaError, CudaResult};
use super::launch::Kernel;
use super::memory::Span;
use super::mmq::{self, MmqArgs, MmqKernel};

/// Block strides that the kernels were written with; the container's layout must agree.
fn block_stride(quant: QuantType) -> u64 {
    match quant {
        QuantType::F32 => 4,
        QuantType::F16 | QuantType::BF16 => 2,
        QuantType::Q4_0 => 18,
        QuantType::Q4_1 => 20,
        QuantType::Q5_0 => 22,
        QuantType::Q5_1 => 24,
        QuantType::Q8_0 => 34,
        QuantType::Q2_K => 84,
        QuantType::Q3_K => 112,
        QuantType::Q4_K => 144,
        QuantType::Q5_K => 176,
        QuantType::Q6_K => 224,
    }
}

/// A base object on the device and those of its planes that are there.
///
/// The memory is the caller's and outlives it: an arena that holds all objects of a container.
#[derive(Debug, Clone)]
pub struct DeviceWeight {
    quant: QuantType,
    n_rows: u32,
    row_len: u32,
    /// What a GEMV reads: the `planar` object where there is one, else the `padded` one.
    few: Place,
    /// What is dequantized and looked up: the base.
    base: Place,
    /// The base first.
    objects: Vec<(Layout, u64)>,
    kinds: Vec<PlaneKind>,
    pub(super) gemv: [Kernel; 2],
    pub(super) dequant: Kernel,
    pub(super) embed: Kernel,
}

impl DeviceWeight {
    /// A weight from its base object, whose bytes are at `base`, and its planes.
    ///
    /// # Errors
    /// [`CudaError::Weight`] if the base is of a kind or lies at strides that the kernels do not
    /// know, or has rows that are not made of 32 elements.
    ///
    /// # Panics
    /// If `base` has another length than the layout says.
    pub fn new(
        gpu: &Gpu,
        (layout, base): (&Layout, Span<'_, u8>),
        planes: &[(&Layout, Span<'_, u8>)],
    ) -> CudaResult<Self> {
        assert_eq!(base.len() as u64, layout.len_bytes(), "bytes of an object");
        let refuse = |why: String| CudaError::Weight(why);
        let quant = layout.quant();
        let geometry = layout.geometry();
        let mut objects = vec![(layout.clone(), base.address())];
        for (plane, bytes) in planes {
            assert_eq!(bytes.len() as u64, plane.len_bytes(), "bytes of a plane");
            if plane.geometry() != geometry || plane.quant() != quant {
                let kind = plane.kind().name();
                return Err(refuse(format!("plane `{kind}` belongs to another tensor")));
            }
            objects.push(((*plane).clone(), bytes.address()));
        }
        Self::bind(gpu, objects, Place::of)
    }

    /// A weight that is read by the descriptors of its base alone, whatever its kind: the slow twin of
    /// the kernels that were made for a kind.
    ///
    /// # Errors
    /// [`CudaError::Weight`] if the shape is none that kernels read.
    ///
    /// # Panics
    /// If `base` has another length than the layout says.
    pub fn by_descriptors(gpu: &Gpu, (layout, base): (&Layout, Span<'_, u8>)) -> CudaResult<Self> {
        assert_eq!(base.len() as u64, layout.len_bytes(), "bytes of an object");
        Self::bind(gpu, vec![(layout.clone(), base.address())], |(_, address)| {
            Ok(Place::any(*address))
        })
    }

    fn bind(
        gpu: &Gpu,
        objects: Vec<(Layout, u64)>,
        place: impl Fn(&(Layout, u64)) -> CudaResult<Place>,
    ) -> CudaResult<Self> {
        let refuse = |why: String| CudaError::Weight(why);
        let (quant, geometry) = (objects[0].0.quant(), objects[0].0.geometry());
        let count = |n: u64| u32::try_from(n).map_err(|_| refuse(format!("{n} is too large")));
        if !geometry.row_len.is_multiple_of(32) {
            let found = geometry.row_len;
            return Err(refuse(format!("row length: expected a multiple of 32, found {found}")));
        }
        let base = place(&objects[0])?;
        let planar = objects.iter().find(|(layout, _)| layout.kind() == PlaneKind::Planar);
        let few = planar.map_or(Ok(base), place)?;
        let find = |what: &str, place: Place, end: &str| match (place.any, place.planar) {
            (true, _) => gpu.kernel(&format!("{what}_any")),
            (_, true) => gpu.kernel(&format!("{what}_planar_{}{end}", quant.name())),
            _ => gpu.kernel(&format!("{what}_{}{end}", quant.name())),
        };
        Ok(Self {
            kinds: objects.iter().map(|(layout, _)| layout.kind()).collect(),
            objects,
            quant,
            n_rows: count(geometry.n_rows)?,
            row_len: count(geometry.row_len)?,
            few,
            base,
            gemv: [find("gemv", few, "_1")?, find("gemv", few, "_4")?],
            dequant: find("dequant", base, "")?,
            embed: find("embed", base, "")?,
        })
    }

    /// Type of the weights.
    pub fn quant(&self) -> QuantType {
        self.quant
    }

    /// Rows: outputs of the product.
    pub fn n_rows(&self) -> usize {
        self.n_rows as usize
    }

    /// Elements a row: inputs of the product.
    pub fn row_len(&self) -> usize {
        self.row_len as usize
    }

    /// Where the base lies on the device.
    pub fn address(&self) -> u64 {
        self.base.address
    }

    /// Kind of the object that products with few tokens read.
    pub fn few_kind(&self) -> PlaneKind {
        match (self.few.any, self.few.planar) {
            (true, _) => self.objects[0].0.kind(),
            (_, true) => PlaneKind::Planar,
            _ => PlaneKind::Padded,
        }
    }

    /// Whether it is read by descriptors, slowly, since no kernel was made for its base.
    pub fn is_read_by_descriptors(&self) -> bool {
        self.base.any
    }

    pub(super) fn base(&self) -> Place {
        self.base
    }

    pub(super) fn base_object(&self) -> &(Layout, u64) {
        &self.objects[0]
    }

    pub(super) fn few(&self) -> Place {
        self.few
    }

    /// The int8 product of many tokens that reads what is there, if there is one.
    pub fn mmq(&self, n_tokens: usize) -> Option<&'static MmqKernel> {
        let n_tokens = u32::try_from(n_tokens).unwrap_or(u32::MAX);
        mmq::choose_for(self.quant, &self.kinds, self.n_rows, n_tokens)
    }

    /// Where the object of this kind lies, if it is there.
    pub(super) fn address_of(&self, kind: PlaneKind) -> Option<u64> {
        self.object(kind).map(|(_, address)| *address)
    }

    fn object(&self, kind: PlaneKind) -> Option<&(Layout, u64)> {
        self.objects.iter().find(|(layout, _)| layout.kind() == kind)
    }

    /// Shape, strides and addresses of the weight for `kernel`.
    pub(super) fn mmq_args(&self, kernel: &MmqKernel) -> CudaResult<MmqArgs> {
        let (integers, scales) = kernel.objects.kinds();
        let refuse = |why: String| CudaError::Weight(format!("{}: {why}", kernel.name));
        let (Some((w_layout, w)), Some((p_layout, p))) =
            (self.object(integers), self.object(scales))
        else {
            return Err(refuse("what it reads is not on the device".to_owned()));
        };
        let args = MmqArgs::new(kernel, w_layout, p_layout).map_err(|e| refuse(e.to_string()))?;
        Ok(MmqArgs { w: *w, p: *p, ..args })
    }

    /// The `bf16` plane, if it is there: `[n_rows, row_len]` and the elements from row to row.
    pub fn bf16(&self) -> Option<(Span<'_, half::bf16>, usize)> {
        let (layout, address) = self.object(PlaneKind::Bf16)?;
        let stride = layout.field(FieldName::Value)?.row_group_stride / 2;
        let len = usize::try_from(layout.len_bytes() / 2).ok()?;
        Some((Span::at(*address, len), usize::try_from(stride).ok()?))
    }

    /// Address of the rows and bytes from row to row, if the weights are plain f32.
    pub fn f32_rows(&self) -> Option<(u64, u64)> {
        let plain = self.quant == QuantType::F32 && !self.base.planar && !self.base.any;
        plain.then_some((self.base.address, self.base.stride))
    }

    /// Bytes from row to row of the base (`planar`: from four rows to the next four).
    pub(super) fn row_stride(&self) -> u64 {
        self.base.stride
    }
}

/// An object that rows are read from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) address: u64,
    /// Bytes from row to row, or from four rows to the next four.
    pub(super) stride: u64,
    pub(super) planar: bool,
    /// Rows are found by the layout's descriptors.
    pub(super) any: bool,
}

impl Place {
    fn any(address: u64) -> Self {
        Self { address, stride: 0, planar: false, any: true }
    }

    fn of((layout, address): &(Layout, u64)) -> CudaResult<Self> {
        let refuse = |why: String| Err(CudaError::Weight(why));
        let quant = layout.quant();
        match layout.kind() {
            PlaneKind::Padded => {
                let stride = block_stride(quant);
                if layout.block_stride() != Some(stride) {
                    let found = layout.block_stride();
                    return refuse(format!("block stride: expected {stride}, found {found:?}"));
                }
                let stride = layout.row_stride().unwrap_or(0);
                Ok(Self { address: *address, stride, planar: false, any: false })
            }
            PlaneKind::Planar => {
                check_planar(layout)?;
                let stride = layout.unit_bytes();
                Ok(Self { address: *address, stride, planar: true, any: false })
            }
            kind if kind.is_base() => Ok(Self::any(*address)),
            kind => refuse(format!("plane `{}` is no base", kind.name())),
        }
    }
}

/// Compares a `planar` layout with what `gemv/planar.cu` was written for: four rows a unit, its
/// planes one after the other.
fn check_planar(layout: &Layout) -> CudaResult<()> {
    let n_chunks = layout.geometry().row_len / 32;
    let (quants, high, factors, second) = match layout.quant() {
        QuantType::Q4_K => (16, 0, Some(2), FieldName::Min),
        QuantType::Q5_K => (16, 4, Some(2), FieldName::Min),
        QuantType::Q6_K => (16, 8, Some(2), FieldName::Scale),
        _ => (32, 0, None, FieldName::D),
    };
    let scales = factors.map_or(0, |_| 2);
    let starts = [
        (FieldName::Quant, 0),
        (FieldName::High, quants),
        (FieldName::Scale, quants + high),
        (FieldName::D, quants + high + scales),
    ];
    let as_expected = starts.iter().all(|&(name, bytes)| {
        layout.field(name).is_none_or(|field| {
            field.base == 4 * n_chunks * bytes && field.row_group_stride == layout.unit_bytes()
        })
    });
    if as_expected && layout.field(second).is_some() && layout.rows_per_unit() == Some(4) {
        return Ok(());
    }
    Err(CudaError::Weight("planar: its planes do not lie where the kernels look".to_owned()))
}
