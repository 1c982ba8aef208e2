//! The operations beside matrix products.
