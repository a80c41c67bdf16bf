// Chromium's WebGPU (Dawn, whose WGSL compiler is Tint) in Node: it parses every text
// of the crate, makes pipelines, and runs recorded plans of bundled cases, whose
// results are compared with what the cases expect. Any message of the compiler is a
// failure. Each check is first shown to reject.
//
//     node dawn.mjs WEBGPU FOLDER
//
// WEBGPU is the unpacked npm package `webgpu`, FOLDER what `cargo test --test compilers`
// wrote. The Vulkan loader's environment chooses the adapter.

import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [webgpu, folder] = process.argv.slice(2);
const { create, globals } = await import(pathToFileURL(join(resolve(webgpu), 'index.js')));
const { GPUBufferUsage: usage, GPUMapMode, GPUShaderStage } = globals;

// Naga refuses this line, browsers need it.
const SUBGROUPS = 'enable subgroups;\n';

// For `subgroupAny`, and for what comes from a buffer that is bound read_write, Tint's
// analysis assumes that lanes of a subgroup may differ, and refuses subgroup functions in a
// branch or loop that depends on it. Here they cannot differ:
const EXEMPTION = 'diagnostic(off, subgroup_uniformity);\n';
const EXEMPT = [
    {
        applies: (text) => text.root === 'forward_lanes',
        // A workgroup is one subgroup. Its loops depend on the interval of keys, which
        // comes from workgroup_id, the uniform and `aux` (the same word in all lanes, and
        // nothing in the dispatch writes `aux`), and on `live` and `subgroupAny(broken)`,
        // which are results of subgroupAny: one value for all lanes.
        reason: 'loops depend on a vote of the subgroup',
    },
    {
        applies: (text) => text.root === 'inspect_lanes' && text.shared,
        // The number of chunks depends on the interval of keys, as above. Where `aux` is
        // bound read-only, Tint accepts the same lines.
        reason: 'a loop depends on lengths in a buffer that is bound read_write',
    },
];
// WGSL has no 64-bit integers: they are wgpu's, for native devices, and no plan asks for
// them without the feature SHADER_INT64.
const isNative = (text) => text.int64;

let failures = 0;
function check(passed, message) {
    if (!passed) {
        failures += 1;
        console.error(`FAILED: ${message}`);
    }
}

// --- compiling ---------------------------------------------------------------

/** The module, and all that the compiler said. */
async function compile(code) {
    device.pushErrorScope('validation');
    const module = device.createShaderModule({ code });
    const { messages } = await module.getCompilationInfo();
    const error = await device.popErrorScope();
    const said = messages.map((m) => `line ${m.lineNum}: ${m.type}: ${m.message}`);
    if (error && said.length === 0) said.push(error.message);
    return { module, said };
}

/** The pipeline with the layout that the crate makes: as declared, whether used or not. */
function pipelineOf(code, module) {
    const bindings = code.matchAll(/^@group\(0\) @binding\((\d+)\) var<(.*?)>/gm);
    const types = { uniform: 'uniform', 'storage, read': 'read-only-storage', 'storage, read_write': 'storage' };
    const entries = [...bindings].map(([, binding, space]) => ({
        binding: Number(binding),
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type: types[space] },
    }));
    const layout = device.createPipelineLayout({
        bindGroupLayouts: [device.createBindGroupLayout({ entries })],
    });
    return device.createComputePipelineAsync({ layout, compute: { module, entryPoint: 'main' } });
}

/** Parses all texts; the code and module of each by its stem. */
async function parseAll(texts) {
    const parsed = new Map();
    for (const text of texts) {
        let code = readFileSync(join(folder, 'texts', `${text.stem}.wgsl`), 'utf8');
        if (text.subgroups) {
            const without = await compile(code);
            check(without.said.length > 0, `${text.stem}: subgroups without a directive are accepted`);
            code = SUBGROUPS + code;
        }
        if (EXEMPT.some((exempt) => exempt.applies(text))) {
            const without = await compile(code);
            const expected = 'must only be called from subgroup uniform control flow';
            check(
                without.said.some((line) => line.includes(expected)),
                `${text.stem}: is accepted without its exemption`,
            );
            code = EXEMPTION + code;
        }
        const { module, said } = await compile(code);
        check(said.length === 0, `${text.stem}: ${said.join('; ')}`);
        parsed.set(text.stem, { code, module });
    }
    return parsed;
}

/** What must be refused: a message of the compiler, or an error when a pipeline is made. */
async function compilerRejects(code) {
    const main = '@compute @workgroup_size(1) fn main()';
    const lowest = code.replace('-0x1.fffffep+127f', '-3.4028235e38');
    check(lowest !== code, 'no text with the lowest float is at hand');
    const refused = {
        'a literal beyond f32': lowest,
        'a type error': code.replace('let ', 'let wrong: u32 = 1.0; let '),
        'no end': code.slice(0, code.lastIndexOf('}')),
        'an infinity': `const X: f32 = 1e39;\n${main} {}`,
        'an unknown extension': `enable no_such_thing;\n${main} {}`,
        'a barrier that not all reach':
            '@compute @workgroup_size(8) fn main(@builtin(local_invocation_index) i: u32) { if i == 0u { workgroupBarrier(); } }',
        'a warning': `${main} { return; let x = 1u; }`,
    };
    for (const [what, text] of Object.entries(refused)) {
        check((await compile(text)).said.length > 0, `the compiler accepts ${what}`);
    }
    const large = '@compute @workgroup_size(1024) fn main() {}';
    const { module, said } = await compile(large);
    const made = said.length > 0 || (await pipelineOf(large, module).then(() => true, () => false));
    check(!made, 'a pipeline of 1024 invocations is made');
}

// --- running -----------------------------------------------------------------

/** Runs the dispatches of a recording and returns its expected buffers' contents. */
async function run(recording, pipelines, bytes) {
    const contents = ({ offset, size }) => bytes.subarray(offset, offset + size);
    const create = (size, usage) => device.createBuffer({ size, usage });
    const filled = (data, use) => {
        const buffer = create(data.length, use | usage.COPY_DST);
        device.queue.writeBuffer(buffer, 0, data);
        return buffer;
    };
    const buffers = { 'idle input': create(256, usage.STORAGE) };
    for (const [name, range] of Object.entries(recording.buffers)) {
        if (range.size > 0) buffers[name] = filled(contents(range), usage.STORAGE | usage.COPY_SRC);
    }
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const { stem, grid, uniform, binds } of recording.dispatches) {
        const pipeline = await pipelines.get(stem);
        const resources = binds.map(({ buffer, offset, size }) => ({
            // Two bindings that are written may not overlap.
            buffer: buffer === 'idle output' ? create(256, usage.STORAGE) : buffers[buffer],
            offset,
            size,
        }));
        resources.unshift({ buffer: filled(contents(uniform), usage.UNIFORM) });
        pass.setPipeline(pipeline);
        const entries = resources.map((resource, binding) => ({ binding, resource }));
        pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
        pass.dispatchWorkgroups(...grid);
    }
    pass.end();
    const outputs = recording.expected.map(({ buffer }) => {
        const { size } = buffers[buffer];
        const mapped = create(size, usage.COPY_DST | usage.MAP_READ);
        encoder.copyBufferToBuffer(buffers[buffer], 0, mapped, 0, size);
        return mapped;
    });
    device.queue.submit([encoder.finish()]);
    const read = async (buffer) => {
        await buffer.mapAsync(GPUMapMode.READ);
        return new Float32Array(buffer.getMappedRange().slice(0));
    };
    return Promise.all(outputs.map(read));
}

/** Number of elements outside their tolerance; only infinity equals infinity. */
function outside(got, values, tolerances) {
    const within = (x, i) => x === values[i] || Math.abs(x - values[i]) <= tolerances[i];
    return got.length === values.length ? got.filter((x, i) => !within(x, i)).length : Infinity;
}

/** Compares a recording's outputs, and shows that the comparison rejects. */
function compare(recording, outputs, bytes) {
    const floats = ({ offset, size }) => new Float32Array(bytes.buffer, bytes.byteOffset + offset, size / 4);
    recording.expected.forEach(({ buffer, values, tolerances }, index) => {
        const name = `${recording.name}, ${recording.kernel}, ${buffer}`;
        const [got, expected, allowed] = [outputs[index], floats(values), floats(tolerances)];
        const wrong = outside(got, expected, allowed);
        check(got.length > 0 && wrong === 0, `${name}: ${wrong} of ${got.length} outside`);
        // One expectation moved by some tolerances, in turn the first and the last.
        for (const at of [0, expected.length - 1]) {
            const corrupted = Float32Array.from(expected);
            corrupted[at] = Number.isFinite(corrupted[at])
                ? corrupted[at] + Math.max(4 * allowed[at], 1e-6 * Math.abs(corrupted[at]), 1e-6)
                : 0;
            check(outside(got, corrupted, allowed) > 0, `${name}: a corrupted expectation passes`);
        }
        for (const wrongValue of [NaN, Infinity]) {
            const broken = Float32Array.from(got);
            broken[0] = wrongValue;
            check(outside(broken, expected, allowed) > 0, `${name}: ${wrongValue} passes`);
        }
    });
}

/** Runs all recordings; plans that do nothing must be noticed. */
async function runAll(recordings, pipelines, bytes) {
    for (const recording of recordings) {
        compare(recording, await run(recording, pipelines, bytes), bytes);
    }
    const idle = { ...recordings[0], dispatches: [] };
    const [output] = await run(idle, pipelines, bytes);
    check(output.every(Number.isNaN), 'an output that nothing wrote is not NaN');
}

// --- main --------------------------------------------------------------------

const began = Date.now();
/** Ends a stage; the next does not begin after a failure. */
function done(what) {
    console.log(`${((Date.now() - began) / 1000).toFixed(1)} s: ${what}`);
    if (failures > 0) process.exit(1);
}

const gpu = create([]); // kept: what it made dies with it
const adapter = await gpu.requestAdapter();
if (!adapter) throw new Error('no adapter');
const { vendor, architecture, device: model, description } = adapter.info;
console.log(`Dawn on ${[vendor, architecture, model, description].filter(Boolean).join(', ')}`);
const device = await adapter.requestDevice({ requiredFeatures: ['subgroups'] });
device.addEventListener('uncapturederror', ({ error }) => check(false, error.message));
device.lost.then(({ reason, message }) => check(reason === 'destroyed', `device lost: ${message}`));

const list = JSON.parse(readFileSync(join(folder, 'texts', 'list.json')));
const texts = list.filter((text) => !isNative(text));
const parsed = await parseAll(texts);
await compilerRejects(parsed.get('forward_tiled.f32.32columns').code);
for (const { applies, reason } of EXEMPT) {
    const count = texts.filter(applies).length;
    check(count > 0, `no text is exempt because ${reason}`);
    console.log(`without the analysis of subgroup uniformity: ${count} texts (${reason})`);
}
done(`${texts.length} texts parsed; ${list.length - texts.length} with 64-bit integers left out`);

// Those of the recordings, and one text of each other root and set of rules.
const recordings = JSON.parse(readFileSync(join(folder, 'recordings', 'recordings.json')));
const wanted = new Set(recordings.flatMap(({ dispatches }) => dispatches.map(({ stem }) => stem)));
const kind = ({ root, rules }) => `${root} ${rules}`;
const kinds = new Set(texts.filter(({ stem }) => wanted.has(stem)).map(kind));
for (const text of texts) {
    if (!kinds.has(kind(text))) wanted.add(text.stem);
    kinds.add(kind(text));
}
const make = (stem) => {
    const { code, module } = parsed.get(stem);
    return pipelineOf(code, module).catch((error) => check(false, `${stem}: ${error.message}`));
};
const pipelines = new Map([...wanted].map((stem) => [stem, make(stem)]));
await Promise.all(pipelines.values());
done(`${pipelines.size} pipelines made, of ${kinds.size} roots and sets of rules`);

await runAll(recordings, pipelines, readFileSync(join(folder, 'recordings', 'recordings.bin')));
done(`${recordings.length} recordings run and compared`);
device.destroy();
// Dawn's own threads would keep the process.
process.exit(0);
