//! One attention layer out of a checkpoint, whatever its tensors are called.

use crate::array::Array;
use crate::layer::judge::assume;
use crate::layer::scheme::Scheme;
use crate::layer::tensors::Tensors;
use crate::multi_head::Linear;
use crate::report::{listed, shown};

/// A layer of a checkpoint.
#[derive(Debug)]
pub struct Found {
    pub prefix: String,
    pub scheme: Scheme,
    /// W_Q, W_K, W_V, W_O.
    pub parts: [Part; 4],
    /// Tensors below the prefix that it is computed without, as the caller wants it.
    pub left_out: Vec<String>,
}

/// How far a layer may be another than its scheme's.
#[derive(Debug, Clone, Copy)]
pub struct Trust {
    /// The caller says that the layer is plain attention.
    pub assumed: bool,
    /// The model's type is known to be plain under these names.
    pub known: bool,
    /// Tensors of the model's type below the prefix that are no part of attention.
    pub beside: &'static [&'static str],
}

/// A projection and where it comes from.
#[derive(Debug)]
pub struct Part {
    /// Names in full.
    pub weight: String,
    pub bias: Option<String>,
    /// The weight's shape in the file.
    pub stored: [usize; 2],
    /// This projection's part of it alone, as (out, in).
    pub linear: Linear,
}

impl Part {
    pub fn outputs(&self) -> usize {
        self.linear.weight.shape[0]
    }

    pub fn inputs(&self) -> usize {
        self.linear.weight.shape[1]
    }
}

/// Reads the layer at `prefix`.
///
/// A tensor below the prefix that is no part of its scheme would change the result in a
/// way that is not known here, so that it is an error unless the caller knows better.
pub fn load(
    tensors: &Tensors,
    (prefix, scheme): (String, Scheme),
    trust: Trust,
) -> Result<Found, String> {
    let below = Below {
        tensors,
        prefix: &prefix,
        trust,
    };
    let biased = !trust.assumed;
    let parts = match scheme {
        Scheme::Torch if below.has("in_proj_weight") => below.torch_packed()?,
        Scheme::Torch => below.torch_separate()?,
        Scheme::Bert => [
            below.linear("self.query", biased)?,
            below.linear("self.key", biased)?,
            below.linear("self.value", biased)?,
            below.linear("output.dense", biased)?,
        ],
        Scheme::Gpt2 => below.gpt2()?,
        Scheme::Projections => below.projections()?,
    };
    let left_out = below.others(scheme, &parts);
    if let (false, [_, ..]) = (trust.assumed, &left_out[..]) {
        return Err(format!(
            "{}: not known as part of a layer by the names of {}, which would be computed \
             without; {}",
            listed(&left_out, 4),
            scheme.name(),
            assume()
        ));
    }
    Ok(Found {
        prefix,
        scheme,
        parts,
        left_out,
    })
}

/// A weight as it is stored.
struct Matrix {
    name: String,
    shape: [usize; 2],
    array: Array,
}

/// A bias, or a part of one, and its name.
type Bias = Option<(String, Array)>;

impl Matrix {
    fn expect(&self, shape: [usize; 2], why: &str) -> Result<(), String> {
        let (name, got) = (shown(&self.name), self.shape);
        match got == shape {
            true => Ok(()),
            false => Err(format!(
                "{name}: expected shape {shape:?} ({why}), got {got:?}"
            )),
        }
    }

    /// The part whose weight (out, in) is `weight`.
    fn part(&self, weight: Array, bias: Bias) -> Part {
        let (of_bias, bias) = bias.unzip();
        Part {
            weight: self.name.clone(),
            bias: of_bias,
            stored: self.shape,
            linear: Linear { weight, bias },
        }
    }

    fn whole(self, bias: Bias) -> Part {
        self.part(self.array.clone(), bias)
    }
}

/// The tensors below a prefix.
struct Below<'a> {
    tensors: &'a Tensors,
    prefix: &'a str,
    trust: Trust,
}

impl Below<'_> {
    fn full(&self, name: &str) -> String {
        match self.prefix {
            "" => name.to_owned(),
            prefix => format!("{prefix}.{name}"),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.has(&self.full(name))
    }

    fn floats(&self, name: &str) -> Result<(String, Array), String> {
        let name = self.full(name);
        let array = self.tensors.read(&name)?;
        match array.dtype() {
            Some(_) => Ok((name, array)),
            None => {
                let (name, got) = (shown(&name), array.type_name());
                Err(format!("{name}: expected floats, got {got}"))
            }
        }
    }

    /// A weight: two axes of floats.
    fn matrix(&self, name: &str) -> Result<Matrix, String> {
        let (name, array) = self.floats(name)?;
        match array.shape[..] {
            [rows, columns] if rows > 0 && columns > 0 => Ok(Matrix {
                name,
                shape: [rows, columns],
                array,
            }),
            ref shape => {
                let name = shown(&name);
                Err(format!("{name}: expected two axes, got shape {shape:?}"))
            }
        }
    }

    /// A bias of `count` numbers.
    fn bias(&self, name: &str, count: usize) -> Result<(String, Array), String> {
        let (name, array) = self.floats(name)?;
        let got = &array.shape;
        match *got == [count] {
            true => Ok((name, array)),
            false => {
                let name = shown(&name);
                Err(format!("{name}: expected shape [{count}], got {got:?}"))
            }
        }
    }

    /// A weight (out, in) and its bias, which may be absent only if it is not `needed`.
    fn linear(&self, name: &str, needed: bool) -> Result<Part, String> {
        let weight = self.matrix(&format!("{name}.weight"))?;
        let bias = format!("{name}.bias");
        let bias = match needed || self.has(&bias) {
            true => Some(self.bias(&bias, weight.shape[0])?),
            false => None,
        };
        Ok(weight.whole(bias))
    }

    /// torch with one width E: `in_proj_weight` (3E, E).
    fn torch_packed(&self) -> Result<[Part; 4], String> {
        let packed = self.matrix("in_proj_weight")?;
        let [_, width] = packed.shape;
        packed.expect([3 * width, width], "query, key and value, inputs")?;
        let ([query, key, value], output) = self.torch_rest(width)?;
        let third = |n: usize| packed.array.slice(0, n * width..(n + 1) * width);
        Ok([
            packed.part(third(0), query),
            packed.part(third(1), key),
            packed.part(third(2), value),
            output,
        ])
    }

    /// torch where keys and values have widths of their own, kdim and vdim.
    fn torch_separate(&self) -> Result<[Part; 4], String> {
        let query = self.matrix("q_proj_weight")?;
        let [_, width] = query.shape;
        query.expect([width, width], "embed_dim, embed_dim")?;
        let (key, value) = (self.matrix("k_proj_weight")?, self.matrix("v_proj_weight")?);
        let [_, source] = key.shape;
        key.expect([width, source], "embed_dim, kdim")?;
        let why = "keys and values come from one sequence here, so that vdim = kdim";
        value.expect([width, source], why)?;
        let ([of_query, of_key, of_value], output) = self.torch_rest(width)?;
        Ok([
            query.whole(of_query),
            key.whole(of_key),
            value.whole(of_value),
            output,
        ])
    }

    /// The thirds of `in_proj_bias`, and `out_proj`.
    fn torch_rest(&self, width: usize) -> Result<([Bias; 3], Part), String> {
        if let Some(name) = ["bias_k", "bias_v"].into_iter().find(|name| self.has(name)) {
            return Err(format!(
                "{}: this layer adds a key and a value of its own to every sequence \
                 (add_bias_kv), which is not supported",
                self.full(name)
            ));
        }
        // With bias=False there is neither.
        let biased = self.has("in_proj_bias") || self.has("out_proj.bias");
        let mut biases = [None, None, None];
        if biased {
            let (name, all) = self.bias("in_proj_bias", 3 * width)?;
            let third = |n: usize| all.slice(0, n * width..(n + 1) * width);
            biases = [0, 1, 2].map(|n| Some((name.clone(), third(n))));
        }
        Ok((biases, self.linear("out_proj", biased)?))
    }

    /// Weights as (in, out), query, key and value side by side.
    fn gpt2(&self) -> Result<[Part; 4], String> {
        let packed = self.matrix("c_attn.weight")?;
        let [width, _] = packed.shape;
        packed.expect([width, 3 * width], "inputs, outputs: query, key, value")?;
        let (name, bias) = self.bias("c_attn.bias", 3 * width)?;
        let third = |n: usize| {
            let columns = n * width..(n + 1) * width;
            let bias = (name.clone(), bias.slice(0, columns.clone()));
            packed.part(transposed(&packed.array.slice(1, columns)), Some(bias))
        };
        let output = self.matrix("c_proj.weight")?;
        output.expect([width, width], "inputs, outputs")?;
        let bias = self.bias("c_proj.bias", width)?;
        let output = output.part(transposed(&output.array), Some(bias));
        Ok([third(0), third(1), third(2), output])
    }

    fn projections(&self) -> Result<[Part; 4], String> {
        let Trust { assumed, known, .. } = self.trust;
        let llama = self.has("o_proj.weight");
        if llama && !assumed {
            return Err(format!(
                "{}: a layer of q_proj, k_proj, v_proj and o_proj, as in Llama, needs rotary \
                 position embedding on queries and keys, which does not exist here yet; without \
                 it the result would be another; {}",
                self.full("o_proj.weight"),
                assume()
            ));
        }
        let output = self.linear(if llama { "o_proj" } else { "out_proj" }, false)?;
        if !(assumed || known || self.has("q_proj.bias")) {
            return Err(format!(
                "{}: without a q_proj.bias this could be a layer of GPT-J, which needs rotary \
                 position embedding, or of GPT-Neo, which does not scale its scores; neither is \
                 supported; {}",
                self.full("q_proj.weight"),
                assume()
            ));
        }
        // A key's bias alone may be missing, as in Whisper.
        let biased = self.has("q_proj.bias") || self.has("v_proj.bias");
        Ok([
            self.linear("q_proj", biased && !assumed)?,
            self.linear("k_proj", false)?,
            self.linear("v_proj", biased && !assumed)?,
            output,
        ])
    }

    /// Tensors below the prefix that the layer is computed without, norms aside.
    fn others(&self, scheme: Scheme, parts: &[Part; 4]) -> Vec<String> {
        let start = self.full("");
        let used = |name: &String| {
            let names = parts
                .iter()
                .flat_map(|part| [Some(&part.weight), part.bias.as_ref()]);
            names.flatten().any(|used| used == name)
        };
        let beside =
            |below: &str| scheme.beside().contains(&below) || self.trust.beside.contains(&below);
        let mut others = self.tensors.names();
        others.retain(|name| match name.strip_prefix(&start) {
            Some(below) => !used(name) && !beside(below),
            None => false,
        });
        others
    }
}

/// (in, out) as (out, in).
fn transposed(array: &Array) -> Array {
    let [rows, columns] = [array.shape[0], array.shape[1]];
    let order = (0..columns).flat_map(|j| (0..rows).map(move |i| Some(i * columns + j)));
    array.gather(vec![columns, rows], order)
}
