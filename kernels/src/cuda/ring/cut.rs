//! How the ring's kernels cut rows into steps, and what a block keeps in shared memory.

use super::super::ops::u32_of;
use super::super::weight::DeviceWeight;

/// Warps that multiply.
pub(super) const N_WARPS: usize = 16;
/// Elements that a warp takes at once: a super-block.
const ITEM: usize = 256;
/// Rows of a unit.
pub(super) const UNIT_ROWS: usize = 4;
/// Units whose sums are put together at once: 32 rows.
const GROUP: u32 = 8;

/// How rows are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Segments of a row, and super-blocks of one.
    pub(super) n_segments: u32,
    pub(super) segment: u32,
    /// Groups of `segment` warps.
    pub(super) n_teams: u32,
    /// Units of one matrix that share a step.
    pub(super) units_per_step: u32,
}

impl Cut {
    pub(super) fn of(row_len: usize, is_pair: bool) -> Self {
        let n = row_len.div_ceil(ITEM);
        if n <= N_WARPS {
            let mut n_teams = u32_of(N_WARPS / n);
            if is_pair {
                // Steps make up groups of eight units.
                n_teams = (1 << n_teams.ilog2()).min(GROUP / 2);
            }
            let units_per_step = 2 * n_teams;
            return Self { n_segments: 1, segment: u32_of(n), n_teams, units_per_step };
        }
        // Even, so that the factors of q6_K begin at multiples of 16 bytes.
        let segment = n.div_ceil(n.div_ceil(N_WARPS)).next_multiple_of(2);
        let n_segments = u32_of(n.div_ceil(segment));
        let units_per_step = if is_pair { 1 } else { 2 };
        Self { n_segments, segment: u32_of(segment), n_teams: 1, units_per_step }
    }

    /// Units in a slot, those of both matrices of a pair counted.
    pub(super) fn units_in_slot(self) -> u32 {
        2 * self.n_teams
    }

    /// A warp's number times this is its team's, in the upper half: a kernel divides slowly.
    pub(super) fn team_of_warp(self) -> u32 {
        (1u32 << 16).div_ceil(self.segment)
    }

    /// Units of a group: whole steps.
    pub(super) fn group(self) -> u32 {
        self.units_per_step * (GROUP / self.units_per_step).max(1)
    }

    /// Floats of a group's sums: of each unit those of all warps, four rows, and a gap.
    pub(super) fn part_floats(self, is_pair: bool) -> u32 {
        (if is_pair { 2 } else { 1 }) * self.group() * (4 * self.segment + 4)
    }
}

/// Bytes of a unit in a slot, at most.
pub(super) fn unit_pitch(weight: &DeviceWeight, cut: Cut) -> u32 {
    let whole = unit_bytes(weight);
    // Planes and rows of a segment are the same share of the unit; each rounds up to 16 bytes.
    let share = (whole * cut.segment as usize * ITEM).div_ceil(weight.row_len());
    // Even segments of super-blocks are multiples of 16 as they are.
    let rounding = if weight.quant().block_elems() == ITEM { 0 } else { 4 * 16 };
    let bytes = if cut.n_segments == 1 { whole } else { share + rounding };
    u32_of(bytes.next_multiple_of(16))
}

/// Bytes from four rows to the next four.
pub(super) fn unit_bytes(weight: &DeviceWeight) -> usize {
    let few = weight.few();
    let rows = if few.planar { 1 } else { UNIT_ROWS };
    usize::try_from(few.stride).unwrap_or(usize::MAX).saturating_mul(rows)
}

/// How the units of all matrices are dealt to blocks: as `Groups` in `gemv/ring_feed.cuh` has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    pub(super) n_blocks: u32,
    /// Of a block; the first `n_longer` have one more.
    pub(super) n_local: u32,
    pub(super) n_longer: u32,
}

impl Shares {
    /// Of any block, at most: steps, and bytes if each has a slot. `matrices`: units of each, and bytes of a slot
    /// with its units; a step has units of one of them.
    pub(super) fn most_steps_and_bytes(self, matrices: &[(u32, u32)], per_step: u32) -> (u32, u32) {
        let (mut most_steps, mut most_bytes) = (0, 0);
        for block in 0..self.n_blocks {
            let mut at = block * self.n_local + block.min(self.n_longer);
            let mut n_left = self.n_local + u32::from(block < self.n_longer);
            let (mut n_steps, mut n_bytes) = (0, 0);
            for &(n_units, slot_bytes) in matrices {
                let here = n_left.min(n_units.saturating_sub(at));
                n_left -= here;
                at = at.saturating_sub(n_units);
                n_steps += here.div_ceil(per_step);
                n_bytes += here.div_ceil(per_step) * slot_bytes;
            }
            most_steps = most_steps.max(n_steps);
            most_bytes = most_bytes.max(n_bytes);
        }
        (most_steps, most_bytes)
    }
}

/// Which activations a block keeps.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kept {
    /// All of a row: so many.
    Row(u32),
    /// Each warp its super-block of a segment: `Brought` in `gemv/ring_source.cuh`.
    Segment,
    /// None: warps have theirs in registers.
    Nothing,
}

impl Kept {
    /// 256 integers and eight scales with what lies beside them.
    const BYTES_OF_WARP: u32 = 256 + 8 * 8;

    /// What is there in int8 is taken from memory where it is used.
    pub(super) fn of(row_len: u32, n_segments: u32, is_int8: bool) -> Self {
        match (is_int8, n_segments) {
            (false, _) => Self::Row(row_len),
            (true, 1) => Self::Nothing,
            (true, _) => Self::Segment,
        }
    }
}

/// Where a block's shared memory has what. In front lie barriers, the sums of the norm and the integers of the
/// activations, at places that the kernel knows (`RingMemory` in `gemv/ring_source.cuh`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared {
    pub(super) scales_at: u32,
    pub(super) sums_at: u32,
    pub(super) parts_at: u32,
    pub(super) addends_at: u32,
    pub(super) slots_at: u32,
}

impl Shared {
    /// Where the integers are: `RingMemory::INTEGERS`.
    const INTEGERS: u32 = 384;

    /// For sums of `part_floats` floats in all.
    pub(super) fn of(kept: Kept, part_floats: u32, n_addends: u32) -> Self {
        let (n_integers, n_chunks) = match kept {
            Kept::Row(row_len) => (row_len, row_len / 32),
            Kept::Segment => (u32_of(N_WARPS) * Kept::BYTES_OF_WARP, 0),
            Kept::Nothing => (0, 0),
        };
        let scales_at = Self::INTEGERS + n_integers;
        let sums_at = scales_at + 4 * n_chunks;
        let parts_at = sums_at + 4 * 2 * n_chunks;
        let addends_at = parts_at + 4 * part_floats;
        let slots_at = (addends_at + 4 * n_addends).next_multiple_of(128);
        Self { scales_at, sums_at, parts_at, addends_at, slots_at }
    }

    /// All of it.
    pub(super) fn bytes(self, n_slots: u32, slot_bytes: u32) -> u32 {
        self.slots_at.saturating_add(n_slots.saturating_mul(slot_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_so_that_warps_have_work() {
        let cut = |row_len| {
            let Cut { n_segments, segment, n_teams, units_per_step } = Cut::of(row_len, false);
            (n_segments, segment, n_teams, units_per_step)
        };
        assert_eq!(cut(3584), (1, 14, 1, 2));
        assert_eq!(cut(4096), (1, 16, 1, 2));
        assert_eq!(cut(1536), (1, 6, 2, 4));
        assert_eq!(cut(576), (1, 3, 5, 10));
        assert_eq!(cut(18944), (5, 16, 1, 2));
        assert_eq!(cut(8960), (3, 12, 1, 2));
        for row_len in (32..40_000).step_by(32) {
            let (n_segments, segment, n_teams, _) = cut(row_len);
            let n = u32_of(row_len.div_ceil(ITEM));
            assert!(n_segments * segment >= n && (n_segments - 1) * segment < n, "{row_len}");
            assert!(n_teams * segment <= u32_of(N_WARPS), "{row_len}");
            for warp in 0..u32_of(N_WARPS) {
                let team = (warp * Cut::of(row_len, false).team_of_warp()) >> 16;
                assert_eq!(team, warp / segment, "{row_len}");
            }
        }
    }

    #[test]
    fn steps_of_the_block_with_the_most_are_counted() {
        // Queries, keys and values of a model of 7B on 132 multiprocessors, the last of q6_K: nine units of the first,
        // or eight of the last.
        let shares = Shares { n_blocks: 132, n_local: 8, n_longer: 96 };
        let matrices = [(896, 100), (128, 100), (128, 140)];
        assert_eq!(shares.most_steps_and_bytes(&matrices, 2), (5, 560));
        // One block has all of it, and rows of a matrix do not share a step with those of the next.
        let alone = Shares { n_blocks: 1, n_local: 9, n_longer: 0 };
        assert_eq!(alone.most_steps_and_bytes(&[(3, 10), (1, 20), (5, 30)], 2), (6, 130));
        // Nobody counts what is another block's.
        let two = Shares { n_blocks: 2, n_local: 4, n_longer: 1 };
        assert_eq!(two.most_steps_and_bytes(&[(5, 10), (4, 20), (0, 0)], 2), (3, 40));
    }
}
