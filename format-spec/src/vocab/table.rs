//! The hash table's rules: hash, slot packing, probing. Builder and view share them.

use xxhash_rust::xxh3::xxh3_64;

/// Hash of a string.
pub(crate) fn hash_text(text: &[u8]) -> u64 {
    xxh3_64(text)
}

/// Hash of a pair of symbols.
pub(crate) fn hash_pair(left: u32, right: u32) -> u64 {
    // A finaliser in the style of MurmurHash3: the pair is short and looked up very often.
    let mut hash = (u64::from(left) << 32) | u64::from(right);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// How the slots of a table over `n_entries` entries are packed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packing {
    /// Bits of index + 1.
    index_bits: u32,
}

impl Packing {
    pub(crate) fn new(n_entries: u32) -> Self {
        Self { index_bits: u32::BITS - n_entries.leading_zeros() }
    }

    /// Slots for `n_entries` entries: a power of two with at least a third of them empty.
    pub(crate) fn n_slots(n_entries: u32) -> usize {
        let wanted = u64::from(n_entries) + u64::from(n_entries) / 2 + 1;
        usize::try_from(wanted.next_power_of_two()).unwrap_or(usize::MAX)
    }

    fn tag(self, hash: u64) -> u32 {
        // The low bits choose the slot, the high bits become the tag.
        let tag = (hash >> 32) as u32;
        if self.index_bits >= u32::BITS { 0 } else { tag >> self.index_bits << self.index_bits }
    }

    fn pack(self, hash: u64, index: u32) -> u32 {
        self.tag(hash) | (index + 1)
    }

    /// The index in `slot`, whatever its tag.
    pub(crate) fn index(self, slot: u32) -> Option<u32> {
        let mask = 1u64.checked_shl(self.index_bits).unwrap_or(0).wrapping_sub(1) as u32;
        (slot & mask).checked_sub(1)
    }

    /// The index in `slot` if its tag is that of `hash`.
    fn matching(self, hash: u64, slot: u32) -> Option<u32> {
        let index = self.index(slot)?;
        (slot == self.pack(hash, index)).then_some(index)
    }
}

/// Looks for the entry with `hash` for which `is_it` holds. `slot_at(i)` reads slot `i`.
///
/// Ends after one round at the latest, also in a hostile table without an empty slot.
pub(crate) fn find(
    packing: Packing,
    n_slots: usize,
    hash: u64,
    slot_at: impl Fn(usize) -> u32,
    mut is_it: impl FnMut(u32) -> bool,
) -> Option<u32> {
    let mask = n_slots.wrapping_sub(1);
    let start = hash as usize & mask;
    for step in 0..n_slots {
        let slot = slot_at((start + step) & mask);
        if slot == 0 {
            return None;
        }
        if let Some(index) = packing.matching(hash, slot)
            && is_it(index)
        {
            return Some(index);
        }
    }
    None
}

/// Enters `index` under `hash` into a table that has room for it.
pub(crate) fn insert(packing: Packing, slots: &mut [u32], hash: u64, index: u32) {
    let mask = slots.len().wrapping_sub(1);
    let start = hash as usize & mask;
    for step in 0..slots.len() {
        let slot = &mut slots[(start + step) & mask];
        if *slot == 0 {
            *slot = packing.pack(hash, index);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_is_found_and_nothing_else() {
        for n_entries in [1u32, 2, 3, 255, 256, 257, 1000] {
            let packing = Packing::new(n_entries);
            let mut slots = vec![0; Packing::n_slots(n_entries)];
            for index in 0..n_entries {
                insert(packing, &mut slots, hash_pair(index, 7), index);
            }
            let look = |left: u32| {
                find(packing, slots.len(), hash_pair(left, 7), |i| slots[i], |index| index == left)
            };
            for index in 0..n_entries {
                assert_eq!(look(index), Some(index));
            }
            assert_eq!(look(n_entries), None);
            assert!(slots.contains(&0));
        }
    }

    #[test]
    fn hashes_are_fixed() {
        // XXH3 64 of the empty string with seed 0, from its specification's test vectors.
        assert_eq!(hash_text(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(hash_pair(0, 0), 0);
    }
}
