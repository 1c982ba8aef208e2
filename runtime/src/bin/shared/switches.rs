//! The variables that say how models run. They are read together and before anything else is done, so
//! that a value that is none is refused whatever device comes to be used, and no file is blamed for it.

use cli::Failure;
use kernels::Tier;
use runtime::{CudaOptions, Gemm, Load, LoadOptions};

/// What they say. Each of the switches is on unless its variable says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Switches {
    exp_plane: bool,
    tile_units: bool,
    graphs: bool,
    chained: bool,
    argmax: bool,
    fused: bool,
    ring: bool,
    wgmma_attention: bool,
    cluster_attention: bool,
    keep_bf16: bool,
    wide: bool,
    load: Load,
    gemm: Gemm,
    /// Bytes of a GPU's memory that may be used, 0 for all.
    pub(crate) max_bytes: u64,
}

impl Switches {
    /// Reads them.
    ///
    /// # Errors
    /// Wrong use: the variable, its value and what it may be.
    pub(crate) fn read() -> Result<Self, Failure> {
        Self::from(|name| cli::variable(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn from(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let on = |name| read(&variable, name, true, parse_switch);
        Ok(Self {
            exp_plane: on("MINFER_MMQ_Q6K_EXP")?,
            tile_units: on("MINFER_CPU_TILE")?,
            // For looking into a problem: each of them only takes time.
            graphs: on("MINFER_CUDA_GRAPHS")?,
            chained: on("MINFER_CUDA_CHAIN")?,
            argmax: on("MINFER_GPU_ARGMAX")?,
            fused: on("MINFER_GPU_FUSE")?,
            ring: on("MINFER_GPU_RING")?,
            wgmma_attention: on("MINFER_GPU_WGMMA_ATTENTION")?,
            cluster_attention: on("MINFER_GPU_CLUSTER_ATTENTION")?,
            keep_bf16: on("MINFER_GPU_KEEP_BF16")?,
            wide: on("MINFER_GPU_WIDE")?,
            load: read(&variable, "MINFER_GPU_LOAD", Load::Pinned, parse_load)?,
            gemm: read(&variable, "MINFER_GPU_GEMM", Gemm::Auto, parse_gemm)?,
            max_bytes: read(&variable, "MINFER_GPU_MEMORY", 0, cli::parse_size)?,
        })
    }

    /// The options of a load.
    pub(crate) fn load_options(&self, tier: Tier, n_threads: usize) -> LoadOptions {
        let Self { exp_plane, tile_units, .. } = *self;
        LoadOptions { tier, n_threads, exp_plane, tile_units }
    }

    /// What they say of a run on a GPU.
    pub(crate) fn cuda_options(&self) -> CudaOptions {
        CudaOptions {
            gemm: self.gemm,
            graphs: self.graphs,
            chained: self.chained,
            argmax: self.argmax,
            fused: self.fused,
            ring: self.ring,
            wgmma_attention: self.wgmma_attention,
            cluster_attention: self.cluster_attention,
            keep_bf16: self.keep_bf16,
            wide: self.wide,
            load: self.load,
            max_bytes: self.max_bytes,
            ..CudaOptions::default()
        }
    }
}

/// One variable's value.
fn read<T>(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
    unset: T,
    parse: fn(&str) -> Result<T, String>,
) -> Result<T, Failure> {
    let Some(text) = variable(name) else { return Ok(unset) };
    parse(&text).map_err(|why| Failure::usage(format!("{name}={text}: {why}")))
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "0" | "off" | "false" | "no" => Ok(false),
        "1" | "on" | "true" | "yes" => Ok(true),
        _ => Err("expected 0 (off) or 1 (on)".to_owned()),
    }
}

/// `pinned`, `map`, or `map:N` with N MiB pinned at a time.
fn parse_load(text: &str) -> Result<Load, String> {
    let mib = match text.split_once(':') {
        None if text == "pinned" => return Ok(Load::Pinned),
        None if text == "map" => return Ok(Load::Map(Load::MAP_BYTES)),
        Some(("map", mib)) => cli::whole(mib, &(1..=1usize << 20)),
        _ => Err("expected pinned, map or map:MIB".to_owned()),
    };
    mib.map(|mib| Load::Map(mib << 20))
}

/// Whose kernels make bf16 products.
fn parse_gemm(text: &str) -> Result<Gemm, String> {
    match text {
        "auto" => Ok(Gemm::Auto),
        "own" => Ok(Gemm::Own),
        "cublas" => Ok(Gemm::Cublas),
        _ => Err("expected auto, own or cublas".to_owned()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Switches {
        /// What no variable says.
        pub(crate) const UNSET: Self = Self {
            exp_plane: true,
            tile_units: true,
            graphs: true,
            chained: true,
            argmax: true,
            fused: true,
            ring: true,
            wgmma_attention: true,
            cluster_attention: true,
            keep_bf16: true,
            wide: true,
            load: Load::Pinned,
            gemm: Gemm::Auto,
            max_bytes: 0,
        };
    }

    #[test]
    fn unset_variables_are_the_librarys_defaults() {
        assert_eq!(Switches::from(|_| None), Ok(Switches::UNSET));
        assert_eq!(Switches::UNSET.cuda_options(), CudaOptions::default());
    }

    #[test]
    fn each_variable_is_read_and_a_value_that_is_none_is_told_with_its_name() {
        let mut names = std::cell::RefCell::new(Vec::new());
        let all = Switches::from(|name| {
            names.borrow_mut().push(name.to_owned());
            None
        });
        assert!(all.is_ok());
        let names = names.get_mut();
        assert_eq!(names.len(), 14);
        let with = |name: &str, value: &str| {
            Switches::from(|asked| (asked == name).then(|| value.to_owned()))
        };
        for name in names.iter() {
            let failure = with(name, "banana").unwrap_err();
            assert_eq!(failure.code, cli::ExitCode::Usage);
            assert!(failure.message.starts_with(&format!("{name}=banana: ")), "{failure}");
            assert!(failure.message.contains("expected") || name == "MINFER_GPU_MEMORY");
            let other = match name.as_str() {
                "MINFER_GPU_LOAD" => "map:3",
                "MINFER_GPU_GEMM" => "own",
                "MINFER_GPU_MEMORY" => "8G",
                _ => "off",
            };
            assert_ne!(with(name, other), Ok(Switches::UNSET), "{name}");
        }
    }

    #[test]
    fn switches_are_read_or_refused() {
        for text in ["0", "off", "False", "no"] {
            assert_eq!(parse_switch(text), Ok(false), "{text}");
        }
        for text in ["1", "on", "TRUE", "yes"] {
            assert_eq!(parse_switch(text), Ok(true), "{text}");
        }
        assert!(parse_switch("2").is_err());
        assert!(parse_switch("of").is_err());
    }

    #[test]
    fn whose_kernels_is_read() {
        assert_eq!(parse_gemm("own"), Ok(Gemm::Own));
        assert_eq!(parse_gemm("cublas"), Ok(Gemm::Cublas));
        for bad in ["", "Own", "cublaslt", "1"] {
            assert!(parse_gemm(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ways_to_load_are_read() {
        assert_eq!(parse_load("pinned"), Ok(Load::Pinned));
        assert_eq!(parse_load("map"), Ok(Load::Map(64 << 20)));
        assert_eq!(parse_load("map:3"), Ok(Load::Map(3 << 20)));
        for bad in ["", "map:", "map:0", "map:-1", "pinned:1", "maps", "map:99999999999999999999"] {
            assert!(parse_load(bad).is_err(), "{bad}");
        }
    }
}
