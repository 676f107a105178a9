//! `man`: the manual pages.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::context::Context;
use super::exit::Exit;

/// Write the manual pages, one per subcommand, into a directory
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Where to; made when it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Debug, Serialize)]
struct Written {
    pages: Vec<PathBuf>,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pages.iter().try_for_each(|page| writeln!(f, "{}", page.display()))
    }
}

impl Man {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        fs_err::create_dir_all(&self.directory)?;
        clap_mangen::generate_to(super::command(), &self.directory)?;
        let pages = fs_err::read_dir(&self.directory)?.map(|entry| entry.map(|entry| entry.path()));
        let mut pages: Vec<PathBuf> = pages.collect::<Result<_, _>>()?;
        pages.retain(|page| page.extension().is_some_and(|extension| extension == "1"));
        pages.sort();
        context.output.print(&Written { pages })?;
        Ok(Exit::Success)
    }
}
