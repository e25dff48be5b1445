//! The token of tests: on the command line, in a file, in the environment, or in the file that the config names.

use std::env;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use evlbi_net::run::Run;
use evlbi_probe::measure::Token;

use crate::program::Program;

/// The environment's token.
const VARIABLE: &str = "EVLBI_TOKEN";
/// Limits of a token in a file, in bytes. A shorter one can be guessed.
const MIN_TOKEN: usize = 16;
const MAX_FILE: u64 = 4096;

#[derive(Args, Clone, Default)]
pub struct TokenArgs {
    /// Token that client and responder share [default: that of --token-file, else of EVLBI_TOKEN in the environment]
    #[arg(long)]
    pub token: Option<String>,
    /// Read the token from this file: one line of at least 16 characters [default: `token-file` of the config file]
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// Returns the options of the command line for another command, with `T` for the token itself.
    pub fn as_typed(&self) -> String {
        match (&self.token, &self.token_file) {
            (Some(_), _) => " --token T".to_owned(),
            (None, Some(file)) => format!(" --token-file {}", file.display()),
            (None, None) => String::new(),
        }
    }

    /// Finds the token, if it is not on the command line.
    pub fn find(&mut self, program: &Program) -> Result<()> {
        if self.token.is_some() {
            return Ok(());
        }
        let run = program.unheeded();
        self.token = match (&self.token_file, env::var(VARIABLE)) {
            (Some(file), _) => Some(read(file, run)?),
            (None, Ok(token)) => Some(token),
            (None, Err(_)) => {
                let file = program.config()?.token_file();
                file.map(|file| read(&file, run)).transpose()?
            }
        };
        Ok(())
    }
}

impl From<TokenArgs> for Token {
    fn from(args: TokenArgs) -> Token {
        Token::from(args.token.unwrap_or_default().as_str())
    }
}

/// Reads a token; warns if others can read it, too.
fn read(path: &Path, run: &Run) -> Result<String> {
    let file = path.display();
    let failed = || format!("cannot read the token in {file}");
    let mut text = String::new();
    let opened = File::open(path).with_context(failed)?;
    let found = opened.metadata().with_context(failed)?;
    let read = opened.take(MAX_FILE + 1).read_to_string(&mut text);
    read.with_context(failed)?;
    let token = text.trim();
    ensure!(
        text.len() as u64 <= MAX_FILE && !token.contains(char::is_whitespace),
        "{file} holds no token: write it as the only line of the file"
    );
    ensure!(
        token.len() >= MIN_TOKEN,
        "{file} holds a token of less than {MIN_TOKEN} characters, which can be guessed: write a longer one, e.g. by `openssl rand -hex 32`"
    );
    if found.is_file() && found.mode() & 0o077 != 0 {
        run.warn(format_args!(
            "others may read the token in {file}: chmod 600 {file}"
        ));
    }
    Ok(token.to_owned())
}
