//! What goes to the terminal: results on stdout, progress and errors on stderr.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use wgpu_attention::{Attention, Error};

use crate::system;

/// Why a command stopped early.
#[derive(Debug)]
pub enum Stop {
    /// The message for stderr; the program exits with 2.
    Error(String),
    /// Whoever read our stdout went away.
    BrokenPipe,
}

impl From<String> for Stop {
    fn from(message: String) -> Stop {
        Stop::Error(message)
    }
}

impl From<&str> for Stop {
    fn from(message: &str) -> Stop {
        Stop::Error(message.to_owned())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        match &error {
            // Where there is another adapter, the message names it.
            Error::NoAdapter { .. } if Attention::adapters().is_empty() => {
                Stop::Error(format!("{error}\n{}", system::how_to_get_an_adapter()))
            }
            _ => Stop::Error(error.to_string()),
        }
    }
}

/// A line that could not be written to stdout.
impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Stop::BrokenPipe,
            _ => Stop::Error(format!("stdout: {error}")),
        }
    }
}

/// Stdout beside a progress bar on stderr, which shows on a terminal only.
pub struct Reporter {
    bar: ProgressBar,
}

impl Reporter {
    /// A bar that counts to `steps`.
    pub fn counting(steps: usize) -> Reporter {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
        let bar = ProgressBar::new(steps as u64);
        Reporter {
            bar: bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
        }
    }

    /// A spinner for work of unknown length.
    pub fn spinning() -> Reporter {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        Reporter { bar }
    }

    /// Says what is being done now.
    pub fn doing(&self, what: impl Into<String>) {
        self.bar.set_message(escaped(&what.into()));
    }

    /// One step further.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Writes a line to stdout, past the bar.
    pub fn line(&self, line: impl AsRef<str>) -> Result<(), Stop> {
        self.bar.suspend(|| {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", visible(line.as_ref())).and_then(|()| out.flush())
        })?;
        Ok(())
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The most characters of a name from a file, and of a line of a message.
const MAX_NAME: usize = 200;
const MAX_LINE: usize = 2_000;

/// Writes a message to stderr; lines that are too long lose their middle.
pub fn tell(message: impl AsRef<str>) {
    let lines = visible(message.as_ref());
    let lines: Vec<String> = lines.split('\n').map(|l| shortened(l, MAX_LINE)).collect();
    eprintln!("{}", lines.join("\n"));
}

/// `text`, or its beginning and its end if it has more than `most` characters.
fn shortened(text: &str, most: usize) -> String {
    let count = match text.len() > most {
        true => text.chars().count(),
        false => 0,
    };
    if count <= most {
        return text.to_owned();
    }
    let at = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    let (head, tail) = (at(most / 2), at(count - most / 4));
    let left_out = count - most / 2 - most / 4;
    format!(
        "{} ... {left_out} characters ... {}",
        &text[..head],
        &text[tail..]
    )
}

/// A name from a file, for people: what a terminal would act on or not show (control
/// characters, line breaks among them, and marks that turn the direction of text) as
/// JSON's `\u` escapes, everything else as it is. A long one loses its middle.
pub fn shown(name: &str) -> String {
    escaped(&shortened(name, MAX_NAME))
}

fn escaped(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for c in name.chars() {
        match is_hidden(c) {
            false => shown.push(c),
            true => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    shown += &format!("\\u{unit:04x}");
                }
            }
        }
    }
    shown
}

/// Names for a message, the first `most` of them.
pub fn listed(names: &[String], most: usize) -> String {
    let first = names[..most.min(names.len())].iter();
    let first = first.map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(most + 1) {
        None => first,
        Some(rest) => format!("{first} and {} more", rest + 1),
    }
}

/// The same of text whose lines are meant: all that is printed goes through it. JSON
/// stays JSON, with the same strings.
fn visible(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(escaped).collect();
    lines.join("\n")
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// An error over several lines in one.
pub fn one_line(text: impl ToString) -> String {
    let text = text.to_string();
    let lines = text.lines().map(|l| l.trim().trim_start_matches("- "));
    lines.collect::<Vec<_>>().join("; ").replace(":; ", ": ")
}

/// A JSON number, or a string where JSON has no number.
pub fn number(x: f64) -> serde_json::Value {
    match serde_json::Number::from_f64(x) {
        Some(number) => number.into(),
        None => x.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_escaped() {
        let name = "Q\u{1b}[2J\r\n\u{9b}31m \u{202e}é漢🙂\u{e0041}\t\\";
        let escaped = "Q\\u001b[2J\\u000d\\u000a\\u009b31m \\u202eé漢🙂\\udb40\\udc41\\u0009\\";
        assert_eq!(shown(name), escaped);
        assert_eq!(shown(&"é".repeat(MAX_NAME)), "é".repeat(MAX_NAME));
        let long = format!("{}\n{}", "é".repeat(100_000), "n".repeat(50));
        let tail = format!(" ... 99901 characters ... {}", "n".repeat(50));
        assert_eq!(shown(&long), format!("{}{tail}", "é".repeat(100)));
        // JSON is the same document afterwards.
        let document = serde_json::json!({ "name": name });
        let printed = visible(&format!("{document:#}"));
        assert!(printed.contains('\n') && !printed.contains('\u{9b}'));
        let read: serde_json::Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(read, document);
    }
}
