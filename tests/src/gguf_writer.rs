//! A GGUF writer for tests: well-formed files by default, malformed ones by override.
//!
//! It shares no code with the reader, so that the two check each other.

use format_spec::QuantType;

/// Builds the bytes of a GGUF file.
///
/// ```
/// use format_spec::{Gguf, QuantType};
/// use tests::gguf_writer::GgufBuilder;
///
/// let bytes = GgufBuilder::new()
///     .kv_str("general.architecture", "llama")
///     .kv_u32("llama.block_count", 2)
///     .tensor("output_norm.weight", &[4], QuantType::F32, &[0; 16])
///     .build();
/// assert_eq!(Gguf::parse(&bytes).unwrap().tensors().len(), 1);
/// ```
#[derive(Debug, Clone)]
pub struct GgufBuilder {
    magic: [u8; 4],
    version: u32,
    n_tensors: Option<u64>,
    n_kv: Option<u64>,
    kvs: Vec<RawKv>,
    tensors: Vec<RawTensor>,
    layout_align: Option<u64>,
    pad_byte: u8,
    pad_last: bool,
    trailing: Vec<u8>,
}

/// A key-value pair as written.
#[derive(Debug, Clone)]
pub struct RawKv {
    /// Key, written with its length.
    pub key: Vec<u8>,
    /// GGUF value type.
    pub type_id: u32,
    /// Value, written as it is.
    pub value: Vec<u8>,
}

/// A tensor as written.
#[derive(Debug, Clone)]
pub struct RawTensor {
    /// Name, written with its length.
    pub name: Vec<u8>,
    /// Dimensions, innermost first.
    pub dims: Vec<u64>,
    /// ggml type.
    pub type_id: u32,
    /// Offset in the data section; by default where the padded tensor before it ends.
    pub offset: Option<u64>,
    /// Data, written as it is.
    pub data: Vec<u8>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! kv_numbers {
    ($($one:ident $many:ident $ty:ty = $id:literal;)*) => {
        $(
            #[doc = concat!("Adds a ", stringify!($ty), ".")]
            #[must_use]
            pub fn $one(self, key: &str, value: $ty) -> Self {
                self.kv_raw(key, $id, &value.to_le_bytes())
            }

            #[doc = concat!("Adds an array of ", stringify!($ty), ".")]
            #[must_use]
            pub fn $many(self, key: &str, values: &[$ty]) -> Self {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                self.kv_array_raw(key, $id, values.len() as u64, &bytes)
            }
        )*
    };
}

impl GgufBuilder {
    /// An empty file of version 3.
    pub fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            n_tensors: None,
            n_kv: None,
            kvs: Vec::new(),
            tensors: Vec::new(),
            layout_align: None,
            pad_byte: 0,
            pad_last: true,
            trailing: Vec::new(),
        }
    }

    kv_numbers! {
        kv_u8 kv_u8s u8 = 0;
        kv_i8 kv_i8s i8 = 1;
        kv_u16 kv_u16s u16 = 2;
        kv_i16 kv_i16s i16 = 3;
        kv_u32 kv_u32s u32 = 4;
        kv_i32 kv_i32s i32 = 5;
        kv_f32 kv_f32s f32 = 6;
        kv_u64 kv_u64s u64 = 10;
        kv_i64 kv_i64s i64 = 11;
        kv_f64 kv_f64s f64 = 12;
    }

    /// Adds a bool.
    #[must_use]
    pub fn kv_bool(self, key: &str, value: bool) -> Self {
        self.kv_raw(key, 7, &[value.into()])
    }

    /// Adds an array of bools.
    #[must_use]
    pub fn kv_bools(self, key: &str, values: &[bool]) -> Self {
        let bytes: Vec<u8> = values.iter().map(|&v| v.into()).collect();
        self.kv_array_raw(key, 7, values.len() as u64, &bytes)
    }

    /// Adds a string (any bytes).
    #[must_use]
    pub fn kv_str(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.kv_raw(key, 8, &string(value.as_ref()))
    }

    /// Adds an array of strings (any bytes).
    #[must_use]
    pub fn kv_strs<S: AsRef<[u8]>>(self, key: &str, values: &[S]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| string(v.as_ref())).collect();
        self.kv_array_raw(key, 8, values.len() as u64, &bytes)
    }

    /// Adds an array whose element type and count need not agree with its bytes.
    #[must_use]
    pub fn kv_array_raw(self, key: &str, elem_type_id: u32, count: u64, elems: &[u8]) -> Self {
        let mut value = elem_type_id.to_le_bytes().to_vec();
        value.extend(count.to_le_bytes());
        value.extend(elems);
        self.kv_raw(key, 9, &value)
    }

    /// Adds a pair of which nothing is checked.
    #[must_use]
    pub fn kv_raw(mut self, key: impl AsRef<[u8]>, type_id: u32, value: &[u8]) -> Self {
        self.kvs.push(RawKv { key: key.as_ref().to_vec(), type_id, value: value.to_vec() });
        self
    }

    /// Adds a tensor.
    ///
    /// # Panics
    /// If `data` is not as long as type and dimensions say.
    #[must_use]
    pub fn tensor(self, name: &str, dims: &[u64], quant: QuantType, data: &[u8]) -> Self {
        let n_elems: u64 = dims.iter().product();
        let n_bytes = n_elems / quant.block_elems() as u64 * quant.block_bytes() as u64;
        assert_eq!(data.len() as u64, n_bytes, "bytes of {name} {} {dims:?}", quant.name());
        self.tensor_raw(name, dims, quant.ggml_id(), None, data)
    }

    /// Adds a tensor of which nothing is checked.
    #[must_use]
    pub fn tensor_raw(
        mut self,
        name: impl AsRef<[u8]>,
        dims: &[u64],
        type_id: u32,
        offset: Option<u64>,
        data: &[u8],
    ) -> Self {
        let name = name.as_ref().to_vec();
        let (dims, data) = (dims.to_vec(), data.to_vec());
        self.tensors.push(RawTensor { name, dims, type_id, offset, data });
        self
    }

    /// Writes another magic.
    #[must_use]
    pub fn magic(mut self, magic: [u8; 4]) -> Self {
        self.magic = magic;
        self
    }

    /// Writes another version.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Writes another number of tensors than there are.
    #[must_use]
    pub fn n_tensors(mut self, n: u64) -> Self {
        self.n_tensors = Some(n);
        self
    }

    /// Writes another number of pairs than there are.
    #[must_use]
    pub fn n_kv(mut self, n: u64) -> Self {
        self.n_kv = Some(n);
        self
    }

    /// Adds `general.alignment` and aligns the data by it.
    #[must_use]
    pub fn alignment(self, alignment: u32) -> Self {
        self.kv_u32("general.alignment", alignment).layout_alignment(alignment.into())
    }

    /// Aligns the data to `alignment` whatever the file says.
    #[must_use]
    pub fn layout_alignment(mut self, alignment: u64) -> Self {
        self.layout_align = Some(alignment);
        self
    }

    /// Fills alignment padding with this byte instead of 0.
    #[must_use]
    pub fn pad_byte(mut self, byte: u8) -> Self {
        self.pad_byte = byte;
        self
    }

    /// Leaves out the padding behind the last tensor.
    #[must_use]
    pub fn no_final_padding(mut self) -> Self {
        self.pad_last = false;
        self
    }

    /// Appends bytes that belong to nothing.
    #[must_use]
    pub fn trailing(mut self, bytes: &[u8]) -> Self {
        self.trailing = bytes.to_vec();
        self
    }

    /// The pairs, to change them.
    pub fn kvs_mut(&mut self) -> &mut Vec<RawKv> {
        &mut self.kvs
    }

    /// The tensors, to change them.
    pub fn tensors_mut(&mut self) -> &mut Vec<RawTensor> {
        &mut self.tensors
    }

    /// Removes a pair.
    ///
    /// # Panics
    /// If there is none of this key.
    #[must_use]
    pub fn without_kv(mut self, key: &str) -> Self {
        let n_before = self.kvs.len();
        self.kvs.retain(|kv| kv.key != key.as_bytes());
        assert!(self.kvs.len() < n_before, "no key {key}");
        self
    }

    /// Removes a tensor.
    ///
    /// # Panics
    /// If there is none of this name.
    #[must_use]
    pub fn without_tensor(mut self, name: &str) -> Self {
        let n_before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.name != name.as_bytes());
        assert!(self.tensors.len() < n_before, "no tensor {name}");
        self
    }

    /// The bytes of the file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = self.build_header();
        self.pad(&mut out);
        for (i, tensor) in self.tensors.iter().enumerate() {
            out.extend(&tensor.data);
            if i + 1 < self.tensors.len() || self.pad_last {
                self.pad(&mut out);
            }
        }
        out.extend(&self.trailing);
        out
    }

    /// The bytes from the magic to the end of the tensor infos.
    pub fn build_header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_kv.unwrap_or(self.kvs.len() as u64).to_le_bytes());
        for kv in &self.kvs {
            out.extend(string(&kv.key));
            out.extend(kv.type_id.to_le_bytes());
            out.extend(&kv.value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset = (offset + tensor.data.len() as u64).next_multiple_of(self.align());
        }
        out
    }

    fn align(&self) -> u64 {
        self.layout_align.unwrap_or(32)
    }

    fn pad(&self, out: &mut Vec<u8>) {
        let end = (out.len() as u64).next_multiple_of(self.align());
        out.resize(end as usize, self.pad_byte);
    }
}

/// A string as GGUF writes it.
fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u64).to_le_bytes().to_vec();
    out.extend(bytes);
    out
}
