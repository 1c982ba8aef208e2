//! The command line of minfer-bench: parsed, checked, and made into a grid of tests. It does nothing else.

mod flags;

use crate::device::{Device, Layers, Placement, Prefill, check_device, tier, tier_named};
use crate::numbers::Numbers;
use crate::plan::{Batch, Grid, check_combinations};
use crate::switches::Switches;
use clap::parser::ValueSource;
use clap::{Command, CommandFactory, FromArgMatches};
use cli::{Failure, GlobalArgs, ProgressMode};
pub(crate) use flags::Flags;
use flags::OwnGlobalArgs;
use kernels::Tier;
use std::path::PathBuf;

/// The flags, with those that every command has in the form that every command takes.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) flags: Flags,
    pub(crate) global: GlobalArgs,
}

impl From<Flags> for Args {
    fn from(flags: Flags) -> Self {
        let OwnGlobalArgs { quiet, verbose, color, json, progress, completions } = flags.global;
        let progress = progress.unwrap_or_default();
        let global =
            GlobalArgs { quiet, verbose, color, json, progress, threads: None, completions };
        Self { flags, global }
    }
}

impl CommandFactory for Args {
    fn command() -> Command {
        Flags::command()
    }

    fn command_for_update() -> Command {
        Flags::command_for_update()
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Flags::from_arg_matches(matches)?;
        // Both say what is computed together: the flag wins over the other one's variable.
        if matches.value_source("batch_size") == Some(ValueSource::EnvVariable)
            && !flags.test.ubatch_size.is_empty()
        {
            flags.test.batch_size.clear();
        }
        Ok(flags.into())
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Positions fit this in every kernel.
const MAX_CTX: u64 = 1 << 30;

impl Args {
    /// The models, in the order given.
    pub(crate) fn models(&self) -> impl Iterator<Item = &PathBuf> {
        self.flags.positional.iter().chain(&self.flags.model)
    }

    /// Whether it is said on standard error which test runs.
    pub(crate) fn says_progress(&self) -> bool {
        self.flags.global.progress.is_some_and(|how| how != ProgressMode::None)
    }

    /// Checks what clap cannot.
    ///
    /// # Errors
    /// Wrong use (2), or a device that is not there (6).
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.flags.foreign.check()?;
        if self.models().next().is_none() && !self.flags.load.child {
            return Err(Failure::usage("no model: minfer-bench MODEL.mpk"));
        }
        let grid = self.grid()?;
        for &device in &self.flags.device.device {
            check_device(device)?;
        }
        if grid.tests().is_empty() && !self.flags.load.load {
            return Err(Failure::usage("no test: -p and -n are 0"));
        }
        let n_ctx = grid.n_ctx() as u64;
        if n_ctx > MAX_CTX {
            return Err(Failure::usage(format!("a test of {n_ctx} positions, at most {MAX_CTX}")));
        }
        Ok(())
    }

    fn or(&self, values: Vec<usize>, default: usize) -> Vec<usize> {
        if values.is_empty() { vec![default] } else { values }
    }

    /// Prompt lengths that were asked for by name.
    pub(crate) fn given_prompts(&self) -> Vec<usize> {
        numbers(&self.flags.test.n_prompt)
    }

    /// The tests.
    ///
    /// # Errors
    /// Too many tests or a variable with a value that is none (2), or a tier that this processor does
    /// not have (6).
    pub(crate) fn grid(&self) -> Result<Grid, Failure> {
        let Flags { test, device, .. } = &self.flags;
        let switches = Switches::read()?;
        let n_threads = self.or(numbers(&device.threads), cli::threads(None));
        let mut grid = Grid {
            placements: Vec::new(),
            tiers: self.tiers()?,
            batches: self.batches()?,
            n_threads,
            n_depth: self.or(numbers(&test.n_depth), 0),
            n_prompt: self.or(numbers(&test.n_prompt), 512),
            n_gen: self.or(numbers(&test.n_gen), 128),
            pairs: test.pg.iter().map(|&(pp, tg)| (pp as usize, tg as usize)).collect(),
        };
        grid.placements = self.placements(&grid, switches)?;
        grid.check()?;
        // A model makes room for the longest of its tests.
        let n_ctx = grid.n_ctx();
        grid.placements.iter_mut().for_each(|placement| placement.n_ctx = n_ctx);
        Ok(grid)
    }

    /// `-b` and `-ub`. There, tokens are handed over by the one and computed together by the other;
    /// here both name the second number.
    fn batches(&self) -> Result<Vec<Batch>, Failure> {
        let test = &self.flags.test;
        let (given, together) = (numbers(&test.batch_size), numbers(&test.ubatch_size));
        check_combinations(&[given.len().max(1), together.len().max(1)])?;
        let same = |n| Batch { given: n, together: n };
        Ok(match (given.is_empty(), together.is_empty()) {
            (true, true) => vec![same(512)],
            (false, true) => given.into_iter().map(same).collect(),
            (true, false) => together.into_iter().map(same).collect(),
            (false, false) => {
                let of =
                    |&given| together.iter().map(move |&n| Batch { given, together: n.min(given) });
                given.iter().flat_map(of).collect()
            }
        })
    }

    fn placements(&self, grid: &Grid, switches: Switches) -> Result<Vec<Placement>, Failure> {
        let given = &self.flags.device;
        let lists = given.gpu_layers.iter().flat_map(|list| list.0.iter().copied());
        let mut layers: Vec<Option<Layers>> = lists.collect();
        if layers.is_empty() {
            layers.push(None);
        }
        let devices = match given.device.as_slice() {
            [] => &[Device::Auto][..],
            list => list,
        };
        let prefill = match given.prefill.as_slice() {
            [] => &[Prefill::Auto][..],
            list => list,
        };
        check_combinations(&[layers.len(), devices.len(), prefill.len()])?;
        let n_batch = grid.batches.iter().map(|batch| batch.together).max().unwrap_or(1);
        let mut placements = Vec::new();
        for &layers in &layers {
            for &device in devices {
                let of =
                    |&prefill| Placement { device, prefill, layers, n_ctx: 0, n_batch, switches };
                placements.extend(prefill.iter().map(of));
            }
        }
        Ok(placements)
    }

    fn tiers(&self) -> Result<Vec<Tier>, Failure> {
        let names = &self.flags.device.tier;
        if names.is_empty() {
            return Ok(vec![tier()?]);
        }
        names.iter().map(|name| tier_named("--tier", name)).collect()
    }
}

fn numbers(lists: &[Numbers]) -> Vec<usize> {
    lists.iter().flat_map(|list| list.0.iter().map(|&n| n as usize)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::long_names;
    use crate::output::Format;
    use crate::plan::Test;

    fn parse(line: &[&str]) -> Result<Args, String> {
        // As `cli` renames them.
        let long = |arg: &&str| {
            let names = long_names();
            names.iter().find(|(short, _)| short == arg).map_or(*arg, |(_, long)| *long).to_owned()
        };
        let argv = ["minfer-bench"].iter().chain(line).map(long);
        let matches = Args::command().try_get_matches_from(argv).map_err(|e| e.to_string())?;
        let args = Args::from_arg_matches(&matches).map_err(|e| e.to_string())?;
        args.check().map_err(|e| format!("{} {}", e.code.code(), e.message))?;
        Ok(args)
    }

    fn names(line: &[&str]) -> Vec<String> {
        let grid = parse(line).unwrap().grid().unwrap();
        grid.tests().iter().map(|(_, test)| test.name()).collect()
    }

    fn batches(grid: &Grid) -> Vec<(usize, usize)> {
        grid.batches.iter().map(|batch| (batch.given, batch.together)).collect()
    }

    #[test]
    fn the_command_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_llama_benchs() {
        assert_eq!(names(&["m.mpk"]), ["pp512", "tg128"]);
        let args = parse(&["m.mpk"]).unwrap();
        let grid = args.grid().unwrap();
        assert_eq!((batches(&grid), grid.n_depth), (vec![(512, 512)], vec![0]));
        assert_eq!(args.flags.test.repetitions, 5);
        assert_eq!(args.flags.out.output, Format::Md);
        assert_eq!(grid.placements.len(), 1);
        assert_eq!((grid.placements[0].n_ctx, grid.placements[0].layers), (512, None));
    }

    #[test]
    fn lists_and_repetition() {
        let args =
            parse(&["a.mpk", "-m", "b.mpk,c.mpk", "-m", "d.mpk", "-p", "1,2", "-p", "4-8*2"])
                .unwrap();
        let models: Vec<_> = args.models().map(|m| m.to_str().unwrap()).collect();
        assert_eq!(models, ["a.mpk", "b.mpk", "c.mpk", "d.mpk"]);
        assert_eq!(args.grid().unwrap().n_prompt, [1, 2, 4, 8]);
        // Of flags with one value the last counts.
        let args = parse(&["m", "-r", "3", "-r", "2", "-o", "csv", "-o", "sql"]).unwrap();
        assert_eq!((args.flags.test.repetitions, args.flags.out.output), (2, Format::Sql));
        assert_eq!(names(&["m", "-p", "0", "-n", "8", "-d", "0,4"]), ["tg8", "tg8 @ d4"]);
        assert_eq!(
            names(&["m", "-p", "0", "-n", "0", "-pg", "4,2", "-pg", "0,3"]),
            ["pp4+tg2", "tg3"]
        );
        let grid =
            parse(&["m", "-t", "1,2", "-b", "64-128*2", "-ngl", "-1,0,8-10", "-ngl", "auto"]);
        let grid = grid.unwrap().grid().unwrap();
        assert_eq!(batches(&grid), [(64, 64), (128, 128)]);
        assert_eq!(grid.n_threads, [1, 2]);
        let layers: Vec<_> = grid.placements.iter().map(|p| p.layers).collect();
        let last = |n| Some(Layers::Last(n));
        assert_eq!(layers, [None, last(0), last(8), last(9), last(10), Some(Layers::Auto)]);
    }

    #[test]
    fn a_device_goes_by_llama_benchs_flag() {
        assert!(parse(&["m", "-dev", "none"]).is_ok());
    }

    #[test]
    fn flags_that_switch_nothing_here_are_explained() {
        for fine in [
            ["-fa", "1"],
            ["-fa", "on,auto"],
            ["-ctk", "f16"],
            ["--cache-type-v", "f16"],
            ["-ub", "512"],
            ["-ub", "128"],
            ["--prio", "0"],
            ["-mmp", "1"],
            ["--repack", "0"],
            ["--poll", "0,100"],
            ["--poll", "0-100+50,3"],
            ["--offline", "--offline"],
            ["-mg", "0"],
            ["-nopo", "1"],
            ["-sm", "layer"],
            ["-C", "0x0"],
        ] {
            assert!(parse(&[&["m.mpk"], &fine[..]].concat()).is_ok(), "{fine:?}");
        }
        for (bad, message) in [
            (["-fa", "0"], "2 -fa 0: attention never"),
            (["-ctk", "q8_0"], "2 -ctk q8_0: keys are kept as f16 (accepted: f16)"),
            (["--prio", "2"], "2 --prio 2: the priority stays"),
            (["-hf", "a/b"], "2 -hf a/b: models are local files"),
            (["--poll", "101"], "2 --poll 101: threads that wait spin"),
            (["--poll", "busy"], "2 --poll busy: threads that wait spin"),
            (["--poll", "90-110"], "2 --poll 90-110: threads that wait spin"),
            (["-mg", "1"], "2 -mg 1: a model is on one GPU: --device cuda:N (accepted: 0)"),
            (["-fitt", "1024"], "2 -fitt 1024: --gpu-layers auto"),
        ] {
            let error = parse(&[&["m.mpk"], &bad[..]].concat()).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }

    /// A pasted command line with every default of llama-bench (build 11434) spelled out.
    #[test]
    fn llama_benchs_defaults_are_accepted() {
        let line = "-m m.mpk -r 5 --prio 0 --delay 0 -o md -fitt 0 -fitc 4096 -p 512 -n 128 -d 0 -b 2048 \
                    -ub 512 -ctk f16 -ctv f16 -t 4 -C 0x0 --cpu-strict 0 --poll 50 -ngl -1 -ncmoe 0 \
                    -sm layer -mg 0 -nkvo 0 -fa auto -dev auto -lm auto -lzm auto -embd 0 -ts 0 \
                    -nopo 0 --no-host 0 --repack 1 --offline --progress";
        let grid = parse(&line.split_whitespace().collect::<Vec<_>>()).unwrap().grid().unwrap();
        let tests: Vec<_> = grid.tests().iter().map(|(_, test)| *test).collect();
        assert_eq!(tests.iter().map(Test::name).collect::<Vec<_>>(), ["pp512", "tg128"]);
        assert_eq!((tests[0].n_batch, tests[0].n_ubatch), (2048, 512));
        assert_eq!(grid.placements[0].n_batch, 512, "what is computed together");
    }

    #[test]
    fn what_is_computed_together_is_the_smaller_of_both() {
        let of = |line: &[&str]| batches(&parse(&[&["m"], line].concat()).unwrap().grid().unwrap());
        assert_eq!(of(&["-b", "2048"]), [(2048, 2048)]);
        assert_eq!(of(&["-ub", "1024"]), [(1024, 1024)]);
        assert_eq!(
            of(&["-b", "256,2048", "-ub", "128-512*4"]),
            [(256, 128), (256, 256), (2048, 128), (2048, 512)]
        );
    }

    /// Each list alone is short enough.
    #[test]
    fn lists_that_make_more_tests_than_memory_holds_are_wrong_use() {
        let many = "1-4000";
        for line in [
            &["-p", many, "-d", many][..],
            &["-p", many, "-n", many, "-d", many, "-b", many],
            &["-b", many, "-ub", many],
            &["-ngl", many, "-t", "1-1000"],
            &["-ngl", many, "-dev", "cpu,cpu,cpu,cpu,cpu", "--prefill", "mmq,bf16,auto,mmq,bf16"],
            &["--load", "-p", many, "-t", "1-1000"],
        ] {
            let error = parse(&[&["m"], line].concat()).unwrap_err();
            assert_eq!(error, "2 more than 65536 tests: the lists are too long", "{line:?}");
        }
        assert_eq!(names(&["m", "-p", "1-4000", "-n", "1-4000", "-d", "0-7"]).len(), 64_000);
    }

    #[test]
    fn wrong_use() {
        for bad in [
            &["m", "-p", "x"][..],
            &["m", "-p", "4-1"],
            &["m", "-n", "1-4+0"],
            &["m", "-pg", "4"],
            &["m", "-p", "0", "-n", "0"],
            &["m", "-t", "0"],
            &["m", "-t", "4096"],
            &["m", "-b", "0"],
            &["m", "-b", "40000"],
            &["m", "-ub", "0"],
            &["m", "-r", "0"],
            &["m", "-o", "xml"],
            &["m", "-o", "md", "--json"],
            &["m", "--tier", "sse9"],
            &["m", "--device", "tpu"],
            &["m", "--prefill", "fp4"],
            &["m", "--cold"],
            &["m", "--child"],
            &["m", "-ngl", "some"],
            &["m", "-p", "1000000000", "-d", "1000000000"],
            &["m", "--unknown"],
            &[],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn progress_needs_no_value() {
        assert!(parse(&["--progress", "m.mpk"]).unwrap().says_progress());
        assert!(!parse(&["m.mpk"]).unwrap().says_progress());
        assert!(!parse(&["--progress=none", "m.mpk"]).unwrap().says_progress());
    }
}
