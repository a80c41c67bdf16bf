//! .npy and .npz files, in and out; the expected bytes are what NumPy 2.4 writes.

use std::path::Path;

use tempfile::TempDir;

use crate::{Parts, run, stderr, stdout};

/// An .npy file as `numpy.save` writes it.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let padded = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((padded as u16).to_le_bytes());
    bytes.extend(format!("{text:<width$}\n", width = padded - 1).as_bytes());
    bytes.extend(data);
    bytes
}

fn attend(input: &Path, output: &Path, flags: &[&str]) -> std::process::Output {
    let fixed = ["run", "--backend", "oracle", "-o"].map(Path::new);
    run(fixed
        .into_iter()
        .chain([output, input])
        .chain(flags.iter().map(Path::new)))
}

/// Values of (1, 2, 3, 1, 2): one head, two tokens, packed.
const PACKED: [f32; 12] = [1.0, 0.0, 1.0, 0.0, 1.0, 2.0, 0.0, 1.0, 0.0, 1.0, 3.0, 4.0];

#[test]
fn an_npy_file_of_all_three_is_read_and_y_written() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let floats: Vec<u8> = PACKED.iter().flat_map(|x| x.to_le_bytes()).collect();
    let doubles: Vec<u8> = (PACKED.iter())
        .flat_map(|&x| f64::from(x).to_le_bytes())
        .collect();
    let shape = "(1, 2, 3, 1, 2)";
    std::fs::write(at("f4.npy"), npy("<f4", shape, &floats)).unwrap();
    std::fs::write(at("f8.npy"), npy("<f8", shape, &doubles)).unwrap();
    let out = at("y.npy");
    let done = attend(&at("f4.npy"), &out, &["--scale", "0"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    // With a scale of 0 every row is the mean of the values.
    let mean: Vec<u8> = [2.0f32, 3.0, 2.0, 3.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let expected = npy("<f4", "(1, 2, 1, 2)", &mean);
    assert_eq!(std::fs::read(&out).unwrap(), expected);

    let refused = attend(&at("f8.npy"), &out, &["--scale", "0"]);
    let why = "element type F64 is not read; F32, F16, BF16, I32, U32, I64 and BOOL are";
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("--f64-as-f32"),
        "{}",
        stderr(&refused)
    );
    let done = attend(&at("f8.npy"), &out, &["--scale", "0", "--f64-as-f32"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(std::fs::read(&out).unwrap(), expected);

    for (flags, name, why) in [
        (&["--lse"][..], "y.npy", "an .npy file holds Y alone"),
        (&["--output-dtype", "bf16"], "y.npy", "Y: NumPy has no BF16"),
        (&["--output-dtype", "bf16"], "y.npz", "Y: NumPy has no BF16"),
        (
            &[],
            "y.pt",
            "expected the extension .safetensors, .npz or .npy, got .pt",
        ),
        (&["--layout", "bhsd"], "z.npy", "takes Q, K, V and not QKV"),
    ] {
        let refused = attend(&at("f4.npy"), &at(name), flags);
        assert_eq!(refused.status.code(), Some(2), "{name}");
        assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
    }
    let halves = attend(&at("f4.npy"), &out, &["--output-dtype", "f16"]);
    assert_eq!(halves.status.code(), Some(0), "{}", stderr(&halves));
    assert!(
        std::fs::read(&out)
            .unwrap()
            .windows(5)
            .any(|w| w == b"'<f2'")
    );
}

/// What is written as .npz is read as one, by every command that takes operands.
#[test]
fn an_npz_file_is_written_and_read() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let floats: Vec<u8> = PACKED.iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(at("in.npy"), npy("<f4", "(1, 2, 3, 1, 2)", &floats)).unwrap();
    let npz = at("out.npz");
    let done = attend(
        &at("in.npy"),
        &npz,
        &["--lse", "--stage", "3", "--scale", "0"],
    );
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    // The archive's entries are not compressed.
    let bytes = std::fs::read(&npz).unwrap();
    let log: Vec<u8> = [2f32.ln(); 2]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let entries = [
        (
            "Y.npy",
            npy("<f4", "(1, 2, 1, 2)", &{
                let mean = [2.0f32, 3.0, 2.0, 3.0];
                mean.iter()
                    .flat_map(|x| x.to_le_bytes())
                    .collect::<Vec<u8>>()
            }),
        ),
        ("lse.npy", npy("<f4", "(1, 1, 2)", &log)),
        (
            "stage3.npy",
            npy("<f4", "(1, 1, 2, 2)", &[0.5f32.to_le_bytes(); 4].concat()),
        ),
    ];
    for (name, entry) in &entries {
        let has = |part: &[u8]| bytes.windows(part.len()).any(|w| w == part);
        assert!(has(name.as_bytes()) && has(entry), "{name}");
    }
    // It has no operands; the message says what it has.
    let refused = attend(&npz, &at("again.npz"), &[]);
    assert!(
        stderr(&refused).contains("tensor Y is not an operand"),
        "{}",
        stderr(&refused)
    );
    // Written by numpy.savez_compressed(Q=..., K=..., V=..., causal=...) of (1, 1, 2, 2).
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/qkv.npz");
    let done = attend(
        &packed,
        &at("y.safetensors"),
        &["--f64-as-f32", "--scale", "0"],
    );
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(
        Parts::read(&at("y.safetensors")).f32("Y"),
        [2.0, 3.0, 2.0, 3.0]
    );
    let path = packed.to_str().unwrap();
    let flags = [
        "--head",
        "0",
        "--stats",
        "--backend",
        "oracle",
        "--f64-as-f32",
    ];
    let shown = run(["inspect", path].iter().chain(&flags));
    assert!(
        stdout(&shown).contains("problem  B 1 Hq 1 Hkv 1 Nq 2 Nk 2 D 2, F32"),
        "{}",
        stderr(&shown)
    );
    let cut = at("cut.npz");
    let whole = std::fs::read(&packed).unwrap();
    for end in [4, 60, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&cut, &whole[..end]).unwrap();
        let refused = attend(&cut, &at("z.npz"), &[]);
        assert_eq!(refused.status.code(), Some(2), "{end}");
        assert!(
            stderr(&refused).contains("not an .npz file"),
            "{}",
            stderr(&refused)
        );
    }
}
