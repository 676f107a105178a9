//! A sandbox's files, as its inhabitants see them.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use dsec_sandbox::Sandbox;

use super::{Error, Info, Names, Tree};

impl Tree for Sandbox {
    fn look(&self, path: &str) -> Result<Info, Error> {
        match super::last_step(path) {
            Some(_) => Ok(Info::of(&self.stat_link(path)?, self.state().id_base)),
            // The root, or what ends in dots, is no link.
            None => self.look_through(path),
        }
    }

    fn look_through(&self, path: &str) -> Result<Info, Error> {
        Ok(Info::of(&self.stat(path)?, self.state().id_base))
    }

    fn names(&self, path: &str) -> Result<Names, Error> {
        Ok(Box::new(self.entries(path)?.map(|entry| Ok(entry?.name))))
    }

    fn read_link(&self, path: &str) -> Result<Vec<u8>, Error> {
        Ok(Self::read_link(self, path)?)
    }

    fn open(&self, path: &str) -> Result<(impl Read, Info), Error> {
        let file = self.open_file(path)?;
        let stat = rustix::fs::fstat(file.as_fd());
        let stat = stat.map_err(|errno| Error::Local { what: "look at", path: path.into(), errno })?;
        Ok((file, Info::of(&stat, self.state().id_base)))
    }

    fn create(&self, path: &str, mode: u32, (uid, gid): (u32, u32)) -> Result<impl Write, Error> {
        Ok(self.create_file(path, mode, uid, gid)?)
    }

    fn create_directory(&self, path: &str, mode: u32, (uid, gid): (u32, u32)) -> Result<(), Error> {
        Ok(Self::create_directory(self, path, mode, uid, gid)?)
    }

    fn create_link(&self, target: &str, path: &str, (uid, gid): (u32, u32)) -> Result<(), Error> {
        Ok(Self::create_link(self, target, path, uid, gid)?)
    }
}
