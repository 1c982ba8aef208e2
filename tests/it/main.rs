//! The one cross-crate test binary.
