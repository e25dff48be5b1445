//! Authentication: tokens of two roles, and a certificate that clients identify by its fingerprint, as ssh does with host keys.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::iter::zip;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;
use utoipa::ToSchema;

/// Length of a generated token, in hexadecimal digits.
const TOKEN_DIGITS: usize = 64;

/// Error: a file or directory of an agent or a controller cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// An existing file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A directory cannot be created.
    #[error("cannot create the directory {}", path.display())]
    Make {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The owner of a directory cannot be read.
    #[error("cannot read the owner of the directory {}", path.display())]
    Inspect {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The user of this process cannot be determined.
    #[error("cannot determine the user of this process")]
    User(#[source] io::Error),
    /// The directory belongs to another user.
    #[error("the directory {} belongs to another user", .0.display())]
    Foreign(PathBuf),
    /// Other users may write to the directory.
    #[error("other users may write to the directory {}", .0.display())]
    Open(PathBuf),
}

/// Error: a certificate or a token cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file or the directory of the tokens cannot be used.
    #[error("{0}")]
    File(#[from] FileError),
    /// A certificate cannot be generated.
    #[error("{0}")]
    Made(#[from] rcgen::Error),
    /// The certificate file contains no certificate.
    #[error("no certificate in {}", path.display())]
    NoCertificate {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        source: pem::Error,
    },
    /// The key file contains no key.
    #[error("no key in {}", path.display())]
    NoKey {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        source: pem::Error,
    },
    /// The directory is not an agent's state directory.
    #[error("no agent's certificate in {}", folder.display())]
    NoAgent {
        /// Path of the directory.
        folder: PathBuf,
        /// Error of the parser.
        source: pem::Error,
    },
    /// A token is too short.
    #[error("token in {} is too short (minimum 16 characters)", .0.display())]
    ShortToken(PathBuf),
    /// A token file cannot be read.
    #[error("cannot read the token in {}", path.display())]
    Token {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The token file links to another directory than that of the certificate.
    #[error("the token {} is a link out of its directory: it may belong to another agent", .0.display())]
    ForeignToken(PathBuf),
    /// The file does not hold an agent's token.
    #[error("no agent's token in {}, so nothing is sent: give a file with only the {TOKEN_DIGITS} hexadecimal digits of the agent's tokens/operate", .0.display())]
    NoToken(PathBuf),
    /// TLS cannot be set up.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// The key does not match the certificate.
    #[error("the certificate and the key do not match")]
    Pair(#[source] rustls::Error),
}

/// Role of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// View everything.
    Watch,
    /// View everything, and start, change and stop flows.
    Operate,
}

/// Certificate with its key, and the tokens.
pub struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    /// Directory with one token file per role.
    pub(crate) tokens: PathBuf,
    known: Vec<(Role, [u8; 32])>,
}

impl Identity {
    /// Reads the certificate and the tokens in `folder`, and generates missing ones. The certificate names `host`, `address` and loopback.
    ///
    /// # Errors
    /// Returns [`IdentityError`] if a file cannot be read, created or parsed.
    pub(crate) fn open(
        folder: &Path,
        host: &str,
        address: IpAddr,
    ) -> Result<Identity, IdentityError> {
        let certificate = folder.join("certificate.pem");
        let key = folder.join("key.pem");
        if !key.exists() {
            make_certificate(&certificate, &key, host, address)?;
        }
        let tokens = folder.join("tokens");
        private_dir(&tokens)?;
        let known = [Role::Watch, Role::Operate].into_iter();
        let known =
            known.map(|role| Ok((role, hash(&token(&tokens.join(evlbi_plot::name(&role)))?))));
        let known = known.collect::<Result<_, IdentityError>>()?;
        let read = CertificateDer::from_pem_file(&certificate);
        let no_certificate = |source| IdentityError::NoCertificate {
            path: certificate,
            source,
        };
        let read = read.map_err(no_certificate)?;
        let read_key = PrivateKeyDer::from_pem_file(&key);
        let no_key = |source| IdentityError::NoKey { path: key, source };
        Ok(Identity {
            certificate: read,
            key: read_key.map_err(no_key)?,
            tokens,
            known,
        })
    }

    /// Reads the fingerprint and the token for the role operate from the state directory of an agent on this host.
    ///
    /// # Errors
    /// Returns [`IdentityError`] if the directory contains no certificate, or the token cannot be read.
    pub fn read(folder: &Path) -> Result<(Fingerprint, String), IdentityError> {
        let certificate = folder.join("certificate.pem");
        let missing = |source| IdentityError::NoAgent {
            folder: folder.to_owned(),
            source,
        };
        let found = CertificateDer::from_pem_file(&certificate).map_err(missing)?;
        let token = folder.join("tokens").join(evlbi_plot::name(&Role::Operate));
        let failed = no_token(&token);
        // A link could lead to another agent's token, or to another secret.
        let real = fs::canonicalize(&token).map_err(&failed)?;
        let own = fs::canonicalize(folder).map_err(&failed)?;
        if !real.starts_with(own) {
            return Err(IdentityError::ForeignToken(token.clone()));
        }
        let token = fs::read_to_string(&token).map_err(&failed)?;
        Ok((Fingerprint::of(&found), token.trim().to_owned()))
    }

    /// Returns the role of a token, or `None` if it is unknown. The comparison takes constant time.
    pub(crate) fn role(&self, token: &str) -> Option<Role> {
        let found = hash(token);
        let is = |known| zip(known, &found).fold(0, |any, (a, b)| any | (a ^ b)) == 0;
        let roles = self.known.iter();
        let roles = roles.map(|(role, known)| is(known).then_some(*role));
        roles.fold(None, Ord::max)
    }

    /// Builds the TLS configuration of the server.
    pub(crate) fn tls(&self) -> Result<Arc<rustls::ServerConfig>, IdentityError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(IdentityError::Pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Returns the fingerprint of the certificate.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }
}

/// SHA-256 fingerprint of a certificate, formatted as browsers show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate).into())
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.0.map(|byte| format!("{byte:02X}"));
        f.write_str(&bytes.join(":"))
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Fingerprint, String> {
        let digits = text.replace(':', "");
        let places = (0..digits.len()).step_by(2);
        let bytes = places.map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok());
        let bytes: Option<Vec<u8>> = bytes.collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Fingerprint).ok_or_else(|| {
            format!(
                "invalid fingerprint `{text}`: give 64 hexadecimal digits, as the agent prints them"
            )
        })
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Reads a token from a file that contains nothing but a generated token, so that no other secret can leave this host as a token.
///
/// # Errors
/// Returns [`IdentityError`] if the file cannot be read or has other content, which the error does not quote.
pub(crate) fn read_token(path: &Path) -> Result<String, IdentityError> {
    let failed = no_token(path);
    // A pipe would block, and a device has no end.
    let length = fs::metadata(path).map_err(&failed)?;
    if length.is_file() && length.len() <= 2 * TOKEN_DIGITS as u64 {
        let bytes = fs::read(path).map_err(&failed)?;
        let token = bytes.trim_ascii();
        if token.len() == TOKEN_DIGITS && token.iter().all(u8::is_ascii_hexdigit) {
            return Ok(String::from_utf8_lossy(token).into_owned());
        }
    }
    Err(IdentityError::NoToken(path.to_owned()))
}

/// Returns the error for a token file that cannot be read.
fn no_token(path: &Path) -> impl Fn(io::Error) -> IdentityError {
    |source| IdentityError::Token {
        path: path.to_owned(),
        source,
    }
}

/// Returns the address of a web UI with the token for the role operate after `#`. Browsers do not send that part, so no server logs it.
///
/// # Errors
/// Returns [`IdentityError`] if the token cannot be read.
pub fn link(url: &str, tokens: &Path) -> Result<String, IdentityError> {
    let path = tokens.join(evlbi_plot::name(&Role::Operate));
    let token = fs::read_to_string(&path).map_err(no_token(&path))?;
    let mut url = url.to_owned();
    // Browsers cannot open the address of all interfaces.
    for all in ["//0.0.0.0:", "//[::]:"] {
        url = url.replacen(all, &format!("//{}:", evlbi_net::host::name()), 1);
    }
    Ok(format!("{url}/#token={}", token.trim()))
}

/// Reads the token in a file. If the file does not exist, generates a token and writes it there.
fn token(path: &Path) -> Result<String, IdentityError> {
    let Some(text) = read_if_there(path)? else {
        let random = rand::random::<u128>;
        let token = format!("{:032x}{:032x}", random(), random());
        write_private(path, format!("{token}\n"))?;
        return Ok(token);
    };
    let token = text.trim();
    if token.len() < 16 {
        return Err(IdentityError::ShortToken(path.to_owned()));
    }
    Ok(token.to_owned())
}

/// Reads a file, or returns `None` if it does not exist.
///
/// # Errors
/// Returns [`FileError`] if it cannot be read.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, FileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn make_certificate(
    certificate: &Path,
    key: &Path,
    host: &str,
    address: IpAddr,
) -> Result<(), IdentityError> {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    let name = format!("evlbi {host}");
    params.distinguished_name.push(DnType::CommonName, name);
    let host = host.try_into().ok().map(SanType::DnsName);
    let loopback = [[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()];
    let addresses = loopback.into_iter().chain([address]);
    let addresses = addresses.filter(|address| !address.is_unspecified());
    let names = host.into_iter().chain(addresses.map(SanType::IpAddress));
    params.subject_alt_names.extend(names);
    // Clients check the fingerprint, not the dates: the certificate must not expire.
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2099, 12, 31);
    let pair = KeyPair::generate()?;
    let signed = params.self_signed(&pair)?;
    write_private(certificate, signed.pem())?;
    Ok(write_private(key, pair.serialize_pem())?)
}

/// Creates a directory that only this user may read, or checks an existing one.
///
/// # Errors
/// Returns [`FileError`] if it cannot be created, or another user could write tokens or settings there.
pub(crate) fn private_dir(path: &Path) -> Result<(), FileError> {
    let own = || path.to_owned();
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(path);
    made.map_err(|source| FileError::Make {
        path: own(),
        source,
    })?;
    let found = fs::metadata(path);
    let found = found.map_err(|source| FileError::Inspect {
        path: own(),
        source,
    })?;
    let user = fs::metadata("/proc/self").map_err(FileError::User)?.uid();
    if found.uid() != user {
        return Err(FileError::Foreign(own()));
    }
    if found.mode() & 0o022 != 0 {
        return Err(FileError::Open(own()));
    }
    Ok(())
}

/// Writes a file that only this user may read, and replaces an older one atomically.
///
/// # Errors
/// Returns [`FileError`] if the file cannot be written; an older file stays.
pub(crate) fn write_private(path: &Path, content: impl AsRef<[u8]>) -> Result<(), FileError> {
    let draft = path.with_added_extension("new");
    let write = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&draft)?;
        file.write_all(content.as_ref())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    write().map_err(|source| FileError::Write {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_opens_the_page_with_the_token_to_operate() {
        let folder = evlbi_testkit::Room::new();
        folder.write("operate", "0123456789abcdef\n");
        let link = |url| link(url, folder.folder()).unwrap();
        assert_eq!(
            link("https://10.0.0.1:3650"),
            "https://10.0.0.1:3650/#token=0123456789abcdef"
        );
        let name = evlbi_net::host::name();
        for all in ["https://0.0.0.0:3650", "https://[::]:3650"] {
            assert_eq!(
                link(all),
                format!("https://{name}:3650/#token=0123456789abcdef")
            );
        }
    }

    #[test]
    fn an_identity_stays_the_same_and_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = evlbi_testkit::Room::new();
        let open = || Identity::open(folder.folder(), "ef", [10, 0, 0, 1].into()).unwrap();
        let (first, again) = (open(), open());
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert!(first.tls().is_ok());
        for name in ["key.pem", "tokens/watch", "tokens/operate"] {
            let mode = fs::metadata(folder.folder().join(name))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let read = |name| fs::read_to_string(folder.folder().join("tokens").join(name)).unwrap();
        assert_eq!(again.role(read("watch").trim()), Some(Role::Watch));
        assert_eq!(again.role(read("operate").trim()), Some(Role::Operate));
        assert_eq!(again.role(""), None);
        assert_eq!(again.role(&read("operate")[1..]), None);
    }

    #[test]
    fn short_tokens_are_refused() {
        let folder = evlbi_testkit::Room::new();
        fs::create_dir(folder.folder().join("tokens")).unwrap();
        fs::write(folder.folder().join("tokens/watch"), "secret\n").unwrap();
        let error = Identity::open(folder.folder(), "ef", [127, 0, 0, 1].into());
        let error = error.err().unwrap().to_string();
        assert!(error.contains("too short"), "{error}");
    }

    #[test]
    fn fingerprints_are_read_as_printed() {
        let fingerprint = Fingerprint::of(&CertificateDer::from(vec![1, 2, 3]));
        let text = fingerprint.to_string();
        assert_eq!(text.len(), 95);
        assert_eq!(text.parse(), Ok(fingerprint));
        assert_eq!(
            text.replace(':', "").to_lowercase().parse(),
            Ok(fingerprint)
        );
        assert!("12:34".parse::<Fingerprint>().is_err());
        assert!("é".repeat(32).parse::<Fingerprint>().is_err());
    }
}
