//! Encrypted connections.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{self, PemObject},
        },
    },
};

/// A certificate and its key, from files that may be replaced. Clones are the same.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    certificate: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

/// Why connections cannot be encrypted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not in PEM.
    #[error("cannot read {}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: pem::Error,
    },
    /// A file without a certificate.
    #[error("{} has no certificate", file.display())]
    NoCertificate {
        /// The file.
        file: PathBuf,
    },
    /// Certificate and key do not belong together, or are of a kind that is not supported.
    #[error("the certificate or its key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

impl Tls {
    /// Reads a certificate, with those that vouch for it behind it, and its private key, both in PEM.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = RwLock::new(read(certificate, key)?);
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Self(Arc::new(Inner { certificate, key, config })))
    }

    /// Reads both files again. New connections get what they say; on an error what was read before stays.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn reload(&self) -> Result<(), TlsError> {
        let Inner { certificate, key, config } = &*self.0;
        let new = read(certificate, key)?;
        *config.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// The files of certificate and key.
    #[must_use]
    pub fn files(&self) -> [&Path; 2] {
        [&self.0.certificate, &self.0.key]
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let config = self.0.config.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&config))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.certificate).finish()
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let failed = |file: &Path, source| TlsError::File { file: file.to_owned(), source };
    let certificates = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| failed(certificate, source))?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { file: certificate.to_owned() });
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(|source| failed(key, source))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
