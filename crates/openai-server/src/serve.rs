//! The server on its socket, and its end.

use crate::{
    routes::router,
    state::{AppState, Phase},
};
use axum::serve::ListenerExt;
use std::{future::Future, io, time::Duration};
use tokio::{net::TcpListener, sync::oneshot, time};

/// How long connections may take to close once nothing runs any more.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves until `shutdown` resolves and what runs then has finished.
///
/// From then on new generations get 503, `/ready` says no and every answer closes its connection;
/// the socket stays open, so that clients see the refusal and not a reset. After `drain_timeout`
/// what still runs ends with an error.
///
/// # Errors
/// The socket failed.
pub async fn serve(
    listener: TcpListener,
    state: AppState,
    shutdown: impl Future<Output = ()> + Send + 'static,
    drain_timeout: Duration,
) -> io::Result<()> {
    // Tokens are small packets: Nagle's algorithm would hold them back.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
    });
    let (drained, closing) = oneshot::channel();
    let drain_state = state.clone();
    let drain = async move {
        shutdown.await;
        drain_state.set_phase(Phase::Draining);
        tracing::info!(in_flight = drain_state.in_flight(), "draining");
        if time::timeout(drain_timeout, drain_state.idle()).await.is_err() {
            tracing::warn!(in_flight = drain_state.in_flight(), "drain timed out");
            drain_state.set_phase(Phase::Stopped);
            // Long enough to send everyone the error.
            let _ = time::timeout(CLOSE_TIMEOUT, drain_state.idle()).await;
        }
        let _ = drained.send(());
    };
    let server = axum::serve(listener, router(state)).with_graceful_shutdown(drain);
    // A client that never finishes sending its request must not keep the process alive.
    let overdue = async {
        let _ = closing.await;
        time::sleep(CLOSE_TIMEOUT).await;
    };
    tokio::select! {
        ended = server.into_future() => ended,
        () = overdue => Ok(()),
    }
}
