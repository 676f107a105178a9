//! Asking `dsec-mountd` from asynchronous code: the shared client, on threads that may wait.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dsec_format::protocol::mountd::{Mounted, Status};
use dsec_format::refs::Spec;
pub use dsec_mountd_client::Error;

/// A client. Clones ask over the same connections.
#[derive(Debug, Clone)]
pub struct Client(Arc<dsec_mountd_client::Client>);

impl Client {
    /// A client of the daemon at `socket`; no request takes longer than `deadline`. Nothing is connected yet.
    #[must_use]
    pub fn new(socket: &Path, deadline: Duration) -> Self {
        Self(Arc::new(dsec_mountd_client::Client::new(socket, deadline)))
    }

    /// The client itself, for a thread that may wait.
    #[must_use]
    pub fn blocking(&self) -> &dsec_mountd_client::Client {
        &self.0
    }

    /// Mounts an image's layers for a holder. A caller that goes away does not stop it.
    ///
    /// # Errors
    /// As [`Error`].
    pub async fn mount(&self, image: &Spec, holder: &str) -> Result<Mounted, Error> {
        let (image, holder) = (image.clone(), holder.to_owned());
        self.ask(move |client| client.mount(&image, &holder)).await
    }

    /// Gives up what a holder holds.
    ///
    /// # Errors
    /// As [`Error`].
    pub async fn release(&self, holder: &str) -> Result<(), Error> {
        let holder = holder.to_owned();
        self.ask(move |client| client.release(&holder)).await
    }

    /// The daemon's state.
    ///
    /// # Errors
    /// As [`Error`].
    pub async fn status(&self) -> Result<Status, Error> {
        self.ask(dsec_mountd_client::Client::status).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dsec_mountd_client::Client) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let client = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || ask(&client)).await {
            Ok(answer) => answer,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Only a runtime that shuts down ends a thread before it began.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;
    use std::os::unix::net::UnixListener;

    use dsec_format::protocol::mountd::{Reply, Request};
    use dsec_mountd_client::line;

    #[tokio::test]
    async fn requests_at_once_do_not_wait_for_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("mountd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let mut streams = [(); 3].map(|()| BufReader::new(listener.accept().unwrap().0));
            // Nobody is answered before all have asked.
            let asked = streams.each_mut().map(|stream| line::read::<Request>(stream).unwrap().unwrap());
            streams.iter_mut().for_each(|stream| line::write(stream.get_mut(), &Reply::Released).unwrap());
            asked
        });
        let client = Client::new(&socket, Duration::from_secs(10));
        let answers = tokio::join!(client.release("a"), client.release("b"), client.release("c"));
        assert!(matches!(answers, (Ok(()), Ok(()), Ok(()))), "{answers:?}");
        assert_eq!(server.join().unwrap().len(), 3);
        // A caller on a thread of the runtime is not held up, and is told what is wrong.
        assert!(matches!(client.status().await, Err(Error::Unreachable { .. })));
    }
}
