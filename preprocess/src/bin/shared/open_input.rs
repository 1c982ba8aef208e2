//! Opening an input: one file, or all parts of a split GGUF, given any of them.

use std::fs::File;
use std::path::{Path, PathBuf};

use cli::Failure;
use preprocess::{Input, PartName, part_of};

/// Opens `path`, and the other parts if it is a part of a model.
pub(crate) fn open(path: &Path) -> Result<Input<File>, Failure> {
    let (file, len_bytes) = cli::open_regular(path)?;
    let Some(split) = part_of(&file, len_bytes) else {
        return Input::open(file, len_bytes).map_err(|error| error.failure(path));
    };
    let name = path.file_name().and_then(PartName::parse);
    let Some(name) =
        name.filter(|name| (name.part, name.n_parts) == (split.part + 1, split.n_parts))
    else {
        let wanted = format!("-{:05}-of-{:05}.gguf", split.part + 1, split.n_parts);
        return Err(Failure::input(format!(
            "{}: is part {} of a model split over {} files: its name must end in {wanted}, with the \
             other parts beside it (parts that were joined with cat are no model)",
            path.display(),
            split.part + 1,
            split.n_parts,
        )));
    };
    let paths: Vec<_> = (1..=split.n_parts).map(|i| path.with_file_name(name.of(i))).collect();
    let opened: Result<Vec<_>, _> = paths.iter().map(|path| cli::open_regular(path)).collect();
    Input::open_parts(opened?)
        .map_err(|(i, error)| error.failure(paths.get(i).map_or(path, PathBuf::as_path)))
}
