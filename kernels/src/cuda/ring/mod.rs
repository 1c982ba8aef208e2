//! Products of one token with weights that come through a ring in shared memory: the fast twin of
//! [`Gpu::gemv`] on Hopper. `kernels/cuda/gemv/ring.cu` says how it works.

mod cut;
mod names;

use std::ffi::c_void;

use super::driver::Gpu;
use super::error::CudaResult;
use super::launch::Shape;
use super::memory::Span;
use super::ops::{Gate, OperandRef, RawOperand, address, params, u32_of};
use super::products::GemvOut;
use super::weight::DeviceWeight;
use cut::{Cut, Kept, N_WARPS, Shared, Shares, UNIT_ROWS, unit_bytes, unit_pitch};
use names::{kernel_name, quant_of, types_of};

/// Threads of the warps that multiply, and of the two that feed the ring and write rows.
const N_THREADS: u32 = 32 * (N_WARPS as u32 + 2);
/// Shared memory of every block, used or not: two fit a multiprocessor, and never more. So a kernel's
/// blocks take the places of those of the kernel before the last, one on each multiprocessor; where
/// more fit, several of one kernel come to sit where room is first, and others wait for them.
const SHARED_BYTES: u32 = 112 << 10;
/// The same of blocks whose activations are there in int8: one of these fits beside one of the others or of
/// attention by clusters, but two of these never fit one multiprocessor. So they come to
/// lie one on each even where the kernel before has no blocks any more, as attention leaves most
/// multiprocessors. Two sizes can do no more: where norms are made in the ring, a kernel that makes one comes
/// between two of these, and all of their blocks are there when it is let in. (With norms apart every launch
/// is one of these, and rings begin when the launch before has ended.)
pub(super) const SHARED_BYTES_OF_INT8: u32 = 115_840;
/// Shared memory of a multiprocessor of compute capability 9.0, and what each block takes of it for itself.
pub(super) const MULTIPROCESSOR_BYTES: u32 = 228 << 10;
pub(super) const RESERVED_BYTES: u32 = 1 << 10;
const _: () = {
    assert!(SHARED_BYTES + SHARED_BYTES_OF_INT8 + 2 * RESERVED_BYTES <= MULTIPROCESSOR_BYTES);
    assert!(2 * (SHARED_BYTES_OF_INT8 + RESERVED_BYTES) > MULTIPROCESSOR_BYTES);
    assert!(SHARED_BYTES_OF_INT8.is_multiple_of(128) && SHARED_BYTES_OF_INT8 > SHARED_BYTES);
};
/// Bytes of a block that are asked for and not there: what memory keeps busy. More only waits in it (112 KiB
/// took 5 % longer over gate and up).
const FLYING_BYTES: u32 = 40 << 10;
/// The same while a ring fills for the first time: what the launch before still needs comes first.
const FILLING_BYTES: u32 = 30 << 10;
/// Steps of a block that are left when it lets the next kernel in, at most.
const MAX_STEPS_LEFT: u32 = 6;
/// Slots of a ring, at most: as `MAX_SLOTS` in `gemv/ring_job.cuh`.
const MAX_SLOTS: u32 = 16;
/// Matrices of a launch.
const MAX_MATRICES: usize = 3;
/// Rows of a block that may have something to be added to.
const MAX_ADDENDS: u32 = 512;

/// What the product's activations are made of.
#[derive(Debug, Clone, Copy)]
pub enum RingSource<'b> {
    /// They are there in int8.
    Operand(OperandRef<'b>),
    /// `rms_norm(x) * gain`; each block makes them.
    Norm {
        /// `[row_len]`.
        x: Span<'b, f32>,
        /// `[row_len]`.
        gain: Span<'b, f32>,
        /// Of the norm.
        eps: f32,
    },
}

/// Where `activation(outs[0]) * outs[1]` goes instead of the products.
#[derive(Debug, Clone, Copy)]
pub struct RingGate<'b> {
    /// In f32 and int8.
    pub out: OperandRef<'b>,
    /// A counter for each 32 rows: zero before and after.
    pub n_done: Span<'b, u32>,
    /// What bends the gate.
    pub kind: Gate,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawRingMatrix {
    w: u64,
    y: u64,
    bias: u64,
    unit_bytes: u32,
    n_rows: u32,
    n_units: u32,
    slot_bytes: u32,
    quant: u32,
    add: u32,
}

/// As `RingJob` in `gemv/ring_job.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawRing {
    m: [RawRingMatrix; MAX_MATRICES],
    q: u64,
    ds: u64,
    x: u64,
    gain: u64,
    gated: RawOperand,
    n_done: u64,
    eps: f32,
    gate: u32,
    row_len: u32,
    n_local: u32,
    n_longer: u32,
    n_segments: u32,
    segment: u32,
    n_teams: u32,
    team_of_warp: u32,
    units_per_step: u32,
    group: u32,
    part_floats: u32,
    unit_pitch: u32,
    n_slots: u32,
    n_flying: u32,
    n_filling: u32,
    scales_at: u32,
    sums_at: u32,
    parts_at: u32,
    addends_at: u32,
    slots_at: u32,
    n_addends: u32,
    n_left_to_let: u32,
}

/// Units that a block still has to ask for when it lets the next kernel in: of whole rows the last third of
/// its steps, and six at most. Sooner, the next kernel's bytes stand in front of these; later, its ring fills
/// too late. Of long rows, which few units of a block share, all: blocks that have one unit less would end
/// before the next kernel's blocks are there, and two of them come to lie on one multiprocessor. Of rows whose
/// activations are there in int8 all too: that attention has room beside the output's blocks is what the
/// next ones wait for.
fn n_left_to_let(job: &RawRing, n_local: u32) -> u32 {
    if job.n_segments > 1 || job.q != 0 {
        return n_local;
    }
    // Of a pair's steps two share their units.
    let n_turns = if job.n_done == 0 { 1 } else { 2 };
    let n_steps = n_turns * n_local.div_ceil(job.units_per_step);
    (n_steps / 3).clamp(1, MAX_STEPS_LEFT).div_ceil(n_turns) * job.units_per_step
}

impl Gpu {
    /// Whether [`ring`](Self::ring) can read this weight on this device.
    pub fn ring_reads(&self, weight: &DeviceWeight) -> bool {
        let few = weight.few();
        let is_there = self.has_sm90() && !few.any && few.stride.is_multiple_of(16);
        if !is_there || quant_of(weight.quant(), few.planar).is_none() {
            return false;
        }
        [false, true].into_iter().all(|is_pair| {
            let cut = Cut::of(weight.row_len(), is_pair);
            let slot = unit_pitch(weight, cut).saturating_mul(cut.units_in_slot());
            let row_len = u32_of(weight.row_len());
            let shared = Shared::of(Kept::Row(row_len), 2 * cut.part_floats(is_pair), MAX_ADDENDS);
            shared.bytes(2, slot.next_multiple_of(128)) <= SHARED_BYTES
        })
    }

    /// Whether a launch has room for what so many rows are added to: 128 units a block. With all
    /// multiprocessors of an H200 that is 67,000 rows; a share of a GPU has fewer.
    pub fn ring_has_room(&self, n_rows: usize) -> bool {
        let n_units = n_rows.div_ceil(UNIT_ROWS) + MAX_MATRICES;
        let n_blocks = self.info().n_multiprocessors as usize;
        4 * n_units.div_ceil(n_blocks) <= MAX_ADDENDS as usize
    }

    /// Products of up to three matrices of one row length and form, each of its own type, with one
    /// token; or the gated pair of two.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If shapes disagree, [`ring_reads`](Self::ring_reads) says no of a matrix, or
    /// [`ring_has_room`](Self::ring_has_room) of rows with a bias or something to be added to.
    pub fn ring(
        &self,
        outs: &[GemvOut<'_>],
        source: &RingSource<'_>,
        gate: Option<&RingGate<'_>>,
    ) -> CudaResult<()> {
        let Some(first) = outs.first() else { return Ok(()) };
        let row_len = first.weight.row_len();
        let is_pair = gate.is_some();
        assert!(outs.len() <= MAX_MATRICES && (!is_pair || outs.len() == 2), "matrices");
        let cut = Cut::of(row_len, is_pair);
        let mut m = [RawRingMatrix::default(); MAX_MATRICES];
        for (raw, out) in m.iter_mut().zip(outs) {
            *raw = self.raw_ring_matrix(out, first, is_pair);
        }
        let n_units = if is_pair { m[0].n_units } else { m.iter().map(|m| m.n_units).sum() };
        let n_blocks = self.info().n_multiprocessors.min(n_units);
        let unit_pitch = outs.iter().map(|out| unit_pitch(out.weight, cut)).max().unwrap_or(0);
        let mut job = RawRing {
            m,
            q: 0,
            ds: 0,
            x: 0,
            gain: 0,
            gated: OperandRef::default().raw(0),
            n_done: 0,
            eps: 0.0,
            gate: 0,
            row_len: u32_of(row_len),
            n_local: n_units / n_blocks,
            n_longer: n_units % n_blocks,
            n_segments: cut.n_segments,
            segment: cut.segment,
            n_teams: cut.n_teams,
            team_of_warp: cut.team_of_warp(),
            units_per_step: cut.units_per_step,
            group: cut.group(),
            part_floats: cut.part_floats(is_pair),
            unit_pitch,
            n_slots: 0,
            n_flying: 0,
            n_filling: 0,
            scales_at: 0,
            sums_at: 0,
            parts_at: 0,
            addends_at: 0,
            slots_at: 0,
            n_addends: 0,
            n_left_to_let: 0,
        };
        job.read_from(source, row_len);
        if let Some(gate) = gate {
            job.lead_to(gate, outs);
        }
        self.launch_ring(job, n_blocks, cut.units_in_slot(), outs)
    }

    /// A matrix that shares a launch with `first`.
    fn raw_ring_matrix(
        &self,
        out: &GemvOut<'_>,
        first: &GemvOut<'_>,
        is_pair: bool,
    ) -> RawRingMatrix {
        let (w, other) = (out.weight, first.weight);
        let planar = w.few().planar;
        assert!(w.row_len() == other.row_len() && planar == other.few().planar, "one form");
        assert!(self.ring_reads(w), "a matrix for the ring");
        let alike = w.quant() == other.quant() && w.few().stride == other.few().stride;
        assert!(alike || !is_pair && w.quant() != other.quant(), "one type, one stride");
        assert!(out.bias.is_none_or(|bias| bias.len() >= w.n_rows()), "bias");
        assert!(is_pair || out.y.len() >= w.n_rows(), "outputs");
        RawRingMatrix {
            w: w.few().address,
            y: out.y.ptr,
            bias: address(out.bias),
            unit_bytes: u32_of(unit_bytes(w)),
            n_rows: u32_of(w.n_rows()),
            n_units: u32_of(w.n_rows().div_ceil(UNIT_ROWS)),
            slot_bytes: 0,
            quant: quant_of(w.quant(), planar).unwrap_or_default(),
            add: u32::from(out.add),
        }
    }

    fn launch_ring(
        &self,
        mut job: RawRing,
        n_blocks: u32,
        units_in_slot: u32,
        outs: &[GemvOut<'_>],
    ) -> CudaResult<()> {
        let Some(first) = outs.first() else { return Ok(()) };
        let (planar, is_pair) = (first.weight.few().planar, job.n_done != 0);
        let n_local = job.n_local + u32::from(job.n_longer > 0);
        if outs.iter().any(|out| out.bias.is_some() || out.add) {
            job.n_addends = 4 * n_local;
        }
        assert!(job.n_addends <= MAX_ADDENDS && (!is_pair || job.n_addends == 0), "addends");
        let kept = Kept::of(job.row_len, job.n_segments, job.q != 0);
        // A block's second group has sums of its own; blocks of one matrix with few units have none.
        let n_part_buffers = if outs.len() > 1 || n_local > job.group { 2 } else { 1 };
        let shared = Shared::of(kept, n_part_buffers * job.part_floats, job.n_addends);
        let shared_bytes = if job.q == 0 { SHARED_BYTES } else { SHARED_BYTES_OF_INT8 };
        job.place(shared);
        let room = shared_bytes.saturating_sub(shared.slots_at);
        let slot_bytes = slot_bytes(job.unit_pitch, units_in_slot);
        assert!(2 * slot_bytes <= room, "shared memory");
        job.n_slots = (room / slot_bytes).min(MAX_SLOTS);
        job.m.iter_mut().for_each(|m| m.slot_bytes = slot_bytes);
        if !is_pair && job.n_segments == 1 {
            job.give_each_step_a_slot(n_blocks, units_in_slot, room);
        }
        job.n_flying = FLYING_BYTES.div_ceil(slot_bytes).clamp(1, job.n_slots);
        job.n_filling = FILLING_BYTES.div_ceil(slot_bytes).clamp(1, job.n_flying);
        job.n_left_to_let = n_left_to_let(&job, n_local);
        let name = kernel_name(planar, is_pair, types_of(outs))?;
        // Once for both sizes: a recorded launch of the larger one comes again after launches of the smaller.
        let kernel = self.known_with(name, SHARED_BYTES_OF_INT8)?;
        let shape =
            Shape { grid: (n_blocks, 1, 1), block: N_THREADS, shared: shared_bytes, waits: true };
        // SAFETY: the parameter of `gemv_ring_*`; lengths are checked above.
        unsafe { self.launch(kernel, shape, params![job]) }
    }
}

/// Bytes of a slot with so many units.
fn slot_bytes(unit_pitch: u32, n_units: u32) -> u32 {
    (unit_pitch * n_units).next_multiple_of(128)
}

impl RawRing {
    /// Where types differ, slots for units of the largest are too large for the others; if there is room, each step
    /// of a block gets a slot as large as its units, which is filled once.
    fn give_each_step_a_slot(&mut self, n_blocks: u32, units_in_slot: u32, room: u32) {
        let own = self.m.map(|m| slot_bytes(m.unit_bytes, units_in_slot));
        let matrices: Vec<_> = self.m.iter().map(|m| m.n_units).zip(own).collect();
        let shares = Shares { n_blocks, n_local: self.n_local, n_longer: self.n_longer };
        let (n_steps, n_bytes) = shares.most_steps_and_bytes(&matrices, self.units_per_step);
        if n_bytes <= room && (self.n_slots + 1..=MAX_SLOTS).contains(&n_steps) {
            self.n_slots = n_steps;
            self.m.iter_mut().zip(own).for_each(|(m, own)| m.slot_bytes = own);
        }
    }

    fn place(&mut self, shared: Shared) {
        self.scales_at = shared.scales_at;
        self.sums_at = shared.sums_at;
        self.parts_at = shared.parts_at;
        self.addends_at = shared.addends_at;
        self.slots_at = shared.slots_at;
    }

    fn read_from(&mut self, source: &RingSource<'_>, row_len: usize) {
        match source {
            RingSource::Operand(x) => {
                x.raw(row_len);
                assert!(x.int8.is_some(), "form of the operand");
                self.q = address(x.int8.map(|int8| int8.0));
                self.ds = address(x.int8.map(|int8| int8.1));
            }
            RingSource::Norm { x, gain, eps } => {
                assert!(x.len() >= row_len && gain.len() >= row_len, "activations");
                (self.x, self.gain, self.eps) = (x.ptr, gain.ptr, *eps);
            }
        }
    }

    fn lead_to(&mut self, gate: &RingGate<'_>, outs: &[GemvOut<'_>]) {
        let n = outs[0].weight.n_rows();
        assert!(n == outs[1].weight.n_rows() && n.is_multiple_of(32), "{n} gated rows");
        assert!(gate.out.f32.is_some() && gate.out.int8.is_some(), "forms of the operand");
        assert!(gate.n_done.len() >= n / 32, "counters");
        self.gated = gate.out.raw(n);
        self.n_done = gate.n_done.ptr;
        self.gate = u32::from(gate.kind == Gate::GeluTanh);
    }
}
