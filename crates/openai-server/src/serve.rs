//! The server on its sockets, and its end.

use crate::{
    config::ServerConfig,
    routes::router,
    state::{AppState, Phase},
    throughput,
    tls::Tls,
    watchdog,
};
use axum::serve::Listener;
use futures_util::future::{pending, select_all};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{future::Future, io, pin::pin, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};
use tokio_io_timeout::TimeoutStream;

/// How long connections may take to close once nothing runs any more.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves on all `listeners` until `shutdown` resolves and what runs then has finished.
///
/// From then on new generations get 503, `/ready` says no and every response closes its connection;
/// the sockets stay open, so that clients see the refusal and not a reset. After `drain_timeout`
/// what still runs ends with an error.
///
/// With [`ServerConfig::tls`] connections are encrypted.
///
/// An engine that dies ends it in the same way.
///
/// # Errors
/// The engine died.
pub async fn serve(
    mut listeners: Vec<TcpListener>,
    state: AppState,
    shutdown: impl Future<Output = ()> + Send + 'static,
    drain_timeout: Duration,
) -> io::Result<()> {
    let service = TowerToHyperService::new(router(state.clone()));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(state.0.config.header_timeout);
    let connections = GracefulShutdown::new();
    // Ends with this function.
    let mut reports = JoinSet::new();
    reports.spawn(throughput::report(state.clone()));
    reports.spawn(watchdog::watch(state.clone()));
    let mut drained = pin!(drain(&state, shutdown, drain_timeout));
    loop {
        let stream = tokio::select! {
            stream = accept(&mut listeners) => stream,
            () = &mut drained => break,
        };
        let io = Box::pin(patient(stream, state.0.config.write_timeout));
        let (http, service, watcher) = (http.clone(), service.clone(), connections.watcher());
        let ServerConfig { tls, header_timeout, .. } = &state.0.config;
        let (tls, patience) = (tls.as_ref().map(Tls::acceptor), *header_timeout);
        tokio::spawn(async move {
            let ended = match tls {
                None => {
                    let connection = http.serve_connection(TokioIo::new(io), service);
                    watcher.watch(connection).await.map_err(io::Error::other)
                }
                Some(tls) => match time::timeout(patience, tls.accept(io)).await {
                    Ok(Ok(io)) => {
                        let connection = http.serve_connection(TokioIo::new(io), service);
                        watcher.watch(connection).await.map_err(io::Error::other)
                    }
                    Ok(Err(error)) => Err(error),
                    Err(late) => Err(late.into()),
                },
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    drop(listeners);
    // A client that never finishes sending its request must not keep the process alive.
    let _ = time::timeout(CLOSE_TIMEOUT, connections.shutdown()).await;
    match state.0.engine.is_alive() {
        true => Ok(()),
        false => Err(io::Error::other("the engine has failed; the log says why")),
    }
}

/// The next connection to any of the listeners; never, without any.
async fn accept(listeners: &mut [TcpListener]) -> TcpStream {
    let accepts: Vec<_> = listeners.iter_mut().map(|l| Box::pin(Listener::accept(l))).collect();
    if accepts.is_empty() {
        return pending().await;
    }
    let ((stream, _), ..) = select_all(accepts).await;
    stream
}

/// A connection that breaks when its client stops reading.
fn patient(stream: TcpStream, timeout: Duration) -> TimeoutStream<TcpStream> {
    // Tokens are small packets: Nagle's algorithm would hold them back.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(timeout));
    stream
}

/// Waits for the signal, and then for what runs.
async fn drain(state: &AppState, shutdown: impl Future<Output = ()>, drain_timeout: Duration) {
    tokio::select! {
        () = shutdown => {}
        () = state.engine_died() => tracing::error!("the engine has failed; the server ends"),
    }
    state.set_phase(Phase::Draining);
    tracing::info!(in_flight = state.in_flight(), "draining");
    if time::timeout(drain_timeout, state.idle()).await.is_err() {
        tracing::warn!(in_flight = state.in_flight(), "drain timed out");
        state.set_phase(Phase::Stopped);
        // Long enough to send everyone the error.
        let _ = time::timeout(CLOSE_TIMEOUT, state.idle()).await;
    }
}
