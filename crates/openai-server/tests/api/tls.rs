//! Encrypted connections, over the client side of rustls.

use crate::{
    serving::start,
    support::{Reply, chat, config},
};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use taper_openai_server::{ServerConfig, Tls};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, pem::PemObject},
    },
};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// Asks for a chat, and trusts one certificate only.
async fn ask(address: std::net::SocketAddr, trusted: &Path) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = "localhost".try_into().unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let body = chat(json!({})).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn connections_are_encrypted_and_certificates_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    let put = |name: &str| {
        fs::copy(file(&format!("{name}.pem")), &cert).unwrap();
        fs::copy(file(&format!("{name}.key")), &key).unwrap();
    };
    put("first");
    let tls = Tls::load(&cert, &key).unwrap();
    let config = ServerConfig {
        tls: Some(tls.clone()),
        header_timeout: Duration::from_millis(300),
        ..config()
    };
    let mut server = start(config, Reply::Text("ciphered".into()), Duration::from_secs(5)).await;
    let (first, second) = (file("first.pem"), file("second.pem"));
    let answer = ask(server.address, &first).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("ciphered"), "{answer}");
    assert!(ask(server.address, &second).await.is_err(), "not the certificate that is trusted");
    // Who speaks plainly, or says nothing, is cut off, and others are served meanwhile.
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    ask(server.address, &first).await.unwrap();
    for stream in [&mut plain, &mut silent] {
        let mut rest = Vec::new();
        let _ = timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await.unwrap();
        assert!(!rest.starts_with(b"HTTP/"));
    }
    put("second");
    tls.reload().unwrap();
    assert!(ask(server.address, &second).await.is_ok());
    assert!(ask(server.address, &first).await.is_err());
    // What cannot be read leaves what there was.
    fs::write(&cert, "no certificate").unwrap();
    assert!(tls.reload().is_err());
    assert!(ask(server.address, &second).await.is_ok());
    server.stop();
    server.ended().await;
}

#[test]
fn files_that_do_not_fit_are_refused_and_named() {
    let fails = |cert: &Path, key: &Path| Tls::load(cert, key).unwrap_err().to_string();
    let (first, key) = (file("first.pem"), file("first.key"));
    assert!(fails(Path::new("/nothing"), &key).contains("/nothing"));
    assert!(fails(&key, &key).contains("has no certificate"));
    assert!(fails(&first, &first).contains("first.pem"));
    assert!(fails(&first, &file("second.key")).contains("cannot be used"));
}
