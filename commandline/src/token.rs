//! The token that lets a client in at a registry.

use std::io;
use std::path::PathBuf;

use clap::Args;

/// The variable that holds the token itself. Not an option: a command line can be read by everyone.
pub const VARIABLE: &str = "DSEC_TOKEN";

/// How a client gets its token.
#[derive(Debug, Clone, Default, Args)]
pub struct TokenFile {
    /// A file with the registry's token [default: the variable DSEC_TOKEN holds the token itself]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenFile {
    /// The token: that of the file, else `variable`, the value of [`VARIABLE`]. An empty one is none.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self, variable: Option<String>) -> io::Result<Option<String>> {
        let token = match &self.token_file {
            Some(path) => Some(fs_err::read_to_string(path)?),
            None => variable,
        };
        Ok(token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_wins_and_nothing_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        fs_err::write(&path, " secret\n").unwrap();
        let file = TokenFile { token_file: Some(path) };
        assert_eq!(file.read(Some("other".into())).unwrap().as_deref(), Some("secret"));
        let none = TokenFile::default();
        assert_eq!(none.read(Some("other\n".into())).unwrap().as_deref(), Some("other"));
        assert_eq!(none.read(Some(" ".into())).unwrap(), None);
        assert_eq!(none.read(None).unwrap(), None);
    }
}
