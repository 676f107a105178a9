//! Which names are one inode: the same groups on both sides?

use std::collections::HashMap;

use crate::tree::Identity;

/// First names of the inodes met so far that may have several.
#[derive(Debug, Default)]
pub(super) struct Links {
    image: HashMap<Identity, Vec<u8>>,
    directory: HashMap<Identity, Vec<u8>>,
}

/// What meeting a name showed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Met {
    /// Both sides had this inode under the same name before, so its content has been compared.
    pub(super) again: bool,
    /// The sides do not agree on the first name of the inode.
    pub(super) difference: Option<Disagreement>,
}

/// The name that each side had the inode under before, if any.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Disagreement {
    pub(super) image: Option<Vec<u8>>,
    pub(super) directory: Option<Vec<u8>>,
}

fn first_name(seen: &mut HashMap<Identity, Vec<u8>>, path: &[u8], identity: Option<Identity>) -> Option<Vec<u8>> {
    let first = seen.entry(identity?).or_insert_with(|| path.to_vec());
    (first != path).then(|| first.clone())
}

impl Links {
    /// Notes a name that both sides have. Groups are equal exactly when, at every name, the first name of its inode is
    /// the same on both sides.
    pub(super) fn meet(&mut self, path: &[u8], image: Option<Identity>, directory: Option<Identity>) -> Met {
        let image = first_name(&mut self.image, path, image);
        let directory = first_name(&mut self.directory, path, directory);
        if image == directory {
            return Met { again: image.is_some(), difference: None };
        }
        Met { again: false, difference: Some(Disagreement { image, directory }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_compared_by_first_names() {
        let mut links = Links::default();
        let id = |n| Some((0, 0, n));
        assert_eq!(links.meet(b"a", id(1), id(7)), Met { again: false, difference: None });
        assert_eq!(links.meet(b"b", id(1), id(7)), Met { again: true, difference: None });
        let split = links.meet(b"c", id(1), id(8)).difference;
        assert_eq!(split, Some(Disagreement { image: Some(b"a".to_vec()), directory: None }));
        let joined = links.meet(b"d", None, id(8)).difference;
        assert_eq!(joined, Some(Disagreement { image: None, directory: Some(b"c".to_vec()) }));
        assert_eq!(links.meet(b"e", id(9), None), Met { again: false, difference: None });
    }
}
