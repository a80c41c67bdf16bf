//! Whether a layer is plain attention and what its tokens see, and who says so.

use crate::layer::config::{Config, Half};
use crate::layer::models::{self, Sees};
use crate::layer::scheme::Scheme;

/// Last parts of the prefix of cross-attention, in BART, BERT and NLLB.
const CROSS: [&str; 3] = ["encoder_attn", "crossattention", "cross_attention"];

/// What the caller decides.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Whatever the config says, and whatever tensors are left over.
    pub assume_plain: bool,
    /// The caller gives the scale.
    pub scaled: bool,
    /// --causal or --bidirectional.
    pub causal: Option<bool>,
}

/// What was decided.
#[derive(Debug)]
pub struct Judged {
    /// Why it is plain attention.
    pub plain: String,
    /// Tokens see earlier ones and themselves alone.
    pub causal: bool,
    /// Why `causal` is what it is.
    pub why: String,
    /// Whether keys come from another sequence, where the model says so.
    pub cross: Option<bool>,
    /// Which half of its model the layer is in, where the prefix says so.
    pub half: Option<Half>,
}

/// Decides for the layer at `prefix`.
pub fn judge(
    config: &Config,
    (prefix, scheme): (&str, Scheme),
    asked: Asked,
) -> Result<Judged, String> {
    let model = config.model_type()?;
    let plain = match asked.assume_plain {
        true => "assumed (--assume-plain)".to_owned(),
        false => {
            config.check(asked.scaled)?;
            of_model(config, model.as_ref(), scheme)?
        }
    };
    let sees = model.as_ref().and_then(|(name, source)| {
        let (of, sees) = models::plain(name)?;
        (of == scheme).then(|| (sees, format!("model_type {name} of {source}")))
    });
    let last = prefix.rsplit('.').next().unwrap_or_default();
    let cross = CROSS.contains(&last);
    let half = match cross {
        true => Some(Half::Decoder),
        false => half_of(prefix),
    };
    let (causal, why) = match (&sees, cross) {
        (_, true) => (false, format!("{last} is cross-attention")),
        (None, false) if scheme == Scheme::Gpt2 => (true, "as GPT-2 is causal".to_owned()),
        (None, false) => (
            false,
            "nothing says causal; --causal if the model is a decoder".to_owned(),
        ),
        (Some((Sees::All, who)), false) => (false, who.clone()),
        (Some((Sees::Earlier, who)), false) => (true, who.clone()),
        (Some((Sees::IfDecoder, who)), false) => match config.flag("is_decoder") {
            true => (true, format!("{who}, is_decoder")),
            false => (false, format!("{who}, no decoder")),
        },
        (Some((Sees::Halves, who)), false) => match half {
            Some(Half::Encoder) => (false, format!("{who}, encoder")),
            Some(Half::Decoder) => (true, format!("{who}, decoder")),
            None if asked.causal.is_some() || asked.assume_plain => (false, who.clone()),
            None => {
                return Err(format!(
                    "{who} has an encoder and a decoder, of which the prefix {prefix} names \
                     neither: --causal or --bidirectional has to say what a token sees"
                ));
            }
        },
    };
    let (causal, why) = match asked.causal {
        Some(true) => (true, "--causal".to_owned()),
        Some(false) => (false, "--bidirectional".to_owned()),
        None => (causal, why),
    };
    let known = sees.is_some() && !asked.assume_plain;
    Ok(Judged {
        plain,
        causal,
        why,
        cross: (known || (cross && !asked.assume_plain)).then_some(cross),
        half,
    })
}

/// Why the model's attention is plain, by its type and config.
fn of_model(
    config: &Config,
    model: Option<&(String, String)>,
    scheme: Scheme,
) -> Result<String, String> {
    let Some((name, source)) = model else {
        return match scheme {
            Scheme::Torch => Ok("by the definition of torch's MultiheadAttention".to_owned()),
            _ => Err(format!(
                "no model_type, in metadata or a config.json (--config): names of tensors do not \
                 say whether scores get more than q.k/sqrt(head_dim), such as positions, nor \
                 what a token sees; {}",
                assume()
            )),
        };
    };
    let who = format!("{source} has model_type {name}");
    let Some((of, sees)) = models::plain(name) else {
        let what = match models::more(name) {
            Some(part) => format!("its attention is not plain: {part}"),
            None => "it is not known whether its attention is plain".to_owned(),
        };
        return Err(format!("{who}: {what}; {}", assume()));
    };
    if of != scheme {
        return Err(format!(
            "{who}: its attention is known by the names of {}, not of {}; {}",
            of.name(),
            scheme.name(),
            assume()
        ));
    }
    for (model, key, value) in models::NEEDED {
        let got = config.text(key);
        if model == name && got.as_deref() != Some(value) {
            let got = got.unwrap_or("none".to_owned());
            return Err(format!(
                "{who}: expected {key} {value}, got {got}, which is attention to some of the \
                 tokens; {}",
                assume()
            ));
        }
    }
    for (model, key, part) in models::ADDED {
        if model == name && config.flag(key) {
            return Err(format!("{who} and {key}: {part}; {}", assume()));
        }
    }
    if sees == Sees::All && config.flag("is_decoder") {
        return Err(format!(
            "{who} and is_decoder: it is not known as a decoder; {}",
            assume()
        ));
    }
    Ok(format!("model_type {name} of {source}"))
}

/// The way out of every refusal.
pub fn assume() -> &'static str {
    "--assume-plain computes it as plain attention all the same"
}

/// The half that the parts of a prefix name: the last one counts, as in
/// decoder.model.decoder.
fn half_of(prefix: &str) -> Option<Half> {
    prefix.rsplit('.').find_map(|part| match part {
        "encoder" => Some(Half::Encoder),
        "decoder" => Some(Half::Decoder),
        _ => None,
    })
}
