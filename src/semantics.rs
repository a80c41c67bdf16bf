//! What attention computes here, to the last corner. No code; [`crate::reference`]
//! is its executable form.
//!
//! # Shapes
//!
//! | tensor | shape | notes |
//! | --- | --- | --- |
//! | query | (B, Hq, Nq, Dqk) | any strides, last axis contiguous |
//! | key, value | (B, Hkv, Nk, Dqk), (B, Hkv, Nk, Dv) | `Hq % Hkv == 0`; query head `h` reads kv head `h / (Hq / Hkv)`; one storage type for both |
//! | output | (B, Hq, Nq, Dv) | its own strides and storage type; overlaps no input |
//! | LSE | (B, Hq, Nq) | f32, natural logarithm, a sink included |
//! | row state | (B, Hq, Nq, 2) | f32: the row's maximum, and the log of the sum relative to it; LSE is their sum |
//! | bias | broadcastable to (B, Hq, Nq, Nk) | f32, f16 or bf16 |
//! | mask | broadcastable to (B, Hq, Nq, Nk) | bytes, or bits in words of 32 keys; [`crate::Polarity`] says what true means |
//!
//! Storage is f32, f16 or bf16; arithmetic is always f32. Halves are read from
//! u32 words, so no adapter needs a feature for them; stores round to nearest
//! even, f16 overflows to infinity, bf16 keeps NaN.
//!
//! Sizes of zero: B, Hq or Nq = 0 is valid and does nothing. Nk = 0 is valid and
//! makes every row empty. Dqk, Dv or Hkv = 0 is an error.
//!
//! # Order of operations
//!
//! For batch entry b, query head h, row i and key j, with the row's position
//! `p = i + offset`:
//!
//! 1. `s = scale * (q . k)`, accumulated in f32. The scale is `1 / sqrt(Dqk)`
//!    unless given (it keeps the variance of the scores at that of the inputs:
//!    Vaswani et al. 2017, section 3.2.1); any finite value is legal, 0 and
//!    negative ones too.
//! 2. With a softcap c: `s = c * tanh(s / c)`; tanh is right to 8 units of `2^-24`.
//!    c lies within 2^-126 to 2^126, what WGSL lets a shader divide by.
//! 3. `s += bias`; with ALiBi `s -= slope[h] * |p - j|` (Press et al. 2022, in
//!    its symmetric form).
//! 4. Exclusion. A pair is visible only if all rules that are present agree:
//!    boolean mask, causal `j <= p`, window `p - left <= j <= p + right`,
//!    `j < kv_len`, `i < q_len`, equal segment ids, and a bias that is not -inf
//!    (decided by its bits). An excluded pair has weight exactly 0, whatever
//!    query, key, value and bias hold there: NaN and infinities do not leak.
//! 5. Softmax over the visible keys. A sink adds `exp(sink[h])` to the
//!    denominator, once, and has no value row.
//! 6. `O = P V`, accumulated in f32, rounded once at the store.
//!
//! # Alignment
//!
//! [`crate::Alignment`] gives the offset, once for causal mask, window and ALiBi:
//! `TopLeft` 0; `BottomRight` (the default) `Nk - Nq`, with lengths
//! `kv_len[b] - q_len[b]`; `Offset(o)` any i32; `PerSequence` one i32 a batch entry.
//!
//! # Rows and values that are special
//!
//! - A row without a visible key is empty: O = 0, P = 0, LSE = -inf; with a
//!   sink O = 0, LSE = sink. Emptiness is counted, never guessed from a float.
//! - A bias of -3.4028235e38 is an ordinary number: a row of nothing else
//!   averages the visible values.
//! - Lengths given on the host are checked; lengths in a GPU buffer are clamped.
//! - NaN or infinity in a visible pair reaches that row where the adapter lets
//!   it (WGSL permits an adapter to assume neither occurs), never another row.
//! - A visible key whose score is -inf, by overflow or from an infinite query or key,
//!   has weight 0; after a softcap its score is -c. Where no other key is visible
//!   and there is no sink, the row is 0/0 and undetermined; with a sink O = 0,
//!   LSE = sink. Beside a score of +inf O is NaN, and LSE undetermined.
//! - `slope * |p - j|` may overflow alone: where a bias would bring the sum back into
//!   range, the score is that sum or -inf.
//! - Subnormal numbers count as themselves or as 0.
//!
//! # Promises
//!
//! - The same inputs, plan and adapter give the same bits.
//! - Causal: changing anything about later positions leaves the bits of a row
//!   unchanged. A visited tile in which a row sees nothing leaves its state
//!   bit-identical.
//! - A row's result does not depend on what else is in the batch.
//! - Nothing of size Nq x Nk is allocated by the fused kernel; the staged path
//!   holds a bounded part of it at a time.
//!
//! # Projections and the multi-head layer
//!
//! A projection is `y(i, j) = sum_k x(i, k) w(j, k) + b(j)`, accumulated in f32 in the
//! order of k, rounded once at the store; W is (out, in). The layer
//! ([`crate::MultiHeadOperands`]) projects X to queries and C (X itself in
//! self-attention) to keys and values, all stored as f32; columns `h D .. (h + 1) D` are
//! head h. Each head is attention as above; the heads of a token side by side are what
//! W_O projects to Y. Without keys every head is 0 and Y is W_O's bias.
//!
//! # Stages
//!
//! [`crate::Stage`] numbers what can be looked at, as ONNX Attention does: raw
//! scaled scores, after the softcap, after bias and mask (-inf at excluded
//! pairs), probabilities. The first two are computed for excluded pairs too and
//! are 0 past the lengths.
//!
//! # Inspection
//!
//! From queries, keys and the log-sum-exp (or row state) of a forward pass, for any
//! batch entries, heads, rows and range of keys; nothing is held of pairs that were not
//! asked for, but for summaries, which hold the scores of some rows at a time
//! ([`crate::Problem::inspect`], [`crate::Problem::summarize`],
//! [`crate::Attention::upload_inspection`] over slices).
//!
//! - A weight is `W(i, j) = exp(s(i, j) - LSE(i))` at visible pairs and exactly 0 at
//!   excluded ones. Over all keys the weights of a row sum to 1, with a sink to
//!   1 - exp(sink - LSE), without a visible key to 0: how
//!   [`crate::UploadedInspection::check_lse_async`] tells an LSE that belongs to other
//!   queries and keys.
//! - Weights are not importance. The contribution of key j is the vector W(i, j) V(j),
//!   whose sum over j is O(i); its size is W(i, j) |V(j)| (Kobayashi et al. 2020), and
//!   behind an output projection W(i, j) |V(j) W_O^(h)|, where
//!   |v W_O^(h)| = sqrt(max(0, v G v^T)) by the Gram matrix G = W_O^(h) W_O^(h)^T
//!   ([`crate::gram_matrices`]).
//! - The entropy of a row is that of its weights divided by their sum m, in nats:
//!   ln m - (sum W ln W) / m; 0 where no key is visible. n equal weights have ln n.
//! - Distances are |i + offset - j|, and sums go in a fixed order: the same bits each
//!   time.
