//! Which models compute plain attention, scaled by 1/sqrt(head width), from the tensors of
//! a naming scheme alone, and what a token sees there. From the models' definitions in
//! transformers 4.49; a layer of each was compared with what its model computes.

use crate::layer::scheme::Scheme;

/// What a token of self-attention sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sees {
    /// All tokens.
    All,
    /// Earlier tokens and itself.
    Earlier,
    /// Earlier ones where the config has `is_decoder`.
    IfDecoder,
    /// All in the model's encoder, earlier ones in its decoder.
    Halves,
}

/// Model types by names of tensors and what a token sees.
const PLAIN: [(Scheme, Sees, &[&str]); 6] = [
    (
        Scheme::Bert,
        Sees::IfDecoder,
        &[
            "bert",
            "bert-generation",
            "camembert",
            "data2vec-text",
            "electra",
            "ernie",
            "megatron-bert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
        ],
    ),
    (
        Scheme::Bert,
        Sees::All,
        &[
            "align_text_model",
            "altclip_text_model",
            "big_bird",
            "chinese_clip_text_model",
            "clap_text_model",
            "esm",
            "layoutlm",
            "markuplm",
            "splinter",
            "tapas",
            "visual_bert",
        ],
    ),
    (
        Scheme::Projections,
        Sees::Halves,
        &[
            "bart",
            "blenderbot",
            "blenderbot-small",
            "informer",
            "m2m_100",
            "marian",
            "mbart",
            "mvp",
            "nllb-moe",
            "pegasus",
            "plbart",
            "speech_to_text",
            "time_series_transformer",
            "whisper",
        ],
    ),
    (
        Scheme::Projections,
        Sees::Earlier,
        &[
            "biogpt",
            "clip_text_model",
            "clipseg_text_model",
            "groupvit_text_model",
            "musicgen_decoder",
            "opt",
            "owlv2_text_model",
            "owlvit_text_model",
            "trocr",
            "xglm",
        ],
    ),
    (
        Scheme::Projections,
        Sees::All,
        &[
            "altclip_vision_model",
            "chinese_clip_vision_model",
            "clip_vision_model",
            "clipseg_vision_model",
            "data2vec-audio",
            "hubert",
            "owlv2_vision_model",
            "owlvit_vision_model",
            "sew",
            "siglip_text_model",
            "siglip_vision_model",
            "unispeech",
            "unispeech-sat",
            "wav2vec2",
        ],
    ),
    (
        Scheme::Gpt2,
        Sees::Earlier,
        &["decision_transformer", "gpt2", "openai-gpt"],
    ),
];

/// What a config has to say for its model to be plain: model type, key, value.
pub const NEEDED: [(&str, &str, &str); 2] = [
    ("big_bird", "attention_type", "original_full"),
    ("informer", "attention_type", "full"),
];

/// Keys of one model type that add a part when they are set, and the part.
pub const ADDED: [(&str, &str, &str); 1] = [("mvp", "use_prompt", "prompts among keys and values")];

/// Parts of keys, of any model type, that stand for more than plain attention.
pub const WORDS: [(&str, &str); 18] = [
    ("rope_", ROTARY),
    ("rotary", ROTARY),
    ("alibi", "a bias by distance (ALiBi)"),
    ("relative", "relative positions"),
    ("rel_pos", "relative positions"),
    ("spatial_attention_bias", "a bias by place"),
    ("sliding_window", "a window"),
    ("attention_window", "a window"),
    ("window_size", "a window"),
    ("local_attention", "a window"),
    ("attention_chunk", "a window"),
    ("softcap", "a softcap on the scores"),
    ("qk_norm", "norms of queries and keys"),
    ("qk_layernorm", "norms of queries and keys"),
    ("multi_query", "one key head for all queries"),
    ("add_bias_kv", "a key and a value of its own"),
    ("entity_aware", "queries of their own for entities"),
    ("auto_map", "code of its own for the model"),
];

/// What rotary models need.
pub const ROTARY: &str = "rotary position embedding, which does not exist here yet";

/// Model types that are known to need more, and what.
const MORE: [(&[&str], &str); 12] = [
    (
        &["layoutlmv2", "layoutlmv3", "udop"],
        "a relative position bias, whose table lies outside the layer",
    ),
    (
        &["speecht5"],
        "relative keys, whose table lies outside the layer",
    ),
    (&["autoformer"], "autocorrelation in the place of softmax"),
    (
        &["bigbird_pegasus", "led", "longformer", "pegasus_x"],
        "attention in blocks or windows",
    ),
    (
        &[
            "conditional_detr",
            "dab-detr",
            "deformable_detr",
            "detr",
            "mask2former",
            "maskformer",
            "rt_detr",
            "rt_detr_v2",
            "table-transformer",
        ],
        "positions on queries and keys, not on values",
    ),
    (
        &[
            "deberta",
            "deberta-v2",
            "vits",
            "wavlm",
            "mpnet",
            "nezha",
            "beit",
            "swin",
        ],
        "relative positions",
    ),
    (
        &[
            "roformer", "gptj", "llama", "mistral", "mixtral", "gemma", "gemma2", "qwen2", "qwen3",
            "phi", "phi3", "olmo", "cohere", "stablelm", "falcon", "gpt_neox", "codegen",
        ],
        ROTARY,
    ),
    (
        &["gpt_neo", "t5", "mt5", "umt5"],
        "another scale (1), and a window or a bias by distance",
    ),
    (
        &[
            "nystromformer",
            "yoso",
            "mra",
            "fnet",
            "convbert",
            "reformer",
        ],
        "an approximation or a part beside softmax attention",
    ),
    (
        &["gpt_bigcode"],
        "another order of queries, keys and values",
    ),
    (&["fsmt"], "tokens on the first axis, batches on the second"),
    (
        &[
            "git",
            "blip_text_model",
            "blip_2_qformer",
            "lilt",
            "bros",
            "luke",
        ],
        "a mask or scores that depend on more than the tokens",
    ),
];

/// Models of several: model type, the part of the prefix, the key of its config in theirs,
/// and the model type of a part whose config has none.
const PARTS: [(&str, &str, &str, &str); 24] = [
    ("align", "text_model", "text_config", "align_text_model"),
    ("altclip", "text_model", "text_config", "altclip_text_model"),
    (
        "altclip",
        "vision_model",
        "vision_config",
        "altclip_vision_model",
    ),
    (
        "chinese_clip",
        "text_model",
        "text_config",
        "chinese_clip_text_model",
    ),
    (
        "chinese_clip",
        "vision_model",
        "vision_config",
        "chinese_clip_vision_model",
    ),
    ("clap", "text_model", "text_config", "clap_text_model"),
    ("clip", "text_model", "text_config", "clip_text_model"),
    ("clip", "vision_model", "vision_config", "clip_vision_model"),
    ("clipseg", "text_model", "text_config", "clipseg_text_model"),
    (
        "clipseg",
        "vision_model",
        "vision_config",
        "clipseg_vision_model",
    ),
    ("encoder-decoder", "encoder", "encoder", ""),
    ("encoder-decoder", "decoder", "decoder", ""),
    (
        "groupvit",
        "text_model",
        "text_config",
        "groupvit_text_model",
    ),
    ("musicgen", "decoder", "decoder", "musicgen_decoder"),
    (
        "owlv2",
        "vision_model",
        "vision_config",
        "owlv2_vision_model",
    ),
    (
        "owlvit",
        "vision_model",
        "vision_config",
        "owlvit_vision_model",
    ),
    ("owlv2", "text_model", "text_config", "owlv2_text_model"),
    ("owlvit", "text_model", "text_config", "owlvit_text_model"),
    ("siglip", "text_model", "text_config", "siglip_text_model"),
    (
        "siglip",
        "vision_model",
        "vision_config",
        "siglip_vision_model",
    ),
    ("speech-encoder-decoder", "encoder", "encoder", ""),
    ("speech-encoder-decoder", "decoder", "decoder", ""),
    ("vision-encoder-decoder", "encoder", "encoder", ""),
    ("vision-encoder-decoder", "decoder", "decoder", ""),
];

/// Norms that a model type applies to X inside the module of its attention: X here is what
/// comes out of them, as it is where a model has its norm elsewhere.
const NORMS: [(&[&str], &[&str]); 3] = [
    (
        &["esm", "roberta-prelayernorm"],
        &["LayerNorm.weight", "LayerNorm.bias"],
    ),
    (&["megatron-bert"], &["ln.weight", "ln.bias"]),
    (
        &["xlm-roberta-xl"],
        &["self_attn_layer_norm.weight", "self_attn_layer_norm.bias"],
    ),
];

/// Tensors of a model type beside those of its scheme that are no part of attention.
pub fn beside(model: &str) -> &'static [&'static str] {
    let found = NORMS.iter().find(|(names, _)| names.contains(&model));
    found.map_or(&[], |(_, norms)| norms)
}

/// The naming scheme of a model type that is plain in it, and what a token sees.
pub fn plain(model: &str) -> Option<(Scheme, Sees)> {
    let found = PLAIN.iter().find(|(.., names)| names.contains(&model))?;
    Some((found.0, found.1))
}

/// What a model type is known to need besides plain attention.
pub fn more(model: &str) -> Option<&'static str> {
    let found = MORE.iter().find(|(names, _)| names.contains(&model))?;
    Some(found.1)
}

/// The parts of a model type, each as part of the prefix, key and model type.
pub fn parts(model: &str) -> Vec<(&'static str, &'static str, &'static str)> {
    let parts = PARTS.iter().filter(|(of, ..)| *of == model);
    parts.map(|&(_, part, key, own)| (part, key, own)).collect()
}
