//! What can be wrong before a kernel runs. Shapes are proved once; compute itself cannot fail.

use crate::Tier;

/// Result of this crate's fallible constructors.
pub type Result<T> = std::result::Result<T, Error>;

/// Why kernels refused their input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine lacks the instructions of the tier that was asked for.
    #[error("CPU tier '{tier}' is not available on this machine (best: '{best}')")]
    TierUnavailable {
        /// The tier asked for.
        tier: &'static str,
        /// The best tier that is available.
        best: &'static str,
    },
    /// A tier name that does not exist.
    #[error("unknown CPU tier '{name}', expected {}", names())]
    UnknownTier {
        /// What was given.
        name: String,
    },
    /// Bytes and layout disagree, or two planes of one weight do.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// Which quantity is wrong.
        what: &'static str,
        /// What the layout says.
        expected: u64,
        /// What was given.
        found: u64,
    },
    /// A plane that cannot serve in this place.
    #[error("plane '{plane}' cannot be used here: {why}")]
    Plane {
        /// Name of the plane kind.
        plane: &'static str,
        /// The reason.
        why: &'static str,
    },
}

/// The names of all tiers, for messages.
fn names() -> String {
    let names: Vec<_> = Tier::ALL.iter().map(|tier| tier.name()).collect();
    names.join(", ")
}
