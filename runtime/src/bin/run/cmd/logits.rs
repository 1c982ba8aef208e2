//! `--logits`: the logits of every prompt position, in a file.

use crate::answer::check_interrupt;
use crate::setup::{Job, failure};
use cli::Failure;
use cli::output::{Output, Target};
use runtime::{LogitsWanted, Session};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Where the logits go.
enum Destination {
    /// A file that gets its name when it is complete.
    Whole(Output),
    /// What is no regular file, or is this process's own output: bytes as they come.
    Stream(File),
}

impl Destination {
    /// # Errors
    /// I/O, if nothing can be written there.
    fn open(job: &Job<'_, '_>, path: &Path, len_bytes: u64) -> Result<Self, Failure> {
        if is_stream(path) {
            let file = File::create(path).map_err(|e| Failure::io(path, "cannot write", &e))?;
            return Ok(Self::Stream(file));
        }
        // Behind a symbolic link the file is replaced.
        let resolved = fs::canonicalize(path);
        let target = Target::new(resolved.as_deref().unwrap_or(path), &[], true)?;
        for stale in target.remove_stale() {
            job.ui.warn(format_args!("removed {}, which a killed run had left", stale.display()));
        }
        target.create(len_bytes).map(Self::Whole)
    }

    fn file(&self) -> &File {
        match self {
            Self::Whole(output) => output.file(),
            Self::Stream(file) => file,
        }
    }

    fn failure(&self, path: &Path, error: &io::Error) -> Failure {
        match self {
            Self::Whole(output) => output.write_failure("cannot write", error),
            Self::Stream(_) => Failure::io(path, "cannot write", error),
        }
    }

    fn commit(self) -> Result<(), Failure> {
        match self {
            Self::Whole(output) => output.sync().and_then(|()| output.commit()),
            Self::Stream(_) => Ok(()),
        }
    }
}

/// Whether `path` is a pipe, a device or the like, or a file that is open already as standard
/// output or error: whoever opened that would not see a new file in its place.
fn is_stream(path: &Path) -> bool {
    let Ok(there) = path.metadata() else { return false };
    let is_open = |stat: rustix::io::Result<rustix::fs::Stat>| {
        stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (there.dev(), there.ino()))
    };
    !there.is_file()
        || ["/dev/fd", "/proc"].iter().any(|folder| path.starts_with(folder))
        || is_open(rustix::fs::fstat(rustix::stdio::stdout()))
        || is_open(rustix::fs::fstat(rustix::stdio::stderr()))
}

/// Feeds the prompt and writes the logits of each of its positions to `path` as they come. Returns
/// those of the last. What fails or is interrupted leaves `path` as it was.
///
/// # Errors
/// I/O, interruption (130), what the session reports.
pub(super) fn write<'s>(
    job: &Job<'_, '_>,
    n_vocab: usize,
    session: &'s mut Session<'_, '_>,
    ids: &[u32],
    path: &Path,
) -> Result<&'s [f32], Failure> {
    refuse_inputs(job, path)?;
    // Before any file is made.
    session.check(ids).map_err(failure)?;
    let len_bytes = (ids.len() * n_vocab * size_of::<f32>()) as u64;
    let destination = Destination::open(job, path, len_bytes)?;
    let logits = feed(job, session, ids, &destination, path)?;
    destination.commit()?;
    job.ui.verbose(1, format_args!("wrote {} x {n_vocab} logits to {}", ids.len(), path.display()));
    Ok(logits)
}

fn feed<'s>(
    job: &Job<'_, '_>,
    session: &'s mut Session<'_, '_>,
    ids: &[u32],
    destination: &Destination,
    path: &Path,
) -> Result<&'s [f32], Failure> {
    let n_batch = job.args.device.batch as usize;
    let cannot = |e: &io::Error| destination.failure(path, e);
    let mut out = BufWriter::with_capacity(1 << 20, destination.file());
    let mut bytes = Vec::new();
    let n_last = ids.len().saturating_sub(1) / n_batch * n_batch;
    let mut written = Ok(());
    let mut sink = |_: usize, logits: &[f32]| {
        bytes.clear();
        bytes.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
        written = out.write_all(&bytes);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    for batch in ids[..n_last].chunks(n_batch) {
        check_interrupt()?;
        let fed = session.prefill(batch, n_batch, LogitsWanted::all(&mut sink)).map(|_| ());
        if let Err(e) = fed {
            written.map_err(|e| cannot(&e))?;
            return Err(failure(e));
        }
    }
    check_interrupt()?;
    let fed = session.prefill(&ids[n_last..], n_batch, LogitsWanted::all(&mut sink));
    written.map_err(|e| cannot(&e))?;
    let logits = fed.map_err(failure)?;
    out.flush().map_err(|e| cannot(&e))?;
    Ok(logits)
}

/// Writing over the mapped model would destroy it under our feet, and over the ids what was read.
fn refuse_inputs(job: &Job<'_, '_>, path: &Path) -> Result<(), Failure> {
    let id = |metadata: io::Result<fs::Metadata>| {
        metadata.ok().map(|metadata| (metadata.dev(), metadata.ino()))
    };
    let Some(out) = id(path.metadata()) else { return Ok(()) };
    if id(job.file.file.metadata()) == Some(out) {
        return Err(Failure::usage("--logits would overwrite the model itself"));
    }
    if job.args.prompt.ids.as_ref().is_some_and(|ids| id(ids.metadata()) == Some(out)) {
        return Err(Failure::usage("--logits would overwrite the file of --ids"));
    }
    Ok(())
}
