//! Kernels that count what they have left over, and the comparison with the bound.

use std::collections::{HashMap, HashSet};

use wgpu_attention::shaders::{Loads, RuleSet, Shader, Specialization, all_pipelines, compose};
use wgpu_attention::{Attention, Plan, testing};

use crate::gpu::gpu;
use crate::gpu::memory::{Image, create, read_back};

/// The text of a shader whose every lane stores, over the first elements of what it
/// writes, how many iterations it has left over.
fn counting_text(shader: Shader, text: &str) -> String {
    let body = text.trim_end().strip_suffix('}').unwrap();
    let (target, is_atomic) = match shader {
        Shader::StagedScores | Shader::StagedSoftmax => ("scores", false),
        Shader::InspectKeys => ("received", false),
        _ => ("output", true),
    };
    // Where lanes may have returned, each has its own element already.
    let barrier = match shader {
        Shader::InspectKeys | Shader::RowNorms => "",
        _ => "workgroupBarrier();",
    };
    let spare = "bitcast<u32>(f32(spare))";
    let store = match is_atomic {
        true => format!("atomicStore(&{target}[params.{target}.base + lane], {spare});"),
        false => format!("{target}[params.{target}.base + lane] = {spare};"),
    };
    format!(
        "{body}
    var spare = 0u;
    loop {{
        if spare >= params.trips_depth * 4400u {{
            break;
        }}
        spare++;
    }}
    {barrier}
    {store}
}}
"
    )
}

/// The adapter's limit of iterations; none where it has none, or where plans know of one
/// that this version of the driver does not keep: they are then more careful than need be.
pub fn limit() -> Option<f32> {
    let limit = gpu().caps().max_loop_iterations;
    let Some(limit) = limit else {
        println!("the adapter ends no loops");
        return None;
    };
    let counted = iterations_of_a_plain_loop(limit + 1000);
    if counted > limit {
        println!("the adapter went round a loop {counted} times, and the limit is {limit}");
        return None;
    }
    Some(limit as f32)
}

/// How often a loop of `trips` trips goes round, by what a shader of its own counts.
fn iterations_of_a_plain_loop(trips: u32) -> u32 {
    let device = gpu().device();
    let text = "
@group(0) @binding(0) var<storage, read_write> counts: array<u32>;

@compute @workgroup_size(8)
fn main(@builtin(local_invocation_index) lane: u32) {
    let trips = counts[lane];
    var count = 0u;
    loop {
        if count >= trips {
            break;
        }
        count++;
    }
    counts[lane] = count;
}
";
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(text.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let image = Image {
        bytes: bytemuck::cast_slice(&[trips; 8]).to_vec(),
        written: vec![true; 32],
    };
    let buffers = create(device, std::slice::from_ref(&image));
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry {
            binding: 0,
            resource: buffers[0].as_entire_binding(),
        }],
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(1, 1, 1);
    drop(pass);
    gpu().queue().submit([encoder.finish()]);
    let contents = read_back(gpu(), &buffers, &[image]).unwrap();
    u32::from_le_bytes(contents[0][..4].try_into().unwrap())
}

/// Kernels of which some count. The others run as they are: a count takes long in each
/// workgroup.
pub fn counting(counted: &[Shader]) -> Attention {
    let texts = all_pipelines().into_iter();
    let texts: HashMap<_, _> = texts
        .filter(|(shader, _)| counted.contains(shader))
        .map(|(shader, key)| {
            let text = compose(shader, key).text;
            (key.file_stem(shader), counting_text(shader, &text))
        })
        .collect();
    testing::with_texts(gpu(), texts).unwrap()
}

/// What the loops of a pipeline depend on: storage types, bindings and lanes do not
/// matter, nor how 4 elements are loaded.
pub fn loop_key(shader: Shader, key: Specialization) -> (Shader, bool, RuleSet, u32) {
    (
        shader,
        key.loads == Loads::Words,
        key.rules,
        key.column_runs,
    )
}

/// Comparisons of counts with bounds.
pub struct Counts {
    limit: f32,
    compared: usize,
    /// Smallest and largest share of a bound that was counted.
    shares: [f64; 2],
    pub failures: Vec<String>,
    pub seen: HashSet<(Shader, bool, RuleSet, u32)>,
}

/// Iterations of one run, and their bound.
#[derive(Clone, Copy, Default)]
pub struct Count {
    counted: f64,
    bound: u64,
}

impl Counts {
    pub fn new(limit: f32) -> Self {
        Counts {
            limit,
            compared: 0,
            shares: [1.0, 0.0],
            failures: Vec::new(),
            seen: HashSet::new(),
        }
    }

    /// `left` is what each lane has left over; the bound has to hold and to be met up to
    /// `least` of it.
    pub fn judge(
        &mut self,
        what: &str,
        plan: &Plan,
        shader: Shader,
        left: &[f32],
        least: f64,
    ) -> Count {
        let all = wgpu_attention::shaders::emitted(plan);
        let (_, key) = all.iter().find(|(s, _)| *s == shader).unwrap();
        self.seen.insert(loop_key(shader, *key));
        let lanes = shader.lanes(*key) as usize;
        let Some(left) = left.get(..lanes) else {
            let text = format!("{what}: {} elements for {lanes} lanes", left.len());
            self.failures.push(text);
            return Count::default();
        };
        let least_left = left.iter().copied().fold(f32::INFINITY, f32::min);
        let whole = left.iter().all(|x| x.fract() == 0.0 && *x > 1.0);
        let counted = f64::from(self.limit - least_left);
        let [bound, loops] = testing::loop_bound(plan, shader, gpu().caps());
        let share = counted / bound as f64;
        self.compared += 1;
        self.shares = [self.shares[0].min(share), self.shares[1].max(share)];
        let in_text = loops_of_text(shader, *key);
        if in_text != loops {
            let name = shader.name();
            let text =
                format!("{what}: {name} has {in_text} loops, src/plan/loops.rs says {loops}");
            self.failures.push(text);
        }
        if !whole || share > 1.0 || share < least || share.is_nan() {
            self.failures.push(format!(
                "{what}: {}: {counted} iterations counted, the bound is {bound}",
                shader.name()
            ));
        }
        Count { counted, bound }
    }

    /// What a longer row takes beside a shorter one: no more than the bound grows by.
    /// What is counted too much once hides nothing here.
    pub fn judge_growth(&mut self, what: &str, short: Count, long: Count) {
        let counted = long.counted - short.counted;
        let bound = long.bound as f64 - short.bound as f64;
        if counted < 0.0 || counted > bound {
            let text = format!("{what}: {counted} more counted, the bound is {bound} more");
            self.failures.push(text);
        }
    }

    pub fn finish(self, least: usize) {
        let Counts {
            compared, shares, ..
        } = self;
        println!(
            "{compared} counts, from {:.3} to {:.3} of their bounds",
            shares[0], shares[1]
        );
        let count = self.failures.len();
        let first = &self.failures[..count.min(30)];
        assert!(count == 0, "{count} failed:\n{}", first.join("\n"));
        assert!(compared >= least, "only {compared} compared");
    }
}

/// The loops of a shader's text, with those of the functions that it calls.
fn loops_of_text(shader: Shader, key: Specialization) -> u64 {
    let module = naga::front::wgsl::parse_str(&compose(shader, key).text).unwrap();
    loops_in(&module, &module.entry_points[0].function.body)
}

fn loops_in(module: &naga::Module, block: &naga::Block) -> u64 {
    use naga::Statement;
    let count = |statement: &Statement| match statement {
        Statement::Block(block) => loops_in(module, block),
        Statement::If { accept, reject, .. } => loops_in(module, accept) + loops_in(module, reject),
        Statement::Switch { cases, .. } => {
            cases.iter().map(|case| loops_in(module, &case.body)).sum()
        }
        Statement::Loop {
            body, continuing, ..
        } => 1 + loops_in(module, body) + loops_in(module, continuing),
        Statement::Call { function, .. } => loops_in(module, &module.functions[*function].body),
        _ => 0,
    };
    block.iter().map(count).sum()
}
