//! The addresses that a server listens on.

use anyhow::{Error, Result, anyhow};
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
};
use tokio::net::{TcpListener, lookup_host};

/// Lets this process open as many files as it may: each connection is one, and shells grant few at first.
pub(crate) fn raise_file_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let limit = Rlimit { current: maximum, maximum };
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "the limit of open files stays");
        }
    }
}

/// Listens on every address of a host, which is a name or an address. There is at least one.
///
/// # Errors
/// The host is unknown or not of this machine, or the port is taken or reserved.
pub(crate) async fn listen(host: &str, mut port: u16) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    let mut missing = None;
    for mut address in addresses(host).await? {
        address.set_port(port);
        match TcpListener::bind(address).await {
            Ok(listener) => {
                // A free port that was picked for the first address is that of all.
                port = listener.local_addr()?.port();
                listeners.push(listener);
            }
            // A name may have an IPv6 address on a machine without IPv6.
            Err(error) if is_missing(&error) => missing = Some(refused(address, &error)),
            Err(error) => return Err(refused(address, &error)),
        }
    }
    match missing {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

async fn addresses(host: &str) -> Result<Vec<SocketAddr>> {
    // As in a URL: [::1].
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let unknown = |why: &str| {
        anyhow!(
            "--host {host:?} is not known{why}; give an address of this machine, such as 127.0.0.1, or its name"
        )
    };
    if bare.is_empty() {
        return Err(unknown(""));
    }
    let found = lookup_host((bare, 0)).await.map_err(|error| unknown(&format!(" ({error})")))?;
    let mut all: Vec<SocketAddr> = Vec::new();
    // Resolvers may say an address twice.
    found.for_each(|address| {
        if !all.contains(&address) {
            all.push(address);
        }
    });
    if all.is_empty() { Err(unknown("")) } else { Ok(all) }
}

fn is_missing(error: &io::Error) -> bool {
    // Linux without IPv6 has no such family, for which there is no kind.
    const NO_FAMILY: i32 = 97;
    error.kind() == ErrorKind::AddrNotAvailable
        || (cfg!(target_os = "linux") && error.raw_os_error() == Some(NO_FAMILY))
}

/// The error with what can be done about it.
fn refused(address: SocketAddr, error: &io::Error) -> Error {
    let port = address.port();
    match error.kind() {
        ErrorKind::AddrInUse => anyhow!(
            "cannot listen on {address}: port {port} is taken; choose another with --port, or 0 for any that is free"
        ),
        ErrorKind::PermissionDenied => anyhow!(
            "cannot listen on {address}: the system reserves port {port}; choose one above 1023 with --port"
        ),
        _ if is_missing(error) => anyhow!(
            "cannot listen on {address}: this machine has no such address; choose another with --host, or 0.0.0.0 for all"
        ),
        _ => anyhow!("cannot listen on {address}: {error}; choose another --host or --port"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[tokio::test]
    async fn names_are_all_their_addresses_on_one_port() {
        let listeners = listen("localhost", 0).await.unwrap();
        let at: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
        assert!(at.iter().all(|a| a.ip().is_loopback() && a.port() == at[0].port()), "{at:?}");
        assert!(at.iter().any(|a| a.ip() == Ipv4Addr::LOCALHOST), "{at:?}");
        let port = at[0].port();
        let error = listen("127.0.0.1", port).await.unwrap_err().to_string();
        assert!(error.contains(&format!("port {port} is taken")) && error.contains("--port"));
    }

    #[tokio::test]
    async fn hosts_that_are_not_here_are_said_so() {
        for host in ["", "[]", &"x".repeat(300)] {
            let error = listen(host, 0).await.unwrap_err().to_string();
            assert!(error.contains("is not known"), "{error}");
        }
        // Kept for documentation: no machine has it.
        let error = listen("192.0.2.1", 0).await.unwrap_err().to_string();
        assert!(error.contains("no such address") && error.contains("--host"), "{error}");
    }

    #[test]
    fn errors_say_the_next_step() {
        let error = |kind| refused(([127, 0, 0, 1], 80).into(), &kind).to_string();
        let denied = error(io::Error::from(ErrorKind::PermissionDenied));
        assert!(denied.contains("above 1023") && denied.contains("--port"), "{denied}");
        let other = error(io::Error::from(ErrorKind::OutOfMemory));
        assert!(other.contains("127.0.0.1:80") && other.contains("--host"), "{other}");
    }
}
