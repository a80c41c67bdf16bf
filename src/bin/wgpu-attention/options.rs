//! The options of one attention call, by one rule for every command: a flag wins, then
//! the file's metadata, then the default. What came of it is printed.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use wgpu_attention::{Alignment, Options, Polarity, Window};

use crate::case::File;
use crate::metadata::{self, Given};
use crate::report::listed;

/// Options that a file's metadata can give too, and how its tensors are laid out.
#[derive(Debug, Default, Args)]
pub struct OptionArgs {
    /// Scores become C*tanh(score/C); 0 for none.
    #[arg(long, value_name = "C", value_parser = number)]
    softcap: Option<f32>,
    /// Keys before the own position that are visible, itself not counted; -1 for all.
    #[arg(long, value_name = "KEYS", value_parser = side)]
    window_left: Option<Side>,
    /// Keys after the own position that are visible, itself not counted; -1 for all.
    #[arg(long, value_name = "KEYS", value_parser = side)]
    window_right: Option<Side>,
    /// Where query 0 stands among the keys: top-left (0), bottom-right
    /// (Nk - Nq), per-sequence (tensor `offsets`) or a number
    /// [default: bottom-right, per-sequence if there are offsets].
    #[arg(long, value_parser = alignment)]
    alignment: Option<Alignment>,
    /// What true in attn_mask means [default: keep].
    #[arg(long, value_enum)]
    mask_polarity: Option<MaskPolarity>,
    /// The order of the axes of Q, K, V and Y [default: bhsd; packed for a file of QKV].
    #[arg(long, value_enum)]
    layout: Option<Layout>,
    /// Reads no option from the file's metadata.
    #[arg(long)]
    ignore_metadata: bool,
}

/// The options that checkpoints take too.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommonFlags {
    /// Factor on q.k.
    pub scale: Option<f32>,
    /// `--causal` or `--bidirectional`.
    pub causal: Option<bool>,
}

impl CommonFlags {
    /// What the flags `--causal` and `--bidirectional` say.
    pub fn causal(causal: bool, bidirectional: bool) -> Option<bool> {
        match (causal, bidirectional) {
            (false, false) => None,
            (causal, _) => Some(causal),
        }
    }
}

/// One side of a window; `None` is open.
pub type Side = Option<u32>;

/// What true means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MaskPolarity {
    /// The pair takes part.
    Keep,
    /// The pair is excluded.
    Drop,
}

/// The order of the axes of query, key, value and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// (B,H,S,D), as torch's scaled_dot_product_attention takes it.
    Bhsd,
    /// (B,S,H,D), as flash-attention and JAX take it.
    Bshd,
    /// One tensor QKV, (B,S,3,H,D); Y is (B,S,H,Dv).
    Packed,
}

impl Layout {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Bhsd => "bhsd",
            Layout::Bshd => "bshd",
            Layout::Packed => "packed",
        }
    }
}

/// The options of a call and who said so.
#[derive(Debug, Clone)]
pub struct Settled {
    pub options: Options,
    pub polarity: Polarity,
    pub layout: Layout,
    /// Who gave an option; those absent have their default.
    from: BTreeMap<&'static str, String>,
    /// Metadata that is no option.
    unread: Vec<String>,
}

impl OptionArgs {
    /// The first flag that is given.
    pub fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--softcap", self.softcap.is_some()),
            ("--window-left", self.window_left.is_some()),
            ("--window-right", self.window_right.is_some()),
            ("--alignment", self.alignment.is_some()),
            ("--mask-polarity", self.mask_polarity.is_some()),
            ("--layout", self.layout.is_some()),
            ("--ignore-metadata", self.ignore_metadata),
        ];
        flags.into_iter().find(|flag| flag.1).map(|flag| flag.0)
    }

    /// Whether the metadata counts.
    pub fn reads_metadata(&self) -> bool {
        !self.ignore_metadata
    }

    /// The options of a case: its suite gives them, a flag wins.
    pub fn of_case(&self, common: CommonFlags, options: Options) -> Result<Settled, String> {
        if self.layout.is_some_and(|layout| layout != Layout::Bhsd) {
            return Err("--layout: the axes of a case are those of its suite".to_owned());
        }
        let usual = Options::default();
        let differs = [
            ("scale", options.scale.is_some()),
            ("softcap", options.softcap.is_some()),
            ("causal", options.causal),
            ("window_left", options.window.left.is_some()),
            ("window_right", options.window.right.is_some()),
            ("alignment", options.alignment != usual.alignment),
        ];
        let of_case = differs.into_iter().filter(|(_, differs)| *differs);
        let settled = Settled {
            options,
            polarity: Polarity::Keep,
            layout: Layout::Bhsd,
            from: of_case
                .map(|(name, _)| (name, "the case".to_owned()))
                .collect(),
            unread: Vec::new(),
        };
        Ok(self.over(common, settled))
    }

    /// The options of bare operands.
    pub fn of_operands(&self, common: CommonFlags, file: &File) -> Result<Settled, String> {
        let given = match self.ignore_metadata {
            true => Given::default(),
            false => metadata::given(file)?,
        };
        let mut from: BTreeMap<&'static str, String> = BTreeMap::new();
        let mut options = Options::default();
        let mut note = |name, is_given| {
            if is_given {
                from.insert(name, "metadata".to_owned());
            }
        };
        note("scale", given.scale.is_some());
        note("softcap", given.softcap.is_some());
        note("causal", given.causal.is_some());
        note("window_left", given.window_left.is_some());
        note("window_right", given.window_right.is_some());
        note("alignment", given.alignment.is_some());
        note("mask_polarity", given.mask_polarity.is_some());
        note("layout", given.layout.is_some());
        options.scale = given.scale.flatten();
        options.softcap = given.softcap.flatten();
        options.causal = given.causal.unwrap_or(false);
        options.window = Window {
            left: given.window_left.flatten(),
            right: given.window_right.flatten(),
        };
        options.alignment = given.alignment.unwrap_or_default();
        if file.get("offsets").is_some() {
            options.alignment = Alignment::PerSequence;
            from.insert("alignment", "tensor offsets".to_owned());
        }
        let layout = given.layout.unwrap_or_else(|| {
            match file.get("QKV").is_some() && file.get("Q").is_none() {
                true => {
                    from.insert("layout", "tensor QKV".to_owned());
                    Layout::Packed
                }
                false => Layout::Bhsd,
            }
        });
        let settled = Settled {
            options,
            polarity: polarity(given.mask_polarity.unwrap_or(MaskPolarity::Keep)),
            layout,
            from,
            unread: given.unread,
        };
        Ok(self.over(common, settled))
    }

    /// The flags over what else was found.
    fn over(&self, common: CommonFlags, mut settled: Settled) -> Settled {
        let Settled {
            options,
            polarity: kept,
            layout: order,
            from,
            ..
        } = &mut settled;
        let mut flag = |name, text: &str| {
            from.insert(name, text.to_owned());
        };
        if let Some(scale) = common.scale {
            options.scale = Some(scale);
            flag("scale", "--scale");
        }
        if let Some(causal) = common.causal {
            options.causal = causal;
            let name = if causal {
                "--causal"
            } else {
                "--bidirectional"
            };
            flag("causal", name);
        }
        if let Some(softcap) = self.softcap {
            options.softcap = Some(softcap).filter(|&c| c != 0.0);
            flag("softcap", "--softcap");
        }
        if let Some(side) = self.window_left {
            options.window.left = side;
            flag("window_left", "--window-left");
        }
        if let Some(side) = self.window_right {
            options.window.right = side;
            flag("window_right", "--window-right");
        }
        if let Some(alignment) = self.alignment {
            options.alignment = alignment;
            flag("alignment", "--alignment");
        }
        if let Some(meaning) = self.mask_polarity {
            *kept = polarity(meaning);
            flag("mask_polarity", "--mask-polarity");
        }
        if let Some(layout) = self.layout {
            *order = layout;
            flag("layout", "--layout");
        }
        settled
    }
}

impl Settled {
    /// Whether anybody said how the axes are ordered.
    pub fn names_layout(&self) -> bool {
        self.from.contains_key("layout")
    }

    /// The options in a line, each with who said so, and the metadata that is none.
    /// `dqk` is the width of a query.
    pub fn describe(&self, dqk: usize) -> Vec<String> {
        let Options {
            causal,
            window,
            softcap,
            ..
        } = self.options;
        let mut parts = Vec::new();
        let mut part = |name: &str, text: String| {
            let from = self.from.get(name).map_or("default", String::as_str);
            parts.push(format!("{text} ({from})"));
        };
        part("scale", format!("scale {}", self.options.scale_for(dqk)));
        if let Some(softcap) = softcap {
            part("softcap", format!("softcap {softcap}"));
        }
        match causal {
            true => part("causal", "causal".to_owned()),
            false => part("causal", "not causal".to_owned()),
        }
        for (name, side, text) in [
            ("window_left", window.left, "before"),
            ("window_right", window.right, "after"),
        ] {
            if let Some(keys) = side {
                part(name, format!("{keys} keys {text} the own position"));
            }
        }
        if causal || window != Window::OPEN || self.from.contains_key("alignment") {
            part(
                "alignment",
                format!("alignment {}", alignment_name(self.options.alignment)),
            );
        }
        if self.from.contains_key("mask_polarity") {
            let means = match self.polarity {
                Polarity::Keep => "keep",
                Polarity::Drop => "drop",
            };
            part("mask_polarity", format!("true in the mask: {means}"));
        }
        part("layout", format!("layout {}", self.layout.name()));
        let mut lines = vec![format!("options  {}", parts.join(", "))];
        if !self.unread.is_empty() {
            lines.push(format!("unread   metadata {}", listed(&self.unread, 16)));
        }
        lines
    }

    /// The same as JSON.
    pub fn json(&self, dqk: usize) -> Value {
        let mut document = json(&self.options, dqk);
        if let Some(fields) = document.as_object_mut() {
            let keep = self.polarity == Polarity::Keep;
            fields.insert(
                "mask_polarity".to_owned(),
                if keep { "keep" } else { "drop" }.into(),
            );
            fields.insert("layout".to_owned(), self.layout.name().into());
            fields.insert("from".to_owned(), json!(self.from));
        }
        document
    }
}

/// Options as JSON, under the names that metadata has for them.
pub fn json(options: &Options, dqk: usize) -> Value {
    json!({
        "scale": options.scale_for(dqk),
        "softcap": options.softcap,
        "causal": options.causal,
        "window_left": options.window.left,
        "window_right": options.window.right,
        "alignment": alignment_name(options.alignment).replace('-', "_"),
    })
}

fn polarity(meaning: MaskPolarity) -> Polarity {
    match meaning {
        MaskPolarity::Keep => Polarity::Keep,
        MaskPolarity::Drop => Polarity::Drop,
    }
}

fn alignment_name(alignment: Alignment) -> String {
    match alignment {
        Alignment::TopLeft => "top-left".to_owned(),
        Alignment::BottomRight => "bottom-right".to_owned(),
        Alignment::PerSequence => "per-sequence".to_owned(),
        Alignment::Offset(offset) => format!("offset {offset}"),
    }
}

/// Parses an alignment.
pub fn alignment(text: &str) -> Result<Alignment, String> {
    match text {
        "top-left" => Ok(Alignment::TopLeft),
        "bottom-right" => Ok(Alignment::BottomRight),
        "per-sequence" => Ok(Alignment::PerSequence),
        number => number.parse().map(Alignment::Offset).map_err(|_| {
            "expected top-left, bottom-right, per-sequence or a 32-bit number".to_owned()
        }),
    }
}

/// Parses a number; one that only rounds to 0 is refused.
pub fn number(text: &str) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| "expected a number".to_owned())?;
    let digits = text.split(['e', 'E']).next().unwrap_or_default();
    match number == 0.0 && digits.contains(|c: char| ('1'..='9').contains(&c)) {
        true => Err("is not 0, but too small for F32, which would read it as 0".to_owned()),
        false => Ok(number),
    }
}

/// Parses one side of a window; a negative number leaves it open.
pub fn side(text: &str) -> Result<Side, String> {
    let keys = text.parse::<i64>().ok();
    let side = keys.map(|keys| match keys {
        ..0 => Ok(None),
        keys => u32::try_from(keys).map(Some),
    });
    match side {
        Some(Ok(side)) => Ok(side),
        _ => Err("expected a number of keys below 2^32, or -1 for all".to_owned()),
    }
}
