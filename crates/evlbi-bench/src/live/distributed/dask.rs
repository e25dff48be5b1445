//! Dask on the hosts: a scheduler on the head and a worker with one thread on each node, connected by TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use evlbi_testkit::Room;
use evlbi_testkit::need::missing;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    KeyUsagePurpose,
};

use super::super::programs::{output, printed};
use super::hosts::{HEAD, HEAD_ADDRESS, Hosts, NODES, Process, until};
use super::job::Job;

/// Python environment with Dask and this project's package for it.
const VENV: &str = "target/venv-dask";
/// That package.
const OWN: &str = "python/evlbi_dask";
const DISTRIBUTED: &str = "distributed==2026.8.0";
const PORT: u16 = 8786;

/// Returns what is missing, after an attempt to create the Python environment.
pub fn lacking() -> Option<String> {
    if let Some(python) = missing(&["python3"]).pop() {
        return Some(python);
    }
    if !Path::new(OWN).is_dir() {
        return Some(OWN.to_owned());
    }
    let error = environment().err()?;
    Some(format!("{DISTRIBUTED} in {VENV} ({error:#})"))
}

fn environment() -> Result<()> {
    let python = Path::new(VENV).join("bin/python");
    let import = ["-c", "import distributed, evlbi_dask"];
    if output(Command::new(&python).args(import)).is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    printed(Command::new("python3").args(["-m", "venv", VENV]))?;
    let mut pip = Command::new(Path::new(VENV).join("bin/pip"));
    // Editable, so that the environment always has the package of this tree.
    printed(pip.args(["install", "--quiet", DISTRIBUTED, "--editable", OWN]))?;
    printed(Command::new(&python).args(import))?;
    Ok(())
}

/// The scheduler and the workers.
pub struct Dask<'a> {
    hosts: &'a Hosts,
    job: &'a Job<'a>,
    folder: PathBuf,
    python: PathBuf,
    /// Parents of the processes, which end with them.
    children: Vec<Child>,
}

impl<'a> Dask<'a> {
    /// Creates certificates, starts all processes, and waits until both workers are known.
    pub fn start(hosts: &'a Hosts, job: &'a Job<'a>, room: &Room) -> Result<Dask<'a>> {
        let folder = room.folder().join("dask");
        fs::create_dir(&folder)?;
        certificates(&folder)?;
        let python = std::path::absolute(Path::new(VENV).join("bin/python"))?;
        let mut dask = Dask {
            hosts,
            job,
            folder,
            python,
            children: Vec::new(),
        };
        dask.settle()?;
        Ok(dask)
    }

    /// Returns the options by which `evlbi distribute` finds the scheduler.
    pub fn options(&self) -> Vec<String> {
        let mut options = vec!["--scheduler".to_owned(), address()];
        for (option, file) in [
            ("--tls-ca", "ca"),
            ("--tls-cert", "cert"),
            ("--tls-key", "key"),
        ] {
            options.extend([option.to_owned(), self.file(file)]);
        }
        [options, self.python()].concat()
    }

    /// Returns the option with the Python environment.
    pub fn python(&self) -> Vec<String> {
        vec!["--python".to_owned(), self.python.display().to_string()]
    }

    fn file(&self, name: &str) -> String {
        self.folder
            .join(format!("{name}.pem"))
            .display()
            .to_string()
    }

    fn spawn(&mut self, host: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self.hosts.on(host, &self.python);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{host}.log")))?;
        command
            .args(["-m", "dask"])
            .args(arguments)
            .args(["--no-dashboard", "--tls-ca-file", &self.file("ca")])
            .args(["--tls-cert", &self.file("cert")])
            .args(["--tls-key", &self.file("key")])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.job.environment(&mut command);
        self.children.push(command.spawn().context("nsenter")?);
        Ok(())
    }

    /// Kills the scheduler by SIGKILL.
    pub fn kill_scheduler(&self) -> Result<()> {
        self.hosts.kill_all(|process| is_dask(process, "scheduler"))
    }

    /// Returns the worker process of a node, which a nanny has started.
    pub fn worker(&self, node: &str) -> Option<Process> {
        let mut processes = self.hosts.processes().into_iter();
        processes.find(|process| {
            let is_spawned = process.words.iter().any(|word| word.contains("spawn_main"));
            process.host == node && is_spawned
        })
    }

    /// Ends what a case has left. Starts all processes again if a part still runs or a process is missing.
    pub fn settle(&mut self) -> Result<()> {
        let processes = self.hosts.processes();
        let is_there = |host: &str, role: &str| {
            let is_it = |process: &Process| process.host == host && is_dask(process, role);
            processes.iter().any(is_it)
        };
        let has_worker = |(node, _)| is_there(node, "worker") && self.worker(node).is_some();
        let is_idle = !processes
            .iter()
            .any(|process| process.option("--part").is_some());
        if is_idle && is_there(HEAD, "scheduler") && NODES.into_iter().all(has_worker) {
            return Ok(());
        }
        let head = |process: &Process| process.host == HEAD && is_dask(process, "scheduler");
        self.hosts
            .kill_all(|process| process.host != HEAD || head(process))?;
        for mut child in self.children.drain(..) {
            child.wait()?;
        }
        let address = address();
        self.spawn(HEAD, &["scheduler", "--host", &address])?;
        let scratch = self.folder.join("scratch").display().to_string();
        for (node, _) in NODES {
            let options = ["--nthreads", "1", "--local-directory", &scratch];
            self.spawn(node, &[&["worker", &address][..], &options].concat())?;
        }
        self.wait_for_workers()
    }

    fn wait_for_workers(&self) -> Result<()> {
        let security = format!(
            "Security(require_encryption=True, tls_ca_file={:?}, tls_client_cert={:?}, tls_client_key={:?})",
            self.file("ca"),
            self.file("cert"),
            self.file("key")
        );
        let script = format!(
            "from distributed import Client, Security\n\
             with Client({:?}, security={security}, timeout=60) as client:\n    client.wait_for_workers({}, timeout=60)\n",
            address(),
            NODES.len()
        );
        let mut python = self.hosts.on(HEAD, &self.python);
        printed(python.args(["-c", &script]))?;
        until("each node has a worker", || {
            let has = |(node, _)| self.worker(node).is_some();
            Ok(NODES.into_iter().all(has).then_some(()))
        })
    }
}

impl Drop for Dask<'_> {
    fn drop(&mut self) {
        let _ = self
            .hosts
            .kill_all(|process| process.host != HEAD || is_dask(process, "scheduler"));
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

fn is_dask(process: &Process, role: &str) -> bool {
    process.words.iter().any(|word| word == "dask") && process.words.iter().any(|word| word == role)
}

/// Returns the address of the scheduler.
fn address() -> String {
    format!("tls://{HEAD_ADDRESS}:{PORT}")
}

/// Returns the address of a scheduler without TLS that others on the network could use.
pub fn plain_address() -> String {
    format!("tcp://{HEAD_ADDRESS}:{PORT}")
}

/// Writes a certificate authority, and a key and a certificate for all hosts.
fn certificates(folder: &Path) -> Result<()> {
    let mut authority = named("evlbi live authority", Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut host = named("evlbi live hosts", vec![HEAD_ADDRESS.to_owned()])?;
    host.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = host.signed_by(&key, &authority)?;
    fs::write(folder.join("ca.pem"), authority.pem())?;
    fs::write(folder.join("cert.pem"), certificate.pem())?;
    fs::write(folder.join("key.pem"), key.serialize_pem())?;
    Ok(())
}

fn named(name: &str, addresses: Vec<String>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(addresses)?;
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, name.to_owned());
    Ok(params)
}
