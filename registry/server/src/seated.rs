//! The service of one connection, which tells when a request begins and when it was answered.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;

use crate::connections::Seat;

/// The routes, on a connection.
pub(crate) struct Seated {
    pub(crate) router: TowerToHyperService<axum::Router>,
    pub(crate) seat: Arc<Seat>,
}

impl Service<Request<Incoming>> for Seated {
    type Response = Response<Answer>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.seat.begin();
        let (response, under_way) = (self.router.call(request), UnderWay(Arc::clone(&self.seat)));
        Box::pin(async move { Ok(response.await?.map(|body| Answer { body, _under_way: under_way })) })
    }
}

/// Until the answer was handed over, or given up.
struct UnderWay(Arc<Seat>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.idle();
    }
}

/// The body of an answer.
pub(crate) struct Answer {
    body: Body,
    _under_way: UnderWay,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
