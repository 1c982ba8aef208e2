//! Reading ahead: pages of the map come in while the driver makes its context, so that no reader
//! of the upload waits for them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes that a thread takes at a time.
const PIECE_BYTES: usize = 4 << 20;
/// Pages are at least this large.
const PAGE_BYTES: usize = 4096;
/// More threads than this get in each other's way.
const MAX_THREADS: usize = 8;

/// Does `work` while other threads touch the pages of `ranges` of `file`, in order. They end with it,
/// however far they are. Returns the bytes whose pages were touched, too.
pub(super) fn while_reading<R>(
    file: &[u8],
    ranges: &[Range<usize>],
    n_threads: usize,
    work: impl FnOnce() -> R,
) -> (R, u64) {
    let pieces: Vec<Range<usize>> = ranges.iter().flat_map(cut).collect();
    let (next, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let n_bytes = AtomicU64::new(0);
    let read = || {
        while !is_done.load(Ordering::Relaxed) {
            let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let Some(bytes) = file.get(piece.clone()) else { return };
            touch(bytes);
            n_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    };
    let result = std::thread::scope(|scope| {
        for _ in 0..n_threads.clamp(1, MAX_THREADS).min(pieces.len()) {
            // Without a thread the upload reads for itself.
            let _ = std::thread::Builder::new().spawn_scoped(scope, read);
        }
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        result
    });
    (result, n_bytes.into_inner())
}

fn cut(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.clone().step_by(PIECE_BYTES).map(move |start| start..end.min(start + PIECE_BYTES))
}

/// Reads a byte of each page.
fn touch(bytes: &[u8]) {
    for at in (0..bytes.len()).step_by(PAGE_BYTES) {
        std::hint::black_box(bytes[at]);
    }
    std::hint::black_box(bytes.last());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn pieces_cover_a_range_once() {
        for (start, end) in [(3, 3), (3, 4), (0, PIECE_BYTES), (7, 3 * PIECE_BYTES + 1)] {
            let pieces: Vec<_> = cut(&(start..end)).collect();
            let mut at = start;
            for piece in &pieces {
                assert_eq!(piece.start, at);
                assert!(!piece.is_empty() && piece.len() <= PIECE_BYTES, "{piece:?}");
                at = piece.end;
            }
            assert_eq!(at, end);
        }
    }

    #[test]
    fn all_is_read_while_the_work_waits_for_it() {
        let file = vec![1; 2 * PIECE_BYTES + 5];
        let whole = 0..file.len();
        // The work cannot know when; it gives the readers time until they have had enough.
        for _ in 0..200 {
            let work = || std::thread::sleep(std::time::Duration::from_millis(5));
            if while_reading(&file, std::slice::from_ref(&whole), 3, work).1 == file.len() as u64 {
                return;
            }
        }
        panic!("never read to its end");
    }

    #[test]
    fn readers_end_with_the_work_and_mind_the_end_of_the_file() {
        let file = vec![1; 10];
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            sender.send(7).unwrap_or_default();
            receiver.recv()
        };
        let beyond = [0..10, 5..20_000_000];
        let (result, n_bytes) = while_reading(&file, &beyond, 2, work);
        assert_eq!(result, Ok(7));
        assert!(n_bytes <= 10, "{n_bytes}");
    }
}
