//! Hashes: of whole sections, and of objects leaf by leaf.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3;

use super::to_u64;

/// Bytes of a leaf: objects are hashed in pieces of this size, so that pieces can be hashed in
/// parallel and damage can be located.
pub const LEAF_BYTES: usize = 4 << 20;

/// sha256 of some bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// sha256 of one leaf: at most [`LEAF_BYTES`] bytes from a multiple of that inside the object.
pub fn hash_leaf(leaf: &[u8]) -> [u8; 32] {
    sha256(leaf)
}

/// A digest in lower-case hex.
pub fn hex(digest: &[u8]) -> String {
    let mut text = String::with_capacity(digest.len().saturating_mul(2));
    for byte in digest {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Number of leaves of an object.
pub(super) fn n_leaves(len_bytes: u64) -> u64 {
    len_bytes.div_ceil(to_u64(LEAF_BYTES))
}

/// The hashes of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectDigest {
    /// sha256 over the concatenated leaf digests.
    pub sha256: [u8; 32],
    /// xxh3 (64 bits, seed 0) of the object's bytes: the fast check.
    pub xxh3: u64,
    /// sha256 of each [`LEAF_BYTES`] of the object.
    pub leaves: Vec<[u8; 32]>,
}

impl ObjectDigest {
    /// Puts a digest together from leaves that were hashed elsewhere, e.g. in parallel.
    pub fn from_leaves(leaves: Vec<[u8; 32]>, xxh3: u64) -> Self {
        Self { sha256: tree_digest(&leaves), xxh3, leaves }
    }

    /// The hashes of an object in memory.
    pub fn of(object: &[u8]) -> Self {
        let mut hasher = ObjectHasher::new();
        hasher.update(object);
        hasher.finish()
    }
}

/// sha256 over concatenated leaf digests.
pub(super) fn tree_digest(leaves: &[[u8; 32]]) -> [u8; 32] {
    sha256(leaves.as_flattened())
}

/// sha256 of these bytes one after the other.
pub(super) fn sha256_of_parts(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// Hashes an object that arrives in pieces of any size.
#[derive(Clone)]
pub struct ObjectHasher {
    leaf: Sha256,
    leaf_filled: usize,
    leaves: Vec<[u8; 32]>,
    xxh3: Xxh3,
}

impl std::fmt::Debug for ObjectHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectHasher")
            .field("n_leaves", &self.leaves.len())
            .field("leaf_filled", &self.leaf_filled)
            .finish()
    }
}

impl Default for ObjectHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl ObjectHasher {
    /// Starts an object.
    pub fn new() -> Self {
        Self { leaf: Sha256::new(), leaf_filled: 0, leaves: Vec::new(), xxh3: Xxh3::new() }
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.xxh3.update(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = LEAF_BYTES.saturating_sub(self.leaf_filled);
            let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
            self.leaf.update(now);
            self.leaf_filled = self.leaf_filled.saturating_add(now.len());
            if self.leaf_filled == LEAF_BYTES {
                self.leaves.push(self.leaf.finalize_reset().into());
                self.leaf_filled = 0;
            }
            rest = later;
        }
    }

    /// Ends the object.
    pub fn finish(mut self) -> ObjectDigest {
        if self.leaf_filled > 0 {
            self.leaves.push(self.leaf.finalize().into());
        }
        ObjectDigest::from_leaves(self.leaves, self.xxh3.digest())
    }
}
