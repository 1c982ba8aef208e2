//! The packer: GGUF in, `.mpk` out; the way back; and the verifier.
//!
//! The library opens no file and prints nothing: it reads and writes through [`ReadAt`] and
//! [`WriteAt`] and returns values. The binaries `minfer-pack`,
//! `minfer-unpack` and `minfer-verify` do the rest.

mod error;
mod finite;
mod input;
mod io;
mod pack;
mod parts;
mod pipeline;
mod plan;
mod planes;
pub mod show;
mod source;
mod template;
mod unpack;
pub mod verify;
mod vocab;

pub use error::{Class, Error, Result};
pub use input::{Input, part_of};
pub use io::{ReadAt, WriteAt};
pub use pack::Packer;
pub use parts::PartName;
pub use plan::{FigureRow, Figures, Plan, PlannedTensor};
pub use planes::PlaneSet;
pub use unpack::Unpacker;
