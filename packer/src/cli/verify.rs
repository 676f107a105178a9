//! `verify`: is an image whole, and is it the same as a directory?

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use dsec_commandline::Exit;
use dsec_commandline::quantity::bytes_text;
use dsec_format::ImageDigest;
use dsec_format::refs::Spec;
use dsec_pack::compare::{Aspect, Difference, Totals};
use dsec_pack::verify::{Finding, Verified, verify_against, verify_image};
use dsec_store::LocalStore;
use serde::Serialize;

use super::context::Context;
use super::failures::Found;
use super::limits::raise_open_files;
use super::names;

/// Check that an image is whole, and that it is the same as a directory
///
/// Everything that the image reaches is read and checked against its digest. With --against, what the image shows is
/// compared with a directory: names, kinds, modes, ids, times to the nanosecond, sizes, bytes, symlink targets, device
/// numbers, xattrs, link groups, holes. Whatever is found is listed, and the exit code is 10.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// NAME, NAME:TAG or digest
    image: Spec,
    /// Compare with this directory
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// What not to compare
    #[arg(
        long,
        value_name = "WHAT",
        value_delimiter = ',',
        requires = "against",
        value_parser = PossibleValuesParser::new(Aspect::ALL.map(Aspect::word)),
    )]
    ignore: Vec<String>,
    /// List no more than this many findings and differences of each kind; all are counted
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
}

#[derive(Debug, Serialize)]
struct Report {
    image: ImageDigest,
    verified: Verified,
    findings: Vec<Finding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Against>,
}

#[derive(Debug, Serialize)]
struct Against {
    directory: PathBuf,
    compared: Totals,
    differences: Vec<Difference>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verified { layers, inodes, chunks, bytes, findings } = self.verified;
        writeln!(f, "{}", self.image)?;
        let data = bytes_text(bytes);
        writeln!(f, "verified  {layers} layers, {inodes} inodes, {chunks} chunks, {data}: {findings} findings")?;
        self.findings.iter().try_for_each(|finding| writeln!(f, "  {}: {}", finding.object, finding.what))?;
        let Some(against) = &self.against else { return Ok(()) };
        let Totals { entries, bytes, differences } = against.compared;
        let data = bytes_text(bytes);
        writeln!(
            f,
            "compared  {entries} entries, {data}, with {}: {differences} differences",
            against.directory.display()
        )?;
        against.differences.iter().try_for_each(|difference| writeln!(f, "  {difference}"))
    }
}

impl Verify {
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<Exit> {
        raise_open_files()?;
        let store = LocalStore::open(&context.store_directory()?)?;
        let (digest, image) = names::find(&store, &self.image)?;
        let (monitor, cancel) = (&context.progress, &context.cancel);
        let mut findings = Vec::new();
        let mut tell = |finding| {
            if findings.len() < self.limit {
                findings.push(finding);
            }
        };
        let verified = verify_image(&store, &image, monitor, cancel, &mut tell)?;
        let mut report = Report { image: digest, verified, findings, against: None };
        if let (Some(directory), 0) = (&self.against, verified.findings) {
            let ignore: Vec<Aspect> =
                Aspect::ALL.into_iter().filter(|aspect| self.ignore.iter().any(|word| word == aspect.word())).collect();
            let mut differences = Vec::new();
            let mut tell = |difference: Difference| {
                if differences.len() < self.limit {
                    differences.push(difference);
                }
            };
            let compared = verify_against(&store, &image, directory, &ignore, monitor, cancel, &mut tell)?;
            report.against = Some(Against { directory: directory.clone(), compared, differences });
        }
        context.progress.clear();
        context.output.print(&report)?;
        let image = self.image.to_string();
        match report.against.map_or(0, |against| against.compared.differences) {
            _ if verified.findings > 0 => Err(Found::Damage { image, count: verified.findings }.into()),
            0 => Ok(Exit::Success),
            count => {
                let directory = self.against.unwrap_or_default().display().to_string();
                Err(Found::Differences { image, directory, count }.into())
            }
        }
    }
}
