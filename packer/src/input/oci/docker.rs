//! The archives that `docker save` and `skopeo copy … docker-archive:` write: `manifest.json` names the configuration and
//! the layers of each image by the paths of members.
//!
//! A configuration is checked against its name where that is a digest; every layer against its diff id.

use serde::Deserialize;

use super::blob::{Layout, check, parse};
use super::document;
use super::{Blob, Error, Found};

/// An entry of `manifest.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Saved {
    fn tags(&self) -> &[String] {
        self.repo_tags.as_deref().unwrap_or_default()
    }
}

/// The image with this tag, or the only one.
pub(super) fn find(layout: &Layout, wanted: Option<&str>) -> Result<Found, Error> {
    const MANIFEST: &str = "manifest.json";
    let saved: Vec<Saved> = parse(MANIFEST, &layout.small_file(MANIFEST)?)?;
    let names = || saved.iter().flat_map(Saved::tags).map(String::as_str).collect::<Vec<_>>().join(", ");
    let chosen = match wanted {
        Some(wanted) => {
            let found = saved.iter().find(|image| image.tags().iter().any(|tag| tag == wanted));
            found.ok_or_else(|| Error::NoSuchRef { wanted: wanted.to_owned(), names: names() })?
        }
        None => match saved.as_slice() {
            [] => return Err(Error::Empty),
            [only] => only,
            _ => return Err(Error::Several { names: names() }),
        },
    };
    let config = layout.small_file(&chosen.config)?;
    if let Some(digest) = digest_of_name(&chosen.config) {
        check(&digest, &config)?;
    }
    let image: document::Image = parse(&chosen.config, &config)?;
    Ok(Found { image, layers: chosen.layers.iter().cloned().map(Blob::Member).collect() })
}

/// `HEX.json` or `blobs/sha256/HEX`.
fn digest_of_name(name: &str) -> Option<String> {
    let last = name.rsplit('/').next().unwrap_or(name);
    let hex = last.strip_suffix(".json").unwrap_or(last);
    let is_digest = hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_digest.then(|| format!("sha256:{hex}"))
}
