//! The server on its sockets, and its end.

use crate::{
    config::ServerConfig,
    many::Models,
    routes::{models_router, router},
    state::{AppState, Phase},
    throughput,
    tls::Tls,
    watchdog,
};
use axum::{Router, serve::Listener};
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
    // Ends with this function.
    let mut reports = JoinSet::new();
    reports.spawn(throughput::report(state.clone()));
    reports.spawn(watchdog::watch(state.clone()));
    let router = router(state.clone());
    let drained = drain(&state, shutdown, drain_timeout);
    run(&mut listeners, router, &state.0.config, drained).await;
    match state.0.engine.is_alive() {
        true => Ok(()),
        false => Err(io::Error::other("the engine has failed; the log says why")),
    }
}

/// [`serve`] for several models. One whose engine dies is loaded again.
pub async fn serve_models(
    mut listeners: Vec<TcpListener>,
    models: Models,
    shutdown: impl Future<Output = ()> + Send + 'static,
    drain_timeout: Duration,
) {
    let mut looks = JoinSet::new();
    looks.spawn(models.clone().look_after());
    let router = models_router(models.clone());
    let drained = drain_models(&models, shutdown, drain_timeout);
    run(&mut listeners, router, &models.0.config, drained).await;
}

/// Takes connections until `drained` resolves.
async fn run(
    listeners: &mut Vec<TcpListener>,
    router: Router,
    config: &ServerConfig,
    drained: impl Future<Output = ()>,
) {
    let service = TowerToHyperService::new(router);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(config.header_timeout);
    let connections = GracefulShutdown::new();
    let mut drained = pin!(drained);
    loop {
        let stream = tokio::select! {
            stream = accept(listeners) => stream,
            () = &mut drained => break,
        };
        let io = Box::pin(patient(stream, config.write_timeout));
        let (http, service, watcher) = (http.clone(), service.clone(), connections.watcher());
        let (tls, patience) = (config.tls.as_ref().map(Tls::acceptor), config.header_timeout);
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
    listeners.clear();
    // A client that never finishes sending its request must not keep the process alive.
    let _ = time::timeout(CLOSE_TIMEOUT, connections.shutdown()).await;
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

/// [`drain`] for several models.
async fn drain_models(models: &Models, shutdown: impl Future<Output = ()>, timeout: Duration) {
    shutdown.await;
    models.set_phase(Phase::Draining);
    tracing::info!(in_flight = models.in_flight(), "draining");
    if time::timeout(timeout, models.idle()).await.is_err() {
        tracing::warn!(in_flight = models.in_flight(), "drain timed out");
        models.set_phase(Phase::Stopped);
        // Long enough to send everyone the error.
        let _ = time::timeout(CLOSE_TIMEOUT, models.idle()).await;
    }
}
