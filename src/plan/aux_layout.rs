//! The layout of `aux`: lengths, offsets, segments, slopes and sinks in one
//! region, so that a kernel binds them once.

use crate::plan::task::Task;
use crate::view::lists::ListKind;

/// First word of each list that the problem has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuxLayout {
    starts: Vec<(ListKind, u64)>,
    pub words: u64,
}

impl AuxLayout {
    pub fn new(task: &Task) -> Self {
        let mut words = 0;
        let mut starts = Vec::new();
        for (kind, source) in &task.lists {
            starts.push((*kind, words));
            words += source.len() as u64;
        }
        AuxLayout { starts, words }
    }

    /// First word of a list; 0 if the problem has none (no rule reads it then).
    pub fn start(&self, kind: ListKind) -> u64 {
        let found = self.starts.iter().find(|(k, _)| *k == kind);
        found.map_or(0, |(_, start)| *start)
    }
}
