"""Writes the layers of this folder.

    pip install torch==2.4.1 transformers==4.49.0 safetensors==0.8.0 numpy==2.2.6
    python make.py

The seed is fixed: every tensor and all metadata come out as they are here. Only the order
of the metadata in a file's header may differ.

For every model type a tiny model with random weights (W wide) runs on random tokens in
float64. What goes into W_Q and W_K of its first layers is X and C (where it differs), what
comes out of W_O is Y. A file has the model's own names and values for these layers, and

    X.PREFIX, C.PREFIX, Y.PREFIX    as above, rounded to F32
    metadata config                 the model's config.json
    metadata stand                  plain, or other where it is no plain attention

Nothing here is a trained weight or anybody's work but this script's; the files have the
crate's licence.
"""
import json
import os

import torch
import transformers
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)
HERE = os.path.dirname(os.path.abspath(__file__))
W, H, V, N = 8, 4, 16, 6
IDS = torch.tensor([[5, 6, 7, 8, 9, 15], [11, 12, 13, 14, 5, 15]])
BERT = dict(hidden_size=W, num_attention_heads=H, num_hidden_layers=2, intermediate_size=8,
            vocab_size=V, max_position_embeddings=16, type_vocab_size=2)
TEXT = dict(hidden_size=W, num_attention_heads=H, num_hidden_layers=1, intermediate_size=8,
            vocab_size=V, max_position_embeddings=16, projection_dim=W, bos_token_id=0,
            eos_token_id=15, pad_token_id=1, type_vocab_size=2, project_dim=W)
VISION = dict(hidden_size=W, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8,
              image_size=8, patch_size=4, projection_dim=W)
# The halves have different numbers of heads.
BART = dict(d_model=W, encoder_attention_heads=H, decoder_attention_heads=2, encoder_layers=1,
            decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=V,
            max_position_embeddings=16, pad_token_id=1, bos_token_id=0, eos_token_id=2,
            decoder_start_token_id=2)
SPEECH = dict(hidden_size=W, num_attention_heads=H, num_hidden_layers=1, intermediate_size=8,
              conv_dim=[8, 8], conv_stride=[5, 2], conv_kernel=[10, 3],
              num_feat_extract_layers=2, num_conv_pos_embeddings=4,
              num_conv_pos_embedding_groups=2, vocab_size=V)
SERIES = dict(BART, prediction_length=4, context_length=8, lags_sequence=[1, 2], input_size=1,
              num_time_features=1, distil=False)
GPT = dict(n_embd=W, n_head=H, n_layer=1, n_positions=16, vocab_size=V)


def tokens():
    return dict(input_ids=IDS)


def seen(width=W):
    return dict(input_ids=IDS, encoder_hidden_states=torch.randn(2, 5, width))


def both():
    return dict(input_ids=IDS, decoder_input_ids=IDS[:, :5])


def sound():
    return dict(input_values=torch.randn(2, 80))


def pixels():
    return dict(pixel_values=torch.randn(2, 3, 8, 8))


def boxes():
    return dict(input_ids=IDS, bbox=torch.randint(0, 9, (2, N, 4)))


def series():
    return dict(past_values=torch.randn(2, 10), past_time_features=torch.randn(2, 10, 1),
                past_observed_mask=torch.ones(2, 10), future_values=torch.randn(2, 4),
                future_time_features=torch.randn(2, 4, 1))


def moves():
    return dict(states=torch.randn(2, 3, 3), actions=torch.randn(2, 3, 2),
                rewards=torch.randn(2, 3, 1), returns_to_go=torch.randn(2, 3, 1),
                timesteps=torch.arange(3)[None].repeat(2, 1), attention_mask=torch.ones(2, 3))


# File: (config's class, its values, inputs, model's class or None).
MODELS = {}
EXTRA = {"electra": dict(embedding_size=W), "xmod": dict(languages=["en"], default_language="en"),
         "esm": dict(position_embedding_type="absolute", pad_token_id=1, mask_token_id=3),
         "big_bird": dict(attention_type="original_full"),
         "markuplm": dict(max_depth=2, xpath_unit_hidden_size=2)}
for kind in ("bert bert-generation camembert data2vec-text electra ernie megatron-bert rembert "
             "roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod").split():
    values = dict(BERT, num_hidden_layers=1, **EXTRA.get(kind, {}))
    MODELS[kind] = (kind, values, tokens, None)
    values = dict(values, is_decoder=True, add_cross_attention=True)
    MODELS[kind + ".decoder"] = (kind, values, seen, None)
for kind in "big_bird esm layoutlm markuplm splinter tapas visual_bert".split():
    values = dict(BERT, num_hidden_layers=1, **EXTRA.get(kind, {}))
    MODELS[kind] = (kind, values, tokens, None)
MODELS["bert.relative"] = ("bert", dict(BERT, num_hidden_layers=1, position_embedding_type="relative_key"), tokens, None)
MODELS["bert.pruned"] = ("bert", dict(BERT, pruned_heads={0: [1, 3]}), tokens, None)
for kind, name in (("align_text_model", "AlignText"), ("clap_text_model", "ClapText")):
    MODELS[kind] = (name + "Config", dict(BERT, num_hidden_layers=1), tokens, name + "Model")
for kind in ("bart blenderbot blenderbot-small m2m_100 marian mbart mvp nllb-moe pegasus "
             "plbart").split():
    values = dict(BART)
    if kind == "nllb-moe":
        values.update(num_experts=2, encoder_sparse_step=4, decoder_sparse_step=4)
    MODELS[kind] = (kind, values, both, None)
MODELS["whisper"] = ("whisper", dict(BART, num_mel_bins=4, max_source_positions=6),
                     lambda: dict(input_features=torch.randn(2, 4, 12), decoder_input_ids=IDS[:, :5]), None)
MODELS["speech_to_text"] = ("speech_to_text", dict(BART, input_feat_per_channel=4, conv_channels=4, num_conv_layers=2),
                            lambda: dict(input_features=torch.randn(2, 20, 4), decoder_input_ids=IDS[:, :5]), None)
MODELS["time_series_transformer"] = ("time_series_transformer", SERIES, series, None)
MODELS["informer"] = ("informer", dict(SERIES, attention_type="full"), series, None)
MODELS["opt"] = ("opt", dict(TEXT, ffn_dim=8, word_embed_proj_dim=W), tokens, None)
MODELS["xglm"] = ("xglm", dict(d_model=W, attention_heads=H, num_layers=1, ffn_dim=8, vocab_size=V, max_position_embeddings=16), tokens, None)
MODELS["biogpt"] = ("biogpt", TEXT, tokens, None)
MODELS["trocr"] = ("TrOCRConfig", dict(BART, cross_attention_hidden_size=6), lambda: seen(6), "TrOCRForCausalLM")
MODELS["musicgen_decoder"] = ("MusicgenDecoderConfig", dict(TEXT, ffn_dim=8, num_codebooks=1, pad_token_id=15),
                              seen, "MusicgenForCausalLM")
for kind in "wav2vec2 hubert unispeech unispeech-sat data2vec-audio sew".split():
    MODELS[kind] = (kind, SPEECH, sound, None)
for kind in "altclip chinese_clip clip clipseg owlv2 owlvit siglip".split():
    values = dict(text_config=TEXT, vision_config=VISION, projection_dim=W)
    MODELS[kind] = (kind, values, lambda: dict(tokens(), **pixels()), None)
MODELS["groupvit"] = ("groupvit", dict(text_config=TEXT, vision_config=dict(
    VISION, depths=[1, 1], num_group_tokens=[2, 0], num_output_groups=[2, 2]), projection_dim=W),
    lambda: dict(tokens(), **pixels()), None)
for kind, name in (("clip", "CLIP"), ("siglip", "Siglip")):
    MODELS[kind + "_text_model"] = (name + "TextConfig", TEXT, tokens, name + "TextModel")
    MODELS[kind + "_vision_model"] = (name + "VisionConfig", VISION, pixels, name + "VisionModel")
for kind in "gpt2 openai-gpt".split():
    MODELS[kind] = (kind, GPT, tokens, None)
MODELS["gpt2.inverse"] = ("gpt2", dict(GPT, n_layer=2, scale_attn_by_inverse_layer_idx=True), tokens, None)
MODELS["decision_transformer"] = ("decision_transformer", dict(
    GPT, hidden_size=W, state_dim=3, act_dim=2, max_ep_len=9), moves, None)
# No plain attention.
MODELS["layoutlmv3"] = ("layoutlmv3", dict(
    BERT, num_hidden_layers=1, max_2d_position_embeddings=16, coordinate_size=1, shape_size=2,
    visual_embed=False, rel_pos_bins=8, max_rel_pos=16), boxes, None)
MODELS["speecht5"] = ("speecht5", dict(
    BART, **{key: value for key, value in SPEECH.items() if key == "hidden_size" or "conv" in key}),
    lambda: dict(input_values=torch.randn(2, N, W), decoder_input_values=torch.randn(2, 5, W)), None)
MODELS["roformer"] = ("roformer", dict(BERT, num_hidden_layers=1), tokens, None)
MODELS["yoso"] = ("yoso", dict(BERT, num_hidden_layers=1), tokens, None)
MODELS["gpt_neo"] = ("gpt_neo", dict(TEXT, num_heads=H, num_layers=1, attention_types=[[["global"], 1]]), tokens, None)

NAMES = [("self.query", "self.key", "output.dense"), ("q_proj", "k_proj", "out_proj"), ("c_attn", "c_attn", "c_proj")]


def write(file, kind, values, inputs, model):
    torch.manual_seed(1)
    config = getattr(transformers, kind)(**values) if kind[0].isupper() else transformers.CONFIG_MAPPING[kind](**values)
    config._attn_implementation = "eager"
    model = getattr(transformers, model)(config) if model else transformers.AutoModel.from_config(config)
    model = model.double().eval()
    for value in model.parameters():
        torch.nn.init.normal_(value, 0, 0.6)
        value.data = value.data.float().double()
    passed = {}

    def note(name):
        def hook(_, arguments, output):
            passed.setdefault(name, (arguments[0].detach(), output.detach()))
        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(note(name)) if any(
            name.endswith(part) for names in NAMES for part in names) else None
    with torch.no_grad():
        model(**inputs())
    kept, state = {}, model.state_dict()
    for query, key, output in NAMES:
        for name in [name for name in passed if name.endswith("." + query)]:
            prefix = name[: -len(query) - 1]
            if f"{prefix}.{output}" not in passed or f"{prefix}.q_attn.weight" in state:
                continue
            x, c, y = passed[name][0], passed[f"{prefix}.{key}"][0], passed[f"{prefix}.{output}"][1]
            kept["X." + prefix], kept["Y." + prefix] = x, y.reshape(*x.shape[:2], -1)
            if x.shape != c.shape or not torch.equal(x, c):
                kept["C." + prefix] = c
            kept.update({n: t for n, t in state.items() if n.startswith(prefix + ".") and n not in kept})
    # What differs from a default, and the number of heads where it does not.
    differs, full = (json.loads(config.to_json_string(use_diff=only)) for only in (True, False))
    text = json.dumps({key: value for key, value in full.items()
                       if key in differs or "head" in key or key == "model_type"})
    kept = {name: t.float().contiguous().clone() for name, t in kept.items() if t.is_floating_point()}
    other = file in "bert.relative gpt2.inverse layoutlmv3 speecht5 roformer yoso gpt_neo".split()
    save_file(kept, f"{HERE}/{file}.safetensors", metadata=dict(config=text, stand="other" if other else "plain"))
    print(file, [name for name in kept if name[1] == "."])


for file, model in MODELS.items():
    write(file, *model)
