//! The real programs, run by tests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The binary of one of our crates, built as this test was. It is built now if that has not been done: what is tested
/// is never older than the source.
///
/// # Errors
/// It cannot be built.
pub fn binary(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    // target/PROFILE/deps/test-HASH
    let profile = test.parent().and_then(Path::parent).context("a test lies in target/PROFILE/deps")?;
    let mut build = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    build.args(["build", "--quiet", "--package", name, "--bin", name]);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.file_name().is_some_and(|name| name == "release") {
        build.arg("--release");
    }
    if let Some(target) = profile.parent() {
        build.arg("--target-dir").arg(target);
    }
    let output = build.output().context("cargo cannot be run")?;
    ensure!(output.status.success(), "{name} cannot be built:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(profile.join(name))
}

/// A running `dsec-registry`. Killed when dropped.
#[derive(Debug)]
pub struct Registry {
    child: Child,
    /// Where it listens, `127.0.0.1:PORT`.
    pub address: String,
}

impl Registry {
    /// Serves the store at `store`, which is made when it is missing, with more arguments.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(store: &Path, arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(binary("dsec-registry")?)
            .args(["--log", "warn", "serve", "--create", "--listen", "127.0.0.1:0", "--store"])
            .arg(store)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .context("dsec-registry cannot be run")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output is a pipe")?).read_line(&mut line)?;
        let Some(address) = line.trim().strip_prefix("listening on ") else {
            bail!("dsec-registry did not start: {}", child.wait()?);
        };
        Ok(Self { address: address.to_owned(), child })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended by itself; gives its exit code.
    ///
    /// # Errors
    /// It was killed by a signal.
    pub fn wait(&mut self) -> Result<i32> {
        self.child.wait()?.code().context("dsec-registry was killed by a signal")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
