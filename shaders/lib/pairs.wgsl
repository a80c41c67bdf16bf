// What is shown of pairs: a stage, or the weight times the norm of the key's value.

const STAGE_CONTRIBUTIONS: u32 = 5u;

fn norms_at(base: u32, j: u32) -> vec4<f32> {
    if params.stage != STAGE_CONTRIBUTIONS {
        return vec4<f32>();
    }
    return vec4<f32>(norm_at(base, j), norm_at(base, j + 1u), norm_at(base, j + 2u), norm_at(base, j + 3u));
}

fn state_at(index: u32) -> State {
    if params.stage <= STAGE_MASKED {
        return State();
    }
    return load_state(index);
}

// Row i and the keys j to j + 3, from their scaled scores; what lies past the last
// key is of no use. `trips` is 4.
fn shown(row: Row, i: u32, j: u32, raw: vec4<f32>, sequence: Sequence, state: State, norm: vec4<f32>, trips: u32) -> vec4<f32> {
    let keys = vec4<u32>(j) + vec4<u32>(0u, 1u, 2u, 3u);
    var s = raw;
    var seen = select(vec4<u32>(), vec4<u32>(1u), (keys >= vec4<u32>(row.keys_first)) & (keys < vec4<u32>(row.keys_end)));
    for (var k = 0u; k < select(0u, trips, has(PAIR_RULES | SCORE_RULES)); k++) {
        let here = vec4<u32>(k) == vec4<u32>(0u, 1u, 2u, 3u);
        let x = component(raw, k);
        var modified_score: f32;
        if params.stage <= STAGE_SOFTCAPPED {
            modified_score = select(softcapped(x), x, params.stage < STAGE_SOFTCAPPED);
        } else {
            modified_score = modified(row, j + k, x);
        }
        s = select(s, vec4<f32>(modified_score), here);
        seen = select(seen, vec4<u32>(select(0u, 1u, is_visible(row, j + k))), here);
    }
    let visible = seen != vec4<u32>();
    if params.stage <= STAGE_SOFTCAPPED {
        let within = (keys < vec4<u32>(sequence.kv_len)) & vec4<bool>(i < sequence.q_len);
        return select(vec4<f32>(), s, within);
    }
    if params.stage == STAGE_MASKED {
        return bitcast<vec4<f32>>(select(vec4<u32>(NEGATIVE_INFINITY_BITS), bitcast<vec4<u32>>(s), visible));
    }
    // One adapter's exp2() makes a number of NaN.
    let no_number = (bitcast<vec4<u32>>(s) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    let weight = select(exp_difference4(s, state.maximum) * state.factor, s, no_number);
    let x = select(weight, weight * norm, params.stage == STAGE_CONTRIBUTIONS);
    return select(vec4<f32>(), x, visible);
}
