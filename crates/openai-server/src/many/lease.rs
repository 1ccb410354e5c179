//! A model while a request uses it.

use super::{KeepAlive, Models, Served, failed, load::LoadState, table::Entry};
use crate::errors::ApiError;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};
use tokio::{sync::watch, time::Instant as Time};

/// A place among the requests of a model, which stays loaded meanwhile.
#[derive(Debug)]
struct Place {
    models: Models,
    name: String,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.models.table().leave(&self.name, self.id, Instant::now());
        self.models.settle();
    }
}

/// A loaded model, which stays so while this lives.
#[derive(Debug)]
pub(crate) struct Lease {
    // Dropped first: what is unloaded must have no owner.
    pub(crate) served: Arc<Served>,
    _place: Place,
}

impl Models {
    /// The model that a request names, loaded. Requests that come meanwhile wait for the same load.
    pub(crate) async fn lease(
        &self,
        asked: Option<&str>,
        keep: Option<KeepAlive>,
    ) -> Result<Lease, ApiError> {
        let missing = || ApiError::MissingParameter { param: "model".to_owned() };
        let asked = asked.or(self.0.models.default_model.as_deref()).ok_or_else(missing)?;
        let name = self.find(asked).await?.name;
        let keep = keep.unwrap_or(self.0.models.keep_alive).0;
        let deadline = Time::now() + self.0.models.patience;
        loop {
            let mut changes = self.0.changes.subscribe();
            let (sender, receiver) = watch::channel(LoadState::Waiting);
            let entry = self.table().enter(&name, keep, Instant::now(), receiver);
            let place = |id| Place { models: self.clone(), name: name.clone(), id };
            match entry {
                Entry::Ready(id, served) if served.state.0.engine.is_alive() => {
                    return Ok(Lease { served, _place: place(id) });
                }
                Entry::Ready(id, served) => {
                    drop((served, place(id)));
                    self.give_up_dead(&name);
                }
                Entry::Load(id, load) => {
                    let place = place(id);
                    tokio::spawn(self.clone().load(name.clone(), id, sender));
                    return self.await_load(place, load).await;
                }
                Entry::Wait(id, load) => return self.await_load(place(id), load).await,
                Entry::Later => {
                    if !self.another_look(&mut changes, deadline).await {
                        return Err(failed(&name, super::LibraryError::NoRoom));
                    }
                }
            }
        }
    }

    async fn await_load(
        &self,
        place: Place,
        mut load: watch::Receiver<LoadState>,
    ) -> Result<Lease, ApiError> {
        let ended = |state: &LoadState| matches!(state, LoadState::Done | LoadState::Failed(_));
        let end = load.wait_for(ended).await.map(|state| state.clone());
        match end {
            Ok(LoadState::Failed(source)) => Err(failed(&place.name, source)),
            Ok(_) => {
                let served = self.table().model(&place.name, place.id);
                let served = served.ok_or(ApiError::EngineGone)?;
                Ok(Lease { served, _place: place })
            }
            // The load has panicked, and its slot is gone.
            Err(_) => Err(ApiError::Internal),
        }
    }
}

/// A response's body, which holds the model until it is sent.
pub(crate) fn holding(body: Body, lease: Lease) -> Body {
    Body::new(Held { body, _lease: lease })
}

struct Held {
    body: Body,
    _lease: Lease,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
