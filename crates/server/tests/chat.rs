//! `taper chat` on a terminal.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{BINARY, wait};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::unix::ffi::OsStrExt,
    process::{Child, Command},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

/// A conversation, read and typed as by a user.
struct Terminal {
    child: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn chat(args: &[&str]) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        let open = || {
            let name = OsStr::from_bytes(name.to_bytes());
            OpenOptions::new().read(true).write(true).open(name).unwrap()
        };
        let child = Command::new(BINARY)
            .arg("chat")
            .args(args)
            .env("TERM", "xterm")
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap();
        let keys = File::from(keys);
        let mut reader = keys.try_clone().unwrap();
        let (sender, screen) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails once the command has closed its end.
            while let Ok(n) = reader.read(&mut bytes) {
                if sender.send(bytes[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, screen, seen: String::new() }
    }

    fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen has shown this since the last call.
    fn shows(&mut self, what: &str) {
        while !self.seen.contains(what) {
            match self.screen.recv_timeout(Duration::from_secs(60)) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(error) => panic!("{what:?} does not come ({error}): {:?}", self.seen),
            }
        }
        let end = self.seen.find(what).unwrap() + what.len();
        self.seen.drain(..end);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended, unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";
const UP: &str = "\u{1b}[A";
const REPLY: &str = "Hello! How can I help you today?";

#[test]
fn lines_are_edited_and_remembered() {
    let mut terminal = Terminal::chat(&[]);
    terminal.shows("> ");
    terminal.type_keys("Hellx\u{7f}o!\r");
    terminal.shows(REPLY);
    terminal.shows("> ");
    terminal.type_keys(UP);
    terminal.shows("Hello!");
    terminal.type_keys("\r");
    terminal.shows(REPLY);
    terminal.shows("> ");
    // Ctrl-J begins a new line of the same message.
    terminal.type_keys("/res\n");
    terminal.shows("/res");
    terminal.type_keys("\u{7f}et\r");
    terminal.shows("is forgotten");
    terminal.shows("> ");
    terminal.type_keys(CTRL_D);
    assert_eq!(wait(&mut terminal.child).code(), Some(0));
}

#[test]
fn ctrl_c_clears_the_line_and_leaves_when_it_comes_twice() {
    let mut terminal = Terminal::chat(&[]);
    terminal.shows("> ");
    terminal.type_keys("half a message");
    terminal.shows("message");
    terminal.type_keys(CTRL_C);
    terminal.shows("Ctrl-C again");
    terminal.shows("> ");
    // The next reply is whole.
    terminal.type_keys("Hello!\r");
    terminal.shows(REPLY);
    terminal.shows("> ");
    terminal.type_keys(CTRL_C);
    terminal.shows("Ctrl-C again");
    terminal.shows("> ");
    terminal.type_keys(CTRL_C);
    assert_eq!(wait(&mut terminal.child).code(), Some(0));
}
