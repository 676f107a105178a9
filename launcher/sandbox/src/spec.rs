//! What a sandbox is asked to be.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A sandbox's id: 1 to 63 of `a-z`, `0-9` and `-`, beginning with a letter or digit. It names cgroups and directories,
/// and is a valid host name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id(String);

/// A string that is no sandbox id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no sandbox id: 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit")]
pub struct IdError {
    /// The string.
    pub text: String,
}

impl Id {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Id {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        let character = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let valid = (1..=63).contains(&text.len()) && text.bytes().all(character) && !text.starts_with('-');
        if valid { Ok(Self(text)) } else { Err(IdError { text }) }
    }
}

impl std::str::FromStr for Id {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::try_from(text.to_owned())
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a sandbox may use. There is no "unlimited": a field left out of a request takes the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory, in bytes, `/dev/shm` and the page cache of its own files included.
    pub memory_bytes: u64,
    /// CPU time per second of wall time, in thousandths of a core.
    pub cpu_millis: u32,
    /// Processes and threads at once.
    pub pids: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory_bytes: 1 << 30, cpu_millis: 1000, pids: 1024 }
    }
}

impl Limits {
    /// Less memory than this and no program starts.
    pub const MEMORY_BYTES_MIN: u64 = 4 << 20;
    /// The kernel's shortest quota is a millisecond per period of 100.
    pub const CPU_MILLIS_MIN: u32 = 10;
}

/// How much a sandbox may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Set-id programs work: `su`, `sudo`, apt's own user.
    #[default]
    Default,
    /// `no_new_privs`, and no capability at all.
    Strict,
}

/// How many ids a sandbox has for itself.
pub const IDS: u32 = 65_536;

/// What a sandbox is made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its id, unique on the node.
    pub id: Id,
    /// The read-only layers, the base first: mounts made by the node's file system daemon, or plain directories.
    pub layers: Vec<PathBuf>,
    /// Where the upper, the overlay's work directory and the platform's own layer live: an absolute path on local disk
    /// that does not exist yet; its parent does.
    pub directory: PathBuf,
    /// What it may use.
    #[serde(default)]
    pub limits: Limits,
    /// The first of the 65,536 host ids that are this sandbox's own; a multiple of 65,536, and not 0.
    pub id_base: u32,
    /// Its host name.
    pub hostname: String,
    /// The environment that every command begins with.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Name servers for `/etc/resolv.conf`; none, and no name is resolved.
    #[serde(default)]
    pub nameservers: Vec<std::net::IpAddr>,
    /// How much it may do.
    #[serde(default)]
    pub profile: Profile,
}

/// A spec that no sandbox can be made from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is nothing to run in.
    #[error("sandbox {id} has no layer")]
    NoLayer {
        /// The sandbox.
        id: Id,
    },
    /// The kernel's overlay takes 500, and one is the platform's own.
    #[error("sandbox {id} has {count} layers, of at most {max}", max = Spec::LAYERS_MAX)]
    Layers {
        /// The sandbox.
        id: Id,
        /// How many it has.
        count: usize,
    },
    /// Ids of two sandboxes would overlap, or those of the host.
    #[error("id base {id_base} of sandbox {id} is not a multiple of {IDS} from {IDS} up")]
    IdBase {
        /// The sandbox.
        id: Id,
        /// What was asked for.
        id_base: u32,
    },
    /// A path that means something else for another process.
    #[error("{} of sandbox {id} is not an absolute path", path.display())]
    RelativePath {
        /// The sandbox.
        id: Id,
        /// The path.
        path: PathBuf,
    },
    /// Not a name that programs take.
    #[error("{hostname:?} of sandbox {id} is no host name: 1 to 63 of letters, digits, - and .")]
    HostName {
        /// The sandbox.
        id: Id,
        /// What was asked for.
        hostname: String,
    },
    /// A limit below what can work.
    #[error("{what} of sandbox {id} is {value}, of at least {least}")]
    Limit {
        /// The sandbox.
        id: Id,
        /// Which limit.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The least that works.
        least: u64,
    },
    /// A string that cannot be handed to a program.
    #[error(
        "environment variable {name:?} of sandbox {id} is empty, or it or its value has a = or a null byte out of place"
    )]
    Variable {
        /// The sandbox.
        id: Id,
        /// Its name.
        name: String,
    },
}

impl Spec {
    /// Most layers of a sandbox.
    pub const LAYERS_MAX: usize = 499;

    /// Whether a sandbox can be made of this, as far as the spec alone tells.
    ///
    /// # Errors
    /// The first [`SpecError`] found.
    pub fn check(&self) -> Result<(), SpecError> {
        let id = || self.id.clone();
        if self.layers.is_empty() {
            return Err(SpecError::NoLayer { id: id() });
        }
        if self.layers.len() > Self::LAYERS_MAX {
            return Err(SpecError::Layers { id: id(), count: self.layers.len() });
        }
        if self.id_base == 0 || !self.id_base.is_multiple_of(IDS) || self.id_base.checked_add(IDS).is_none() {
            return Err(SpecError::IdBase { id: id(), id_base: self.id_base });
        }
        for path in self.layers.iter().chain([&self.directory]) {
            if !path.is_absolute() {
                return Err(SpecError::RelativePath { id: id(), path: path.clone() });
            }
        }
        self.check_hostname()?;
        self.check_limits()?;
        match self.env.iter().find(|(name, value)| !is_variable(name, value)) {
            Some((name, _)) => Err(SpecError::Variable { id: id(), name: name.clone() }),
            None => Ok(()),
        }
    }

    fn check_hostname(&self) -> Result<(), SpecError> {
        let name = &self.hostname;
        let valid = (1..=63).contains(&name.len())
            && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'.')
            && !name.starts_with(['-', '.']);
        if valid { Ok(()) } else { Err(SpecError::HostName { id: self.id.clone(), hostname: name.clone() }) }
    }

    fn check_limits(&self) -> Result<(), SpecError> {
        let limits = [
            ("memory in bytes", self.limits.memory_bytes, Limits::MEMORY_BYTES_MIN),
            ("cpu in millis", self.limits.cpu_millis.into(), Limits::CPU_MILLIS_MIN.into()),
            ("the number of pids", self.limits.pids.into(), 2),
        ];
        for (what, value, least) in limits {
            if value < least {
                return Err(SpecError::Limit { id: self.id.clone(), what, value, least });
            }
        }
        Ok(())
    }
}

/// Whether a program can be handed this variable.
pub(crate) fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            id: "a-1".parse().unwrap(),
            layers: vec!["/layers/base".into()],
            directory: "/sandboxes/a-1".into(),
            limits: Limits::default(),
            id_base: IDS,
            hostname: "a-1".into(),
            env: vec![("PATH".into(), "/bin".into())],
            nameservers: Vec::new(),
            profile: Profile::Default,
        }
    }

    #[test]
    fn ids_are_names_of_cgroups_and_hosts() {
        for good in ["a", "7", "a-b-9", &"x".repeat(63)] {
            assert!(good.parse::<Id>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a/b", "..", "a.b", "a b", &"x".repeat(64)] {
            assert!(bad.parse::<Id>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_sound_spec_passes_and_each_fault_is_named() {
        assert_eq!(spec().check(), Ok(()));
        let refused = |change: &dyn Fn(&mut Spec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.check().unwrap_err()
        };
        assert!(matches!(refused(&|s| s.layers.clear()), SpecError::NoLayer { .. }));
        assert!(matches!(refused(&|s| s.layers = vec!["/x".into(); 500]), SpecError::Layers { .. }));
        assert!(matches!(refused(&|s| s.id_base = 0), SpecError::IdBase { .. }));
        assert!(matches!(refused(&|s| s.id_base = IDS + 1), SpecError::IdBase { .. }));
        assert!(matches!(refused(&|s| s.id_base = u32::MAX - IDS + 1), SpecError::IdBase { .. }));
        assert!(matches!(refused(&|s| s.directory = "x".into()), SpecError::RelativePath { .. }));
        assert!(matches!(refused(&|s| s.hostname = "a\nb".into()), SpecError::HostName { .. }));
        assert!(matches!(refused(&|s| s.limits.memory_bytes = 1), SpecError::Limit { .. }));
        assert!(matches!(refused(&|s| s.env = vec![("A=B".into(), String::new())]), SpecError::Variable { .. }));
    }

    #[test]
    fn a_left_out_limit_is_the_default_and_an_unknown_field_is_refused() {
        let limits: Limits = serde_json::from_str(r#"{"pids": 7}"#).unwrap();
        assert_eq!(limits, Limits { pids: 7, ..Limits::default() });
        assert!(serde_json::from_str::<Limits>(r#"{"memory": 7}"#).is_err());
    }
}
