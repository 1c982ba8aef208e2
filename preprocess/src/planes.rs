//! Which plane kinds a container gets: the `--planes` list.

use std::fmt;
use std::str::FromStr;

use format_spec::QuantType;
use format_spec::plane::PlaneKind;

/// A choice of plane kinds. It always holds a base kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaneSet {
    /// In order of id, each once.
    kinds: Vec<PlaneKind>,
}

/// Kinds that may be a tensor's base, best first.
fn base_kinds() -> impl Iterator<Item = PlaneKind> {
    PlaneKind::ALL.iter().copied().filter(|kind| kind.is_base())
}

impl PlaneSet {
    /// The set of these kinds. Without a base kind among them, it gets `padded`.
    pub fn new(kinds: impl IntoIterator<Item = PlaneKind>) -> Self {
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        if !kinds.iter().any(|kind| kind.is_base()) {
            kinds.push(PlaneKind::Padded);
        }
        kinds.sort_unstable();
        kinds.dedup();
        Self { kinds }
    }

    /// `none`: the tensors as the GGUF has them, in aligned blocks.
    pub fn none() -> Self {
        Self::new([])
    }

    /// `all`: every kind that this version writes.
    pub fn all() -> Self {
        Self::new(PlaneKind::ALL.iter().copied())
    }

    /// `cuda-fast`: what a GPU reads fastest, `planar` and `bf16`.
    pub fn cuda_fast() -> Self {
        Self::new([PlaneKind::Planar, PlaneKind::Bf16])
    }

    /// `cpu-fast`: what a CPU reads fastest, `tile`.
    pub fn cpu_fast() -> Self {
        Self::new([PlaneKind::Tile])
    }

    /// The kinds, in order of id.
    pub fn kinds(&self) -> &[PlaneKind] {
        &self.kinds
    }

    /// The objects that a tensor gets: its base first, then the other kinds that exist for its
    /// type. A vector gets its base alone: planes serve matrix products.
    pub fn for_tensor(&self, quant: QuantType, is_matrix: bool) -> Vec<PlaneKind> {
        // `padded` exists for every type, so that a base is always found.
        let base = base_kinds()
            .find(|kind| self.kinds.contains(kind) && kind.applies_to(quant))
            .unwrap_or(PlaneKind::Padded);
        let others = self.kinds.iter().copied();
        let others = others.filter(|&kind| kind != base && is_matrix && kind.applies_to(quant));
        std::iter::once(base).chain(others).collect()
    }
}

impl Default for PlaneSet {
    /// `default`: `padded` with `exp` and `dsc`.
    fn default() -> Self {
        Self::new([PlaneKind::Padded, PlaneKind::Exp, PlaneKind::Dsc])
    }
}

impl fmt::Display for PlaneSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.kinds.iter().map(|kind| kind.name()).collect();
        f.write_str(&names.join(","))
    }
}

/// Sets with a name.
const NAMED_SETS: [&str; 5] = ["default", "none", "all", "cpu-fast", "cuda-fast"];

impl FromStr for PlaneSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "default" => return Ok(Self::default()),
            "none" => return Ok(Self::none()),
            "all" => return Ok(Self::all()),
            "cuda-fast" => return Ok(Self::cuda_fast()),
            "cpu-fast" => return Ok(Self::cpu_fast()),
            _ => {}
        }
        let kinds: Result<Vec<_>, _> = text.split(',').map(|name| kind(name.trim())).collect();
        Ok(Self::new(kinds?))
    }
}

fn kind(name: &str) -> Result<PlaneKind, String> {
    if let Some(kind) = PlaneKind::ALL.iter().find(|kind| kind.name() == name) {
        return Ok(*kind);
    }
    let writes = PlaneSet::all();
    if NAMED_SETS.contains(&name) {
        return Err(format!(
            "`{name}` is not a plane kind but a choice of planes, which stands alone; a list is \
             made of {writes}"
        ));
    }
    Err(format!(
        "`{name}` is not a plane kind; use default, none, all, cpu-fast, cuda-fast or a list of \
         {writes}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use PlaneKind::{Bf16, Dsc, Exp, Padded, Planar, Sb, Tile};

    fn parse(text: &str) -> Result<Vec<PlaneKind>, String> {
        text.parse::<PlaneSet>().map(|set| set.kinds().to_vec())
    }

    #[test]
    fn lists_and_named_sets() {
        assert_eq!(parse("default"), Ok(vec![Padded, Exp, Dsc]));
        assert_eq!(parse("none"), Ok(vec![Padded]));
        assert_eq!(parse("all"), Ok(PlaneKind::ALL.to_vec()));
        assert_eq!(parse("padded"), Ok(vec![Padded]));
        assert_eq!(
            parse("none,exp"),
            Err(format!(
                "`none` is not a plane kind but a choice of planes, which stands alone; a list is \
                 made of {}",
                PlaneSet::all()
            ))
        );
        assert_eq!(parse("dsc, exp,dsc"), Ok(vec![Padded, Exp, Dsc]));
        assert_eq!(parse("cuda-fast"), Ok(vec![Planar, Bf16]));
        assert_eq!(parse("cpu-fast"), Ok(vec![Tile]));
        assert_eq!(parse("tile,exp"), Ok(vec![Exp, Tile]));
        assert_eq!(parse("sb"), Ok(vec![Padded, Sb]));
        assert_eq!("exp".parse::<PlaneSet>().map(|set| set.to_string()), Ok("padded,exp".into()));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (name, says) in [
            ("tiles", "`tiles` is not a plane kind"),
            ("padded,cpu-fast", "`cpu-fast` is not a plane kind"),
            ("", "`` is not a plane kind"),
            ("exp,", "`` is not a plane kind"),
            ("Exp", "`Exp` is not a plane kind"),
        ] {
            let error = parse(name).expect_err(name);
            assert!(error.contains(says), "{name}: {error}");
        }
    }

    #[test]
    fn planes_go_to_matrices_of_their_type_only() {
        let set = PlaneSet::default();
        assert_eq!(set.for_tensor(QuantType::Q6_K, true), [Padded, Exp, Dsc]);
        assert_eq!(set.for_tensor(QuantType::Q6_K, false), [Padded]);
        assert_eq!(set.for_tensor(QuantType::Q4_K, true), [Padded]);
        assert_eq!(set.for_tensor(QuantType::F32, false), [Padded]);
        let set = PlaneSet::cuda_fast();
        assert_eq!(set.for_tensor(QuantType::Q6_K, true), [Planar, Bf16]);
        assert_eq!(set.for_tensor(QuantType::Q6_K, false), [Planar]);
        assert_eq!(set.for_tensor(QuantType::Q4_0, true), [Padded, Bf16]);
        assert_eq!(set.for_tensor(QuantType::F32, false), [Padded]);
        let set = PlaneSet::cpu_fast();
        assert_eq!(set.for_tensor(QuantType::Q4_0, true), [Tile]);
        assert_eq!(set.for_tensor(QuantType::F32, true), [Padded]);
        let set = PlaneSet::new([Padded, Tile]);
        assert_eq!(set.for_tensor(QuantType::Q4_0, true), [Padded, Tile]);
    }
}
