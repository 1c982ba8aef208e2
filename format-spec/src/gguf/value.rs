//! Values of GGUF metadata. Strings and arrays are views of the file's bytes.

use std::fmt;

use super::cursor::{Cursor, to_u64};
use crate::{Error, Result};

/// Type of a metadata value or of an array's elements. Discriminants are GGUF's ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// Every type, in order of id.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Str,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this GGUF id.
    pub fn from_id(id: u32) -> Option<Self> {
        usize::try_from(id).ok().and_then(|i| Self::ALL.get(i).copied())
    }

    /// Short name, e.g. `u32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Str => "str",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one value; `None` for strings and arrays, whose length varies.
    pub fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Str | Self::Array => None,
        }
    }
}

/// One metadata value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    /// Any byte but 0 is true.
    Bool(bool),
    /// As stored; not necessarily UTF-8 (tokens may hold half a character).
    Str(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// Type of this value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value of any integer type; `None` for the other types.
    pub fn as_int(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    /// The value of either float type, as f32; `None` for the other types.
    #[allow(clippy::as_conversions)] // There is no other way from f64 to f32; it rounds and saturates to infinity.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(v) => Some(v),
            Self::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// The bytes of a string; `None` for the other types.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Str(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The array; `None` for the other types.
    pub fn as_array(&self) -> Option<Array<'a>> {
        match *self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// Reads a value of type `ty`, which is not an array when `in_array`.
    pub(super) fn read(
        cursor: &mut Cursor<'a>,
        ty: ValueType,
        what: fmt::Arguments<'_>,
    ) -> Result<Self> {
        Ok(match ty {
            ValueType::U8 => Self::U8(u8::from_le_bytes(cursor.array(what)?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(cursor.array(what)?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(cursor.array(what)?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(cursor.array(what)?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(cursor.array(what)?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(cursor.array(what)?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(cursor.array(what)?)),
            ValueType::Bool => Self::Bool(cursor.array(what)? != [0u8]),
            ValueType::Str => Self::Str(cursor.string(what)?),
            ValueType::Array => Self::Array(Array::read(cursor, what)?),
            ValueType::U64 => Self::U64(u64::from_le_bytes(cursor.array(what)?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(cursor.array(what)?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(cursor.array(what)?)),
        })
    }
}

/// For error messages: type and, if short, the value.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Str(bytes) if bytes.len() <= 64 => write!(f, "str {:?}", Lossy(bytes)),
            Self::Str(bytes) => write!(f, "str of {} bytes", bytes.len()),
            Self::Array(array) => write!(f, "{array}"),
            Self::Bool(v) => write!(f, "bool {v}"),
            Self::F32(v) => write!(f, "f32 {v}"),
            Self::F64(v) => write!(f, "f64 {v}"),
            other => write!(f, "{} {}", self.value_type().name(), other.as_int().unwrap_or(0)),
        }
    }
}

/// Untrusted bytes shown in quotes, control characters escaped.
pub(super) struct Lossy<'a>(pub(super) &'a [u8]);

impl fmt::Debug for Lossy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self.0), f)
    }
}

/// An array of scalars or strings, decoded while it is iterated.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    elem_type: ValueType,
    n_elems: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Type of the elements, never [`ValueType::Array`].
    pub fn elem_type(&self) -> ValueType {
        self.elem_type
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.n_elems
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.n_elems == 0
    }

    /// The elements as stored, strings with their u64 lengths.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements in order.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter {
            elem_type: self.elem_type,
            n_left: self.n_elems,
            cursor: Cursor::new(self.bytes),
        }
    }

    /// The elements of an array of strings; `None` if they are of another type.
    pub fn iter_str(&self) -> Option<impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a>> {
        let is_str = self.elem_type == ValueType::Str;
        is_str.then(|| self.iter().map(|v| v.as_bytes().unwrap_or_default()))
    }

    /// The elements of an array of any integer type; `None` if they are of another type.
    pub fn iter_int(&self) -> Option<impl ExactSizeIterator<Item = i128> + Clone + use<'a>> {
        let is_int = !matches!(
            self.elem_type,
            ValueType::F32 | ValueType::F64 | ValueType::Bool | ValueType::Str | ValueType::Array
        );
        is_int.then(|| self.iter().map(|v| v.as_int().unwrap_or_default()))
    }

    /// The elements of an array of f32 or f64, as f32; `None` if they are of another type.
    pub fn iter_f32(&self) -> Option<impl ExactSizeIterator<Item = f32> + Clone + use<'a>> {
        let is_float = matches!(self.elem_type, ValueType::F32 | ValueType::F64);
        is_float.then(|| self.iter().map(|v| v.as_f32().unwrap_or_default()))
    }

    /// The elements of an array of bools; `None` if they are of another type.
    pub fn iter_bool(&self) -> Option<impl ExactSizeIterator<Item = bool> + Clone + use<'a>> {
        let is_bool = self.elem_type == ValueType::Bool;
        is_bool.then(|| self.iter().map(|v| v == Value::Bool(true)))
    }

    /// Reads an array header and finds its end; the elements are not kept.
    fn read(cursor: &mut Cursor<'a>, what: fmt::Arguments<'_>) -> Result<Self> {
        let type_offset = cursor.offset();
        let id = cursor.u32(format_args!("element type of {what}"))?;
        let elem_type = ValueType::from_id(id).filter(|&ty| ty != ValueType::Array);
        let Some(elem_type) = elem_type else {
            let found = match ValueType::from_id(id) {
                Some(ty) => format!("{id} ({}: arrays do not nest)", ty.name()),
                None => id.to_string(),
            };
            return Err(Error::Field {
                field: format!("element type of {what}"),
                offset: type_offset,
                expected: "a value type 0..=8 or 10..=12".into(),
                found,
            });
        };
        let count_offset = cursor.offset();
        let count = cursor.u64(format_args!("element count of {what}"))?;
        // A string takes at least its length.
        let min_bytes = to_u64(elem_type.fixed_bytes().unwrap_or(size_of::<u64>()));
        let n_bytes = count.checked_mul(min_bytes).filter(|&n| n <= cursor.remaining());
        let (Some(n_bytes), Ok(n_elems)) = (n_bytes, usize::try_from(count)) else {
            return Err(Error::Field {
                field: format!("element count of {what}"),
                offset: count_offset,
                expected: format!(
                    "at most {} (all that the remaining {} bytes can hold)",
                    cursor.remaining().checked_div(min_bytes).unwrap_or(0),
                    cursor.remaining()
                ),
                found: count.to_string(),
            });
        };
        let mut start = cursor.clone();
        if elem_type == ValueType::Str {
            for i in 0..n_elems {
                cursor.string(format_args!("element {i} of {what}"))?;
            }
        } else {
            cursor.take(n_bytes, what)?;
        }
        let n_bytes = cursor.offset().saturating_sub(start.offset());
        Ok(Self { elem_type, n_elems, bytes: start.take(n_bytes, what)? })
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "array of {} {}", self.n_elems, self.elem_type.name())
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.elem_type.name(), self.n_elems)
    }
}

/// Iterator over the elements of an [`Array`].
#[derive(Debug, Clone)]
pub struct ArrayIter<'a> {
    elem_type: ValueType,
    n_left: usize,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.n_left = self.n_left.checked_sub(1)?;
        // `Array::read` walked these bytes, so this cannot fail.
        Value::read(&mut self.cursor, self.elem_type, format_args!("array element")).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.n_left, Some(self.n_left))
    }
}

impl ExactSizeIterator for ArrayIter<'_> {}
