//! Environments: a base image, a workspace and toolkits, each versioned on its own.
//!
//! Composition is a list of layers, the base's first: a toolkit adds to the tree, it does not hide it.

use serde::{Deserialize, Serialize};

use crate::image::Config;
use crate::json::{self, Object};
use crate::{EnvironmentDigest, ImageDigest};

/// The `format` key of an environment.
pub const FORMAT: &str = "dsec.environment.v1";
/// No environment has more toolkits.
pub const MAX_TOOLKITS: usize = 64;

/// An environment. Stored as canonical JSON; its digest is BLAKE3 of that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// [`FORMAT`].
    pub format: String,
    /// The base image.
    pub base: ImageDigest,
    /// The task's repository and dependencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<ImageDigest>,
    /// Tools that are added, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub toolkits: Vec<ImageDigest>,
    /// What differs from the base image's configuration.
    #[serde(default, skip_serializing_if = "Config::is_empty")]
    pub config: Config,
    /// Limits of a sandbox that is made of it.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
}

/// Limits of a sandbox. What is absent is decided by the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// CPU, thousandths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

impl Limits {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Object for Environment {
    const OBJECT: &'static str = "environment";
    const FORMAT: &'static str = FORMAT;
}

/// Why bytes are not the named environment.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a canonical environment.
    #[error(transparent)]
    Json(#[from] json::Error),
    /// Other bytes than the digest names.
    #[error("environment does not match digest {expected}")]
    Digest {
        /// The name that was asked for.
        expected: EnvironmentDigest,
    },
    /// Too many toolkits.
    #[error("environment has {toolkits} toolkits, allowed are {MAX_TOOLKITS}")]
    Toolkits {
        /// Its number of toolkits.
        toolkits: usize,
    },
}

impl Environment {
    /// An environment of a base alone.
    #[must_use]
    pub fn new(base: ImageDigest) -> Self {
        Self {
            format: FORMAT.to_owned(),
            base,
            workspace: None,
            toolkits: Vec::new(),
            config: Config::default(),
            limits: Limits::default(),
        }
    }

    /// The images it is composed of, the base first.
    pub fn images(&self) -> impl Iterator<Item = &ImageDigest> {
        std::iter::once(&self.base).chain(&self.workspace).chain(&self.toolkits)
    }

    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        json::encode(self)
    }

    /// The name of the environment.
    #[must_use]
    pub fn digest(&self) -> EnvironmentDigest {
        EnvironmentDigest::of(&self.encode())
    }

    /// Decodes the environment of a name.
    ///
    /// # Errors
    /// [`Error::Digest`] first: nothing is decoded that the name does not cover.
    pub fn decode(bytes: &[u8], expected: &EnvironmentDigest) -> Result<Self, Error> {
        if EnvironmentDigest::of(bytes) != *expected {
            return Err(Error::Digest { expected: *expected });
        }
        let environment: Self = json::decode(bytes)?;
        if environment.toolkits.len() > MAX_TOOLKITS {
            return Err(Error::Toolkits { toolkits: environment.toolkits.len() });
        }
        Ok(environment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_order() {
        let (base, workspace, tool) = (ImageDigest::of(b"b"), ImageDigest::of(b"w"), ImageDigest::of(b"t"));
        let mut environment = Environment::new(base);
        environment.workspace = Some(workspace);
        environment.toolkits = vec![tool];
        environment.limits.pids = Some(100);
        let bytes = environment.encode();
        assert_eq!(Environment::decode(&bytes, &environment.digest()).unwrap(), environment);
        assert_eq!(environment.images().collect::<Vec<_>>(), [&base, &workspace, &tool]);
    }
}
