//! Attention of one token in one launch, by clusters of blocks. [`Gpu::attention_decode`] is its twin.

use std::ffi::c_void;
use std::sync::PoisonError;

use cudarc::driver::{result, sys};

use super::attention::{AttentionArgs, FreshRows};
use super::driver::{Gpu, check};
use super::error::CudaResult;
use super::launch::{Kernel, Shape, attributes};
use super::ops::{OperandRef, RawOperand, params, u32_of};

/// Query heads of a cluster, as `HEADS` in `attention/cluster.cuh`.
const HEADS: usize = 8;
/// Threads of a block.
const N_THREADS: u32 = 256;
/// Positions of a tile.
const TILE: usize = 16;
/// Blocks of a cluster, best first. More than eight are no cluster that every GPU must be able to run. With four
/// the twin is faster from 1000 positions on (16 KV heads on an H200).
const CLUSTERS: [u32; 2] = [16, 8];

/// Shared memory with which a block has a multiprocessor for itself.
const ALONE_BYTES: u32 = 120 << 10;

/// As `ClusterJob` in `attention/cluster.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawCluster {
    out: RawOperand,
    q: u64,
    k_new: u64,
    v_new: u64,
    k_cache: u64,
    v_cache: u64,
    first_pos: u64,
    table: u64,
    q_gain: u64,
    k_gain: u64,
    group: u32,
    n_head_kv: u32,
    window: u32,
    scale: f32,
    soft_cap: f32,
    eps: f32,
    n_steps: u32,
    neox: u32,
    lets_in: u32,
}

/// A kernel, and the tiles that its blocks have places for.
fn kernel_of(head_dim: usize) -> Option<(&'static str, usize)> {
    match head_dim {
        64 => Some(("attention_cluster_64", 24)),
        128 => Some(("attention_cluster_128", 13)),
        256 => Some(("attention_cluster_256", 5)),
        _ => None,
    }
}

/// Shared memory of a block, as `ClusterShape` in `attention/cluster.cuh` has it: keys and values of tiles;
/// queries in two parts; the new key and value; what other blocks send; a barrier.
fn shared_bytes(head_dim: usize, n_slots: usize) -> u32 {
    let (row, n_chunks) = (2 * head_dim, HEADS * head_dim / 32);
    u32_of((n_slots * 2 * TILE + 2 * HEADS + 2) * row + n_chunks * (128 + 8) + 16)
}

/// Clusters of a launch.
fn n_clusters(n_head: usize, n_head_kv: usize) -> usize {
    n_head_kv * (n_head / n_head_kv.max(1)).div_ceil(HEADS)
}

impl Gpu {
    /// Blocks of a cluster of [`attention_cluster`](Self::attention_cluster) for a model's heads, if it runs
    /// here: as many as leave each block a multiprocessor, with which all run at once.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn attention_cluster_blocks(
        &self,
        n_head: usize,
        n_head_kv: usize,
        head_dim: usize,
    ) -> CudaResult<Option<u32>> {
        let Some((name, _)) = kernel_of(head_dim).filter(|_| self.has_sm90()) else {
            return Ok(None);
        };
        let n_wanted = n_clusters(n_head, n_head_kv);
        for cluster in CLUSTERS {
            let n_blocks = n_wanted.saturating_mul(cluster as usize);
            if n_blocks <= self.info().n_multiprocessors as usize
                && self.clusters_at_once(name, cluster)? as usize >= n_wanted
            {
                return Ok(Some(cluster));
            }
        }
        Ok(None)
    }

    /// The kernel, allowed what it needs, and what the question for room needs: never less, since another
    /// thread may ask.
    fn cluster_kernel(&self, name: &'static str) -> CudaResult<Kernel> {
        let kernel = self.known_with(name, ALONE_BYTES)?;
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        // SAFETY: the function is a handle of this context.
        let set = unsafe { result::function::set_function_attribute(kernel.0, attribute, 1) };
        check("allowing large clusters", set)?;
        Ok(kernel)
    }

    /// Clusters of so many blocks that an empty GPU has room for, each block on a multiprocessor of its own:
    /// beside blocks of a ring there is no room for two.
    fn clusters_at_once(&self, name: &'static str, cluster: u32) -> CudaResult<u32> {
        let mut known = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&n) = known.get(&(name, cluster)) {
            return Ok(n);
        }
        let kernel = self.cluster_kernel(name)?;
        let grid = (cluster, 1, 1);
        let shape = Shape { grid, block: N_THREADS, shared: ALONE_BYTES, waits: true };
        let (mut attributes, n) = attributes(cluster, false);
        let config = shape.config(self.stream(), &mut attributes[..n]);
        let mut n_clusters = 0;
        // SAFETY: kernel and configuration are alive.
        let status = unsafe {
            sys::cuOccupancyMaxActiveClusters(&raw mut n_clusters, kernel.0, &raw const config)
        };
        let n = match status {
            // One that can never run here.
            sys::cudaError_enum::CUDA_ERROR_INVALID_CLUSTER_SIZE => 0,
            _ => {
                check("asking for room for clusters", status.result())?;
                u32::try_from(n_clusters).unwrap_or(0)
            }
        };
        known.insert((name, cluster), n);
        Ok(n)
    }

    /// Attention of one token, whose queries, key and value are as a product left them, by clusters of
    /// `cluster` blocks ([`attention_cluster_blocks`](Self::attention_cluster_blocks)): what
    /// [`attention_decode`](Self::attention_decode) does with `fresh` rows, in one launch. `lets_in`: the
    /// next launch may begin beside this one. Not if it is one of a ring that makes its norm: two of its
    /// blocks fit one multiprocessor, and came to lie so. The output's product, which follows in a model, is
    /// none of these: a ring that finds int8, or a kernel of small blocks.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If lengths disagree or it does not run here.
    pub fn attention_cluster(
        &self,
        out: &OperandRef<'_>,
        args: &AttentionArgs<'_>,
        fresh: &FreshRows<'_>,
        (cluster, lets_in): (u32, bool),
    ) -> CudaResult<()> {
        args.check();
        let AttentionArgs { n_head, n_head_kv, head_dim, .. } = *args;
        let Some((name, n_slots)) = kernel_of(head_dim).filter(|_| self.has_sm90()) else {
            panic!("no clusters for heads of {head_dim} here")
        };
        assert!((1..=16).contains(&cluster) && cluster.is_power_of_two(), "{cluster} blocks");
        let n_steps = fresh.check(args);
        // Values are read in pairs, the cache 16 bytes at a time.
        assert!(fresh.v.ptr.is_multiple_of(8), "values at {}", fresh.v.ptr);
        assert!(args.k.ptr.is_multiple_of(16) && args.v.ptr.is_multiple_of(16), "the cache");
        let (table, _, neox) = fresh.table.raw();
        let norms = fresh.norms.map_or((0, 0, 0.0), |(q, k, eps)| (q.ptr, k.ptr, eps));
        let job = RawCluster {
            out: out.raw(n_head * head_dim),
            q: args.q.ptr,
            k_new: fresh.k.ptr,
            v_new: fresh.v.ptr,
            k_cache: args.k.ptr,
            v_cache: args.v.ptr,
            first_pos: args.first_pos.ptr,
            table,
            q_gain: norms.0,
            k_gain: norms.1,
            group: u32_of(n_head / n_head_kv),
            n_head_kv: u32_of(n_head_kv),
            window: u32_of(args.window.unwrap_or(0)),
            scale: args.scale,
            soft_cap: args.soft_cap.unwrap_or(0.0),
            eps: norms.2,
            n_steps,
            neox,
            lets_in: u32::from(lets_in),
        };
        let shared = shared_bytes(head_dim, n_slots);
        let grid = (u32_of(n_clusters(n_head, n_head_kv)) * cluster, 1, 1);
        let shape = Shape { grid, block: N_THREADS, shared, waits: true };
        let kernel = self.cluster_kernel(name)?;
        // SAFETY: the parameter of `attention_cluster_*`; lengths are checked above.
        unsafe { self.launch_clustered(kernel, shape, cluster, params![job]) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::{MULTIPROCESSOR_BYTES, RESERVED_BYTES, SHARED_BYTES_OF_INT8};
    use super::*;

    /// The kernel's own lines behind [`shared_bytes`]: whoever changes them comes by here.
    #[test]
    fn shared_memory_is_what_the_kernel_lays_out() {
        let source = include_str!("../../cuda/attention/cluster.cuh");
        for line in [
            "constexpr int HEADS = 8, TILE = 16;",
            "static constexpr int WARPS = 8, THREADS = 32 * WARPS;",
            "static constexpr int SLOTS = HD == 64 ? 24 : HD == 128 ? 13 : 5;",
            "static constexpr uint32_t ROW = 2 * HD;",
            "static constexpr uint32_t SLOT = 2 * TILE * ROW;",
            "static constexpr uint32_t QUERIES = 2 * HEADS * ROW;",
            "static constexpr int CHUNKS = HEADS * HD / 32;",
            "static constexpr uint32_t VALUES = CHUNKS * 128, SUMS = CHUNKS * 8;",
            "static constexpr uint32_t SHARED = SLOTS * SLOT + QUERIES + 2 * ROW + VALUES + SUMS + 16;",
        ] {
            assert!(source.contains(line), "{line}");
        }
        for head_dim in [64, 128, 256] {
            let (_, n_slots) = kernel_of(head_dim).expect("a kernel");
            // Beside a block of the output's ring.
            let shared = shared_bytes(head_dim, n_slots).next_multiple_of(128);
            let both = shared + SHARED_BYTES_OF_INT8 + 2 * RESERVED_BYTES;
            assert!(both <= MULTIPROCESSOR_BYTES, "{head_dim}: {both}");
        }
    }
}
